"""The facts of an environment that an agent sends, for the doctor's rules to judge.

They are plain data about one host and one Python. An unknown fact is None (or a name missing from a
mapping), and ``why`` maps the fact's name to the reason. Bytes and counts are ints. Texts are as
the host gave them; a reader on another host must clean them. This module uses only the standard
library and the syntax of Python 3.8.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import FrozenSet, Mapping, Optional, Tuple

__all__ = ["Build", "Device", "Facts", "Host", "Owner", "Path", "Torch", "Xid"]


@dataclass(frozen=True)
class Device:
    """One GPU as NVML describes it.

    ``slowed`` holds the names of the clock-event reasons by which heat or power lower the clock
    now; ``capped`` says whether the power limit does. ``lost`` says why the device does not answer,
    or is None. ``owners`` is None if the driver gives no list of processes.
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
    """The driver's call that has not returned, as text."""
    links: Optional[int] = None
    """The number of its NVLinks, 0 for none; ``links_active`` of them are up."""
    links_active: Optional[int] = None
    fabric: Optional[str] = None
    """How far it has joined the NVLink fabric: "completed", "in progress" …; "" if it has no
    fabric.
    """
    cpus: Optional[FrozenSet[int]] = None
    """The processors on its socket."""


@dataclass(frozen=True)
class Owner:
    """A process that the driver lists on a device.

    ``used_bytes`` is None if the driver does not report it.
    """

    pid: int
    used_bytes: Optional[int] = None


@dataclass(frozen=True)
class Path:
    """How two GPUs, given by index, can reach each other.

    ``crosses`` says what lies between them on the PCIe bus, and ``sockets`` whether that includes
    the link between CPU sockets. ``no_peer`` says why they cannot access each other's memory, "" if
    they can. ``nvlink`` says whether they can over NVLink.
    """

    first: int
    second: int
    crosses: Optional[str] = None
    sockets: Optional[bool] = None
    no_peer: Optional[str] = None
    nvlink: Optional[bool] = None


@dataclass(frozen=True)
class Xid:
    """An XID error in the kernel's log since boot: PCI address, number, and how often it came."""

    pci: str
    number: int
    count: int = 1


@dataclass(frozen=True)
class Build:
    """The torch that is installed, read from its files and not imported.

    ``cuda`` is a version such as "13.0", or "" for a build without CUDA; ``hip`` likewise.
    ``architectures`` is a tuple such as ("sm_80", "compute_90"), or None if the wheel does not list
    them.
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

    If importing torch failed, ``failure`` is the last line of the error.
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
    """The memory and the limits of a host, as they apply to this process.

    A soft limit of None is unknown, and -1 means unlimited. ``cgroup_*`` describe the cgroup whose
    limit applies to this process. ``oom_kills`` counts the processes that the kernel killed in that
    cgroup because memory ran out.
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
    """Share of the last minute in which all tasks waited for memory (``full avg60`` in
    /proc/pressure/memory).
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
    """Why the driver's pids have no meaning in this process's pid namespace, or None if they have.
    """
    nvidia_pci: Optional[Tuple[str, ...]] = None
    """NVIDIA's display controllers on the PCI bus, as text."""
    nvidia_nodes: Tuple[str, ...] = ()
    """Device files /dev/nvidia0 and so on."""


@dataclass(frozen=True)
class Facts:
    """All facts of an environment.

    If NVML could not be asked, ``devices`` is None, ``why["devices"]`` has the reason and
    ``driver_code`` its kind (a code of ``wire.frames``).
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
    """The installed distributions that matter here, lower-case name → version, for the Python that
    holds torch.
    """
    own_packages: Mapping[str, str] = field(default_factory=dict)
    """The same for the Python that runs this code."""
    requires: Tuple[Tuple[str, str], ...] = ()
    """The exact pins of the installed torch: (distribution, version)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    xids: Optional[Tuple[Xid, ...]] = None
    paths: Optional[Tuple[Path, ...]] = None
    """The path between every two of the devices that answer."""
    why: Mapping[str, str] = field(default_factory=dict)
