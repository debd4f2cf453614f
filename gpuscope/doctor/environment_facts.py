"""What the environment rules judge: plain data about one host and one Python, gathered elsewhere.

Unknown is None (or a name missing from a mapping), and ``why`` says for what reason, by the name of the fact. Bytes and
counts are ints. Texts are as the host gave them; the report cleans them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Build", "Device", "Facts", "Host", "Owner", "Path", "Torch", "Xid", "gib", "names", "version"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU as NVML tells it. ``slowed``: clock-event words that say heat or power hold the clock down now;
    ``capped``: the power limit does. ``lost``: why the device does not answer, None where it does. ``owners`` is None
    where the driver gives no list."""

    index: int
    uuid: str = ""
    name: str | None = None
    pci: str | None = None
    capability: tuple[int, int] | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    utilization_percent: float | None = None
    performance_state: int | None = None
    slowed: tuple[str, ...] = ()
    capped: bool = False
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    default_power_watts: float | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pages_pending: bool | None = None
    persistence: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    max_pcie_generation: int | None = None
    max_pcie_width: int | None = None
    owners: tuple[Owner, ...] | None = None
    owners_incomplete: str | None = None
    lost: str | None = None
    hung: str | None = None
    """The driver's call that has not returned, in words."""
    links: int | None = None
    """NVLinks it has, 0 for none; ``links_active`` of them are up."""
    links_active: int | None = None
    fabric: str | None = None
    """How far it has joined the NVLink fabric: "completed", "in progress" …; "" where it has none."""
    cpus: frozenset[int] | None = None
    """The processors on its socket."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that the driver lists on a device. ``used_bytes`` None: the driver does not tell."""

    pid: int
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """How two GPUs, by index, reach each other. ``crosses``: what lies between them on the PCIe bus, in words;
    ``sockets``: that is the link between sockets. ``no_peer``: why they cannot read each other's memory, "" where they
    can. ``nvlink``: they can over NVLink."""

    first: int
    second: int
    crosses: str | None = None
    sockets: bool | None = None
    no_peer: str | None = None
    nvlink: bool | None = None


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the kernel's log holds since boot: the device's PCI address, the number, how often."""

    pci: str
    number: int
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The torch that is installed, read from its files and not imported. ``cuda`` "13.0", "" for a build without CUDA;
    ``hip`` likewise. ``architectures``: ("sm_80", "compute_90"); None where the wheel does not tell."""

    version: str
    prefix: str
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    architectures: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """What torch itself answered in a child process. ``failure``: how importing it failed, the last line."""

    version: str | None = None
    cuda: str | None = None
    available: bool | None = None
    why_not: str = ""
    architectures: tuple[str, ...] | None = None
    device_count: int | None = None
    nccl: str | None = None
    seconds: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Memory, limits and the like. A soft limit of None is unknown, of -1 unlimited. ``cgroup_*``: of the level that
    binds this process; ``oom_kills`` counts what the kernel killed there for want of memory."""

    kernel: str | None = None
    cpu_count: int | None = None
    allowed_cpus: frozenset[int] | None = None
    """The processors that this process may run on."""
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    memory_stall_percent: float | None = None
    """Share of the last minute in which every task waited for memory (/proc/pressure/memory, full avg60)."""
    shm_total_bytes: int | None = None
    shm_used_bytes: int | None = None
    cgroup_limit_bytes: int | None = None
    cgroup_used_bytes: int | None = None
    oom_kills: int | None = None
    oom_kills_source: str = ""
    pids_limit: int | None = None
    pids_used: int | None = None
    open_files: int | None = None
    open_files_hard: int | None = None
    locked_bytes: int | None = None
    processes: int | None = None
    root: bool = False
    infiniband: tuple[str, ...] = ()
    interfaces: tuple[str, ...] | None = None
    container: str | None = None
    own_pid_namespace: bool = False
    pids_hidden: str | None = None
    """Why the driver's pids mean nothing here; None where they do, or where nothing is hidden."""
    nvidia_pci: tuple[str, ...] | None = None
    """NVIDIA's display controllers on the PCI bus, in words."""
    nvidia_nodes: tuple[str, ...] = ()
    """Device files /dev/nvidia0 and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything. ``devices`` None: NVML could not be asked, ``why["devices"]`` says why and ``driver_code`` is the
    kind of that reason (a code of ``wire.frames``)."""

    devices: tuple[Device, ...] | None = None
    driver_version: str | None = None
    driver_cuda: str | None = None
    driver_code: str = ""
    nvml_note: str | None = None
    host: Host = field(default_factory=Host)
    build: Build | None = None
    torch: Torch | None = None
    torch_asked: bool = False
    packages: Mapping[str, str] = field(default_factory=dict)
    """Installed distributions that matter here, lower-case name → version, of the Python that holds torch."""
    own_packages: Mapping[str, str] = field(default_factory=dict)
    """The same of the Python that runs this."""
    requires: tuple[tuple[str, str], ...] = ()
    """What the installed torch pins exactly: (distribution, version)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    xids: tuple[Xid, ...] | None = None
    paths: tuple[Path, ...] | None = None
    """Between every two of the devices that answer."""
    why: Mapping[str, str] = field(default_factory=dict)


def gib(size: int) -> str:
    """Bytes in the unit that reads best: "3.4 GiB", "64 MiB"."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def version(text: str | None) -> tuple[int, ...]:
    """The leading numbers of a version, () where there are none: "2.13.0+cu130" → (2, 13, 0)."""
    found = []
    for part in (text or "").split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits or len(digits) > 6:
            break
        found.append(int(digits))
        if digits != part:
            break
    return tuple(found)


def names(devices: list[Device]) -> str:
    """ "GPU 0", "GPU 0, 2 and 5"."""
    numbers = [str(device.index) for device in devices]
    return "GPU " + (numbers[0] if len(numbers) == 1 else ", ".join(numbers[:-1]) + " and " + numbers[-1])
