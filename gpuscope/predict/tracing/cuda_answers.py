"""Answer what a traced program asks ``torch.cuda``.

There is one device, and no call has an effect on it.

A build of torch with CUDA asks its driver wherever a program, or torch itself, assumes a device:
optimizers ask whether a graph is being captured, and trainers print the allocator's summary. Each
such question has its answer here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...text.units import bytes_text
from ..request import Doubt
from . import multiprocessors

ANSWERED_BYTES = 80 << 30
"""The device memory that the program sees. A program may use it in a decision, so reading it is a
doubt.
"""
ANSWERED_PERCENT = 5.0
_SETTINGS_AND_COUNTERS = (
    "init", "set_device", "synchronize", "empty_cache", "ipc_collect", "manual_seed",
    "manual_seed_all", "seed", "seed_all", "reset_peak_memory_stats", "reset_max_memory_allocated",
    "reset_max_memory_cached", "reset_accumulated_memory_stats", "set_rng_state",
    "set_rng_state_all", "set_stream", "set_sync_debug_mode", "caching_allocator_enable",
    "change_current_allocator",
)  # fmt: skip
_GAUGES = (
    "utilization",
    "memory_usage",
    "temperature",
    "power_draw",
    "clock_rate",
    "device_memory_used",
    "initial_seed",
    "current_blas_handle",
    "get_sync_debug_mode",
)


def answers(
    architecture: tuple[int, int], live_bytes: Callable[[], int], doubt: Callable[[Doubt], None]
) -> dict[str, Any]:
    """Return the answers by the name of the function of ``torch.cuda``.

    ``live_bytes`` returns live bytes.
    """

    def total(operation: str) -> int:
        text = f"The program asks for the GPU's memory; the answer is {bytes_text(ANSWERED_BYTES)}."
        doubt(Doubt("device_memory", text, operation, ANSWERED_PERCENT))
        return ANSWERED_BYTES

    class Properties:
        name = "NVIDIA"
        major, minor = architecture
        multi_processor_count, max_threads_per_multi_processor = multiprocessors.of_gpu(
            architecture
        )
        warp_size, is_integrated, is_multi_gpu_board = 32, 0, 0

        @property
        def total_memory(self) -> int:
            return total("torch.cuda.get_device_properties")

    nothing = Nothing()
    found: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "NVIDIA",
        "get_device_capability": lambda device=None: architecture,
        "get_device_properties": lambda device=None: Properties(),
        "mem_get_info": lambda device=None: (
            total("torch.cuda.mem_get_info") - live_bytes(),
            ANSWERED_BYTES,
        ),
        "can_device_access_peer": lambda device, peer: False,
        "is_bf16_supported": lambda *_, **__: architecture >= (8, 0),
        "is_current_stream_capturing": lambda: False,
        "memory_allocated": lambda device=None: live_bytes(),
        "max_memory_allocated": lambda device=None: live_bytes(),
        "memory_reserved": lambda device=None: live_bytes(),
        "max_memory_reserved": lambda device=None: live_bytes(),
        "memory_cached": lambda device=None: live_bytes(),
        "max_memory_cached": lambda device=None: live_bytes(),
        "memory_stats": lambda device=None: _Zeros(),
        "memory_summary": lambda *_, **__: "",
        "memory_snapshot": lambda *_, **__: [],
        "list_gpu_processes": lambda device=None: "",
        "get_per_process_memory_fraction": lambda device=None: (
            1.0 if Allowed.share is None else Allowed.share
        ),
        "set_per_process_memory_fraction": _allow,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "current_stream": lambda device=None: nothing,
        "default_stream": lambda device=None: nothing,
        "stream": lambda stream=None: nothing,
        "make_graphed_callables": lambda callables, *_, **__: callables,
        **dict.fromkeys(
            (
                "device",
                "device_of",
                "Stream",
                "ExternalStream",
                "Event",
                "CUDAGraph",
                "graph",
                "MemPool",
                "use_mem_pool",
            ),
            Nothing,
        ),
    }
    found.update(dict.fromkeys(_SETTINGS_AND_COUNTERS, none))
    found.update(dict.fromkeys(_GAUGES, lambda *_, **__: 0))
    return found


def accelerator(live_bytes: Callable[[], int]) -> dict[str, Any]:
    """Return the same answers by the names of ``torch.accelerator``."""
    found: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "current_stream": lambda device=None: Nothing(),
        "device_index": Nothing,
        "memory_stats": lambda device=None: _Zeros(),
    }
    gauges = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    settings = ("set_device_index", "set_device_idx", "set_stream", "synchronize", "empty_cache",
                "reset_peak_memory_stats", "reset_accumulated_memory_stats")  # fmt: skip
    found.update(dict.fromkeys(gauges, lambda device=None: live_bytes()))
    found.update(dict.fromkeys(settings, none))
    return found


class Allowed:
    """The share of the device that the program allows torch; None until it says so."""

    share: float | None = None

    @classmethod
    def set(cls, share: float | None) -> None:
        cls.share = share


def _allow(fraction: float, device: Any = None) -> None:
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    Allowed.set(fraction)


def none(*_: Any, **__: Any) -> None:
    pass


class _Zeros(dict):  # type: ignore[type-arg]
    """All counters of the allocator, as in a process that has just started."""

    def __missing__(self, key: str) -> int:
        return 0


class Nothing:
    """A stream, an event, a graph, or a device as a context manager, without any effect."""

    device_index = cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "elapsed_time":
            return lambda *_: 1.0
        if name == "query":
            return lambda *_: True
        return none
