"""What a fake NVML library is made of.

That is its GPUs and processes, calls that hang, and how structs are written.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from dataclasses import dataclass, field
from typing import Any

import pynvml

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, VERSION_MISMATCH = (
    0,
    2,
    3,
    6,
    7,
    25,
)
GIB = 1 << 30
NOT_AVAILABLE = (1 << 64) - 1
HANDLE, SAMPLE, MIG, EVENTS = 0x1000, 0x9000, 0x5000, 0x7000
KINDS = {"Compute": "compute", "Graphics": "graphics", "MPSCompute": "mps"}


def error_code(error: int | str) -> int:
    """The nvmlReturn_t of 15, "GpuIsLost" or "NVMLError_GpuIsLost"."""
    if isinstance(error, int):
        return error
    return int(getattr(pynvml, "NVMLError_" + error.replace("NVMLError_", ""))().value)


@dataclass
class FakeProcess:
    """``used`` None is the driver's "not available".

    ``kind``: compute, graphics or mps. ``sm``: its share of the SMs in the driver's last sample,
    None where it ran no kernel then.
    """

    pid: int
    used: int | None = GIB
    kind: str = "compute"
    gpu: int = 0
    instance: int = 0xFFFFFFFF
    sm: int | None = None


@dataclass
class FakeGpu:
    """An H200 at work, in the driver's units (milliwatts, bytes, percent, MHz)."""

    uuid: str
    pci: str
    name: str | bytes = "NVIDIA H200"
    total: int = 150_754_820_096
    reserved: int = 700_000_000
    used: int = 20 * GIB
    utilisation: int = 55
    memory_utilisation: int = 21
    power: int = 412_345
    power_limit: int = 700_000
    temperature: int = 61
    sm_clock: int = 1755
    memory_clock: int = 3201
    max_sm_clock: int = 1980
    event_reasons: int = 0x4
    performance_state: int = 0
    fan: int | None = None
    ecc: int = 0
    pcie_generation: int = 5
    pcie_width: int = 16
    capability: tuple[int, int] = (9, 0)
    gpm: dict[int, float] = field(
        default_factory=lambda: {
            2: 88.0,
            3: 42.0,
            5: 27.0,
            10: 42.0,
            4: 24.0,
            11: 0.0,
            12: 2.8,
            13: 1.5,
            20: 12.0,
            21: 70.0,
            61: 9346.0,
            60: 9340.0,
        }
    )
    memory_temperature: int | None = 66
    margin: int = 26
    slowdown: int = 87
    shutdown: int = 92
    energy: int = 912_345_678
    ecc_modes: tuple[int, int] = (1, 1)
    ecc_corrected: int = 3
    ecc_lifetime: tuple[int, int] = (17, 0)
    remapped: tuple[int, int, int, int] = (1, 0, 0, 0)
    retired: tuple[int, int] | None = None
    replays: int = 2
    architecture: int = 9
    bus_bits: int = 6144
    vbios: str = "96.00.A5.00.01"
    mig_modes: tuple[int, int] | None = (0, 0)
    mig_names: tuple[str, ...] = ()
    default_power: int = 700_000
    power_range: tuple[int, int] = (200_000, 700_000)
    persistence: int = 1
    compute_mode: int = 0
    cores: tuple[int, ...] = tuple(range(24)) + tuple(range(48, 72))
    nodes: tuple[int, ...] = (0,)
    direct: dict[int, int] = field(default_factory=dict)
    """Link → the device at its other end; without an entry it is a switch."""
    gpm_supported: bool = True
    links: tuple[int, ...] = (1,) * 18
    fabric: int = 3
    fabric_status: int = 0
    socket: int = 0
    samples: tuple[tuple[float, int], ...] | None = None
    """Utilisation as the driver sampled it: (seconds ago, percent)."""
    more_samples: dict[int, tuple[tuple[float, int], ...]] = field(default_factory=dict)
    """The same of other kinds, by their number in nvml.h."""


class Hang:
    """A call that does not return until :meth:`release`.

    ``entered`` is set once a thread is in it.
    """

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._released = threading.Event()

    @property
    def released(self) -> bool:
        return self._released.is_set()

    def release(self) -> None:
        self._released.set()

    def wait(self) -> None:
        self.entered.set()
        self._released.wait(60)

    def __enter__(self) -> Hang:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def write(out: Any, layout: str, *values: Any) -> int:
    packed = struct.pack(layout, *values)
    ctypes.memmove(out, packed, len(packed))
    return SUCCESS


def write_bits(out: Any, words: int, bits: tuple[int, ...]) -> int:
    found = [sum(1 << bit % 64 for bit in bits if bit // 64 == word) for word in range(words)]
    return write(out, f"{words}Q", *found)


def write_text(buffer: Any, text: str | bytes) -> int:
    raw = text.encode() if isinstance(text, str) else text
    buffer.value = raw[: len(buffer) - 1]
    return SUCCESS
