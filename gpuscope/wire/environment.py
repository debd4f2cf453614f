"""The facts of an environment that an agent sends, for the doctor's rules to judge.

They are plain data about one host and one Python. Stdlib only, Python 3.8 syntax. Unknown is
None (or a name missing from a mapping), and ``why`` says for what reason, by the name of the
fact. Bytes and counts are ints. Texts are as the host gave them; whoever reads them from
elsewhere cleans them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import FrozenSet, Mapping, Optional, Tuple

__all__ = ["Build", "Device", "Facts", "Host", "Owner", "Path", "Torch", "Xid"]


@dataclass(frozen=True)
class Device:
    """One GPU as NVML describes it.

    ``slowed`` has the clock-event words which say that heat or power hold the clock down now;
    ``capped``: the power limit does. ``lost`` says why the device does not answer, None where
    it does. ``owners`` is None where the driver gives no list.
    """

    index: int
    uuid: str = ""
    name: Optional[str] = None
    pci: Optional[str] = None
    capability: Optional[Tuple[int, int]] = None
    total_bytes: Optional[int] = None
    used_bytes: Optional[int] = None
    reserved_bytes: Optional[int] = None
    utilization_percent: Optional[float] = None
    performance_state: Optional[int] = None
    slowed: Tuple[str, ...] = ()
    capped: bool = False
    temperature_celsius: Optional[float] = None
    power_watts: Optional[float] = None
    power_limit_watts: Optional[float] = None
    default_power_watts: Optional[float] = None
    ecc_uncorrected: Optional[int] = None
    remap_pending: Optional[bool] = None
    remap_failed: Optional[bool] = None
    pages_pending: Optional[bool] = None
    persistence: Optional[bool] = None
    pcie_generation: Optional[int] = None
    pcie_width: Optional[int] = None
    max_pcie_generation: Optional[int] = None
    max_pcie_width: Optional[int] = None
    owners: Optional[Tuple[Owner, ...]] = None
    owners_incomplete: Optional[str] = None
    lost: Optional[str] = None
    hung: Optional[str] = None
    """The driver's call that has not returned, in words."""
    links: Optional[int] = None
    """NVLinks it has, 0 for none; ``links_active`` of them are up."""
    links_active: Optional[int] = None
    fabric: Optional[str] = None
    """How far it has joined the NVLink fabric: "completed", "in progress" …; "" where it has none.
    """
    cpus: Optional[FrozenSet[int]] = None
    """The processors on its socket."""


@dataclass(frozen=True)
class Owner:
    """A process that the driver lists on a device.

    ``used_bytes`` is None where the driver does not tell.
    """

    pid: int
    used_bytes: Optional[int] = None


@dataclass(frozen=True)
class Path:
    """How two GPUs, by index, reach each other.

    ``crosses`` says what lies between them on the PCIe bus; ``sockets``: that is the link
    between sockets. ``no_peer`` says why they cannot read each other's memory, "" where they
    can. ``nvlink``: they can over NVLink.
    """

    first: int
    second: int
    crosses: Optional[str] = None
    sockets: Optional[bool] = None
    no_peer: Optional[str] = None
    nvlink: Optional[bool] = None


@dataclass(frozen=True)
class Xid:
    """An error in the kernel's log since boot: PCI address, number, and how often."""

    pci: str
    number: int
    count: int = 1


@dataclass(frozen=True)
class Build:
    """The torch that is installed, read from its files and not imported.

    ``cuda`` is "13.0", or "" for a build without CUDA; ``hip`` likewise. ``architectures`` is
    ("sm_80", "compute_90"), None where the wheel does not tell.
    """

    version: str
    prefix: str
    cuda: Optional[str] = None
    hip: Optional[str] = None
    xpu: Optional[str] = None
    architectures: Optional[Tuple[str, ...]] = None


@dataclass(frozen=True)
class Torch:
    """What torch itself answered in a child process.

    ``failure`` is the last line of how importing it failed.
    """

    version: Optional[str] = None
    cuda: Optional[str] = None
    available: Optional[bool] = None
    why_not: str = ""
    architectures: Optional[Tuple[str, ...]] = None
    device_count: Optional[int] = None
    nccl: Optional[str] = None
    seconds: float = 0.0
    failure: str = ""


@dataclass(frozen=True)
class Host:
    """The memory and the limits of a host, as they bind this process.

    A soft limit of None is unknown, one of -1 unlimited. ``cgroup_*`` are of the level that
    binds this process; ``oom_kills`` counts what the kernel killed there for want of memory.
    """

    kernel: Optional[str] = None
    cpu_count: Optional[int] = None
    allowed_cpus: Optional[FrozenSet[int]] = None
    """The processors that this process may run on."""
    memory_total_bytes: Optional[int] = None
    memory_available_bytes: Optional[int] = None
    swap_total_bytes: Optional[int] = None
    swap_used_bytes: Optional[int] = None
    memory_stall_percent: Optional[float] = None
    """Share of the last minute in which every task waited for memory (/proc/pressure/memory, full
    avg60).
    """
    shm_total_bytes: Optional[int] = None
    shm_used_bytes: Optional[int] = None
    cgroup_limit_bytes: Optional[int] = None
    cgroup_used_bytes: Optional[int] = None
    oom_kills: Optional[int] = None
    oom_kills_source: str = ""
    pids_limit: Optional[int] = None
    pids_used: Optional[int] = None
    open_files: Optional[int] = None
    open_files_hard: Optional[int] = None
    locked_bytes: Optional[int] = None
    processes: Optional[int] = None
    root: bool = False
    infiniband: Tuple[str, ...] = ()
    interfaces: Optional[Tuple[str, ...]] = None
    container: Optional[str] = None
    own_pid_namespace: bool = False
    pids_hidden: Optional[str] = None
    """Why the driver's pids mean nothing here; None where they do, or where nothing is hidden."""
    nvidia_pci: Optional[Tuple[str, ...]] = None
    """NVIDIA's display controllers on the PCI bus, in words."""
    nvidia_nodes: Tuple[str, ...] = ()
    """Device files /dev/nvidia0 and so on."""


@dataclass(frozen=True)
class Facts:
    """All facts of an environment.

    Where ``devices`` is None NVML could not be asked: ``why["devices"]`` says why, and
    ``driver_code`` is the kind of that reason (a code of ``wire.frames``).
    """

    devices: Optional[Tuple[Device, ...]] = None
    driver_version: Optional[str] = None
    driver_cuda: Optional[str] = None
    driver_code: str = ""
    nvml_note: Optional[str] = None
    host: Host = field(default_factory=Host)
    build: Optional[Build] = None
    torch: Optional[Torch] = None
    torch_asked: bool = False
    packages: Mapping[str, str] = field(default_factory=dict)
    """Installed distributions that matter here, lower-case name → version, of the Python that holds
    torch.
    """
    own_packages: Mapping[str, str] = field(default_factory=dict)
    """The same of the Python that runs this."""
    requires: Tuple[Tuple[str, str], ...] = ()
    """What the installed torch pins exactly: (distribution, version)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    xids: Optional[Tuple[Xid, ...]] = None
    paths: Optional[Tuple[Path, ...]] = None
    """Between every two of the devices that answer."""
    why: Mapping[str, str] = field(default_factory=dict)
