"""Read torch's CUDA allocator without disturbing the trainer.

It creates no context, does not synchronise, and resets no peak.

``torch._C._cuda_memoryStats(ordinal)`` copies counters under the allocator's mutex (8–14 µs on an
H200). A thread inside cudaMalloc holds that mutex, and we then wait for it while we hold the GIL.
Therefore a slow read is followed by a pause. Only ordinals that have a primary context are read
(``_cuda_hasPrimaryContext`` looks at the driver's state and creates none).
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any, Dict, List, Optional, Tuple, Union

from ..wire.frames import DRIVER_ERROR, NOT_INITIALISED, NOT_SUPPORTED, Unknown

SLOW_SECONDS = 1e-3
COST_SHARE = 200
"""After a slow read, this many times its processor time passes before the next one, so reads take
at most 0.5 % of the time.
"""
LONGEST_PAUSE_SECONDS = 30.0
WAIT_SHARE, LONGEST_AFTER_WAIT_SECONDS = 20, 4.0
"""The same of a read that only waited. The training thread has the allocator's lock while the
driver gives it memory, as in its first allocation, which took 107 ms on an H200: such a wait takes
nothing from it. A reading counts for 6 s, so the next one follows before that.
"""
LOOK_AGAIN_SECONDS = 2.0
"""Seconds between two checks of the ordinals that had no context."""
MAX_ORDINALS = 64
FIELDS: Dict[str, Tuple[str, ...]] = {
    "allocated_bytes": ("allocated_bytes", "all", "current"),
    "reserved_bytes": ("reserved_bytes", "all", "current"),
    "active_bytes": ("active_bytes", "all", "current"),
    "inactive_split_bytes": ("inactive_split_bytes", "all", "current"),
    "requested_bytes": ("requested_bytes", "all", "current"),
    "peak_allocated_bytes": ("allocated_bytes", "all", "peak"),
    "peak_reserved_bytes": ("reserved_bytes", "all", "peak"),
    "alloc_retries": ("num_alloc_retries",),
    "ooms": ("num_ooms",),
    "allocation_count": ("allocation", "all", "current"),
    "segment_count": ("segment", "all", "current"),
}
_POOLS = "reserved_bytes_by_private_pools"
STATISTICS = (*FIELDS, "private_pool_bytes", "statistics_seconds")
_ASYNC_HAS = frozenset(
    (
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
    )
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
Value = Union[int, float, Unknown]


def initialised() -> bool:
    """Tell whether CUDA is initialised and usable in this process.

    It is not usable in a forked child of a process that initialised it.
    """
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return bool(cuda.is_initialized())
    except Exception:
        return False


def why_not() -> Unknown:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return Unknown(NOT_INITIALISED, "torch is not imported in this process yet")
    if not hasattr(getattr(torch, "_C", None), "_cuda_memoryStats"):
        return Unknown(
            NOT_INITIALISED,
            f"this torch ({getattr(torch, '__version__', '?')}) is built without CUDA",
        )
    return Unknown(NOT_INITIALISED, "CUDA is not initialised in this process")


def backend() -> Optional[str]:
    """Return the allocator's backend: ``native``, ``cudaMallocAsync`` or ``pluggable``.

    None if torch does not tell or has no CUDA.
    """
    get = getattr(getattr(sys.modules.get("torch"), "_C", None), "_cuda_getAllocatorBackend", None)
    try:
        return None if get is None else str(get())
    except Exception:
        return None


class Allocators:
    """The allocators of the ordinals that this process uses.

    CUDA must be initialised before any method is called.
    """

    def __init__(self) -> None:
        self._count: Optional[int] = None
        self._used: List[int] = []
        self._looked = -LOOK_AGAIN_SECONDS
        self._not_before: Dict[int, float] = {}

    def ordinals(self) -> List[int]:
        """Return the ordinals with a context; one that had a context keeps its place."""
        now = time.monotonic()
        if now - self._looked >= LOOK_AGAIN_SECONDS:
            self._looked = now
            if self._count is None:
                self._count = _device_count()
            # Two threads may be in here at once, so each makes a list of its own.
            self._used = [o for o in range(self._count) if o in self._used or _in_use(o)]
        return self._used

    def allocated(self, ordinal: int) -> Optional[int]:
        """Return only the allocated bytes.

        None during a pause, or if the allocator does not report them.
        """
        begin, worked = time.monotonic(), time.thread_time()
        if begin < self._not_before.get(ordinal, 0.0):
            return None
        torch: Any = sys.modules.get("torch")
        try:
            found = int(torch._C._cuda_memoryStats(ordinal)["allocated_bytes"]["all"]["current"])
        except Exception:
            return None
        self._back_off(ordinal, begin, worked)
        return found

    def read(self, ordinal: int) -> Optional[Dict[str, Value]]:
        """Return a value or a reason for each of :data:`STATISTICS`.

        None during the pause after a slow read.
        """
        begin, worked = time.monotonic(), time.thread_time()
        if begin < self._not_before.get(ordinal, 0.0):
            return None
        torch: Any = sys.modules.get("torch")
        try:
            stats = torch._C._cuda_memoryStats(ordinal)
        except Exception as error:
            reason = Unknown(DRIVER_ERROR, f"the allocator does not answer: {_brief(error)}")
            return dict.fromkeys(STATISTICS, reason)
        seconds = self._back_off(ordinal, begin, worked)
        return {**extract(stats, backend()), "statistics_seconds": seconds}

    def _back_off(self, ordinal: int, begin: float, worked: float) -> float:
        """Note the duration of a read that began at ``begin``, and pause if it was long.

        ``worked`` is the processor time of this thread at its beginning.
        """
        seconds, work = time.monotonic() - begin, time.thread_time() - worked
        if seconds > SLOW_SECONDS:
            after_work = min(work * COST_SHARE, LONGEST_PAUSE_SECONDS)
            after_wait = min((seconds - work) * WAIT_SHARE, LONGEST_AFTER_WAIT_SECONDS)
            self._not_before[ordinal] = begin + max(after_work, after_wait)
        return seconds


def extract(stats: Any, allocator: Optional[str]) -> Dict[str, Value]:
    """Return the fields that we send from the nested dictionary, as far as this torch has them."""
    out: Dict[str, Value] = {}
    for column, path in FIELDS.items():
        value = stats
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if allocator == "cudaMallocAsync" and column not in _ASYNC_HAS:
            out[column] = Unknown(NOT_SUPPORTED, "the cudaMallocAsync allocator has no such figure")
        elif isinstance(value, int) and not isinstance(value, bool):
            out[column] = value
        else:
            out[column] = Unknown(
                NOT_SUPPORTED, f"this torch has no allocator statistic {'.'.join(path)}"
            )
    pools = stats.get(_POOLS) if isinstance(stats, dict) else None
    if isinstance(pools, dict) and allocator != "cudaMallocAsync":
        out["private_pool_bytes"] = sum(
            int(pool["all"]["current"])
            for pool in list(pools.values())[:4096]
            if isinstance(pool, dict) and "all" in pool
        )
    else:
        out["private_pool_bytes"] = Unknown(
            NOT_SUPPORTED, "this torch does not count private pools separately"
        )
    return out


def uuid(ordinal: int) -> Union[str, Unknown]:
    """Return the UUID of the card behind torch's ``cuda:N`` as NVML prints it.

    It is ``GPU-…`` or ``MIG-…``; an :class:`Unknown` if it is not known.

    cudaGetDeviceProperties needs no context. What it returns for a MIG slice depends on the driver,
    so the UUID of a slice is known only if CUDA_VISIBLE_DEVICES names it.
    """
    torch: Any = sys.modules.get("torch")
    visible = [
        item.strip()
        for item in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if item.strip()
    ]
    try:
        properties = device_properties(ordinal)
        name = str(getattr(properties, "name", ""))
        own = getattr(properties, "uuid", None)
    except Exception as error:
        return Unknown(DRIVER_ERROR, f"the device does not answer: {_brief(error)}")
    if " MIG " in name or any(item.startswith("MIG-") for item in visible):
        if ordinal < len(visible) and visible[ordinal].startswith("MIG-"):
            return visible[ordinal]
        return Unknown(NOT_SUPPORTED, "a MIG slice: CUDA does not report its UUID")
    found = _UUID.search(str(own).lower()) if own is not None else None
    if found:
        return "GPU-" + found.group()
    if ordinal < len(visible) and re.fullmatch("GPU-" + _UUID.pattern, visible[ordinal]):
        return visible[ordinal]
    return Unknown(
        NOT_SUPPORTED, f"torch {torch.__version__} does not report the UUID of cuda:{ordinal}"
    )


def device_properties(ordinal: int) -> Any:
    """Return torch's properties of a device, once CUDA is initialised; raises what torch raises.

    torch's public function counts the devices first (see :func:`_device_count`).
    """
    cuda: Any = sys.modules["torch"].cuda
    return (getattr(cuda, "_get_device_properties", None) or cuda.get_device_properties)(ordinal)


def _brief(error: BaseException) -> str:
    """Return the first line of a CUDA error: the rest is advice and a stack."""
    return str(error).partition("\n")[0][:200]


def _device_count() -> int:
    """Return CUDA's own number of devices.

    ``torch.cuda.device_count()`` of many versions asks NVML at its first call. That loads and
    initialises a library which the trainer has not asked for, and holds the interpreter lock
    meanwhile.
    """
    torch: Any = sys.modules.get("torch")
    try:
        count = getattr(torch._C, "_cuda_getDeviceCount", None) or torch.cuda.device_count
        return min(int(count()), MAX_ORDINALS)
    except Exception:
        return 0


def _in_use(ordinal: int) -> bool:
    core: Any = getattr(sys.modules.get("torch"), "_C", None)
    try:
        has_context = getattr(core, "_cuda_hasPrimaryContext", None)
        if has_context is not None:
            return bool(has_context(ordinal))
        return bool(core._cuda_memoryStats(ordinal)["reserved_bytes"]["all"]["allocated"])
    except Exception:
        return False
