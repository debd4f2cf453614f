"""The frames: the dataclasses that travel, their units, and the columns of samples.

The columns are from ``columns.py``. One frame is one line of JSON (NDJSON). Field names here
are the names on the wire; hot frames have short ones. The same dataclasses are the schema of
the viewer's typed decoder (``store/decode.py``), so that a field is defined once.

A stream is: ``hello``, then definitions (static facts, once, with a small integer id), then samples
whose rows carry only numbers, by column; events when something happens; every ``KEY_SECONDS`` a key
frame that repeats all definitions, so that a reader can join there; ``bye``. Protocol 1 only ever
grows: readers ignore unknown fields, kinds and columns.

This module runs inside trainers and on bare hosts: stdlib only, Python 3.8 syntax.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Optional, Tuple, Type, Union

from .columns import (  # one import for readers: a frame and its columns belong together
    ALLOCATOR_COLUMNS as ALLOCATOR_COLUMNS,
    COLUMNS as COLUMNS,
    DEVICE_COLUMNS as DEVICE_COLUMNS,
    HOST_COLUMNS as HOST_COLUMNS,
    KEPT as KEPT,
    PROCESS_COLUMNS as PROCESS_COLUMNS,
    TABLES as TABLES,
    TEXT_COLUMNS as TEXT_COLUMNS,
    TRAINER_COLUMNS as TRAINER_COLUMNS,
    USE_COLUMNS as USE_COLUMNS,
)

PROTOCOL = 1
MAX_LINE_BYTES = 1 << 20
"""A longer line is refused by every reader: a hostile peer must not make us hold it."""
MAX_STRING_CHARS = 4096
KEY_SECONDS = 60.0
MAX_RATE_HZ = 10.0

Scalar = Union[int, float, str, bool, None]
Row = List[Scalar]

HOST_ID = 0
"""The host's own id: its row in table h, and host-wide reasons: ``[0, "nvml", "driver_error", …]``
why there are no devices, ``[0, "trainers", "too_many", …]`` why not all trainers are told.
"""

# ── reasons for unknowns ──────────────────────────────────────────────────────────────────────────

NOT_SUPPORTED = "not_supported"
LOST = "lost"
NO_PERMISSION = "no_permission"
HIDDEN_BY_CONTAINER = "hidden_by_container"
TIMEOUT = "timeout"
NOT_INITIALISED = "not_initialised"
DRIVER_ERROR = "driver_error"
TOO_MANY = "too_many"
CODES = (
    NOT_SUPPORTED,
    LOST,
    NO_PERMISSION,
    HIDDEN_BY_CONTAINER,
    TIMEOUT,
    NOT_INITIALISED,
    DRIVER_ERROR,
    TOO_MANY,
)


@dataclass(frozen=True)
class Unknown:
    """A reading that could not be had, and why.

    It stands where a number would: missing is not zero.
    """

    code: str
    text: str

    def __bool__(self) -> bool:
        return False


Reading = Union[int, float, str, Unknown]

# ── definitions ───────────────────────────────────────────────────────────────────────────────────


@dataclass
class HostDef:
    """The static facts of the host.

    Bytes are ints; ``None`` where unknown, with a why row ``[0, field, code, text]``.
    """

    cpu_count: Optional[int] = None
    memory_total_bytes: Optional[int] = None
    shm_total_bytes: Optional[int] = None
    cgroup_memory_limit_bytes: Optional[int] = None
    kernel: Optional[str] = None
    container: Optional[str] = None  # docker, kubernetes, podman …: only when inside one
    driver_version: Optional[str] = None
    cuda_driver_version: Optional[str] = None  # "13.0"


@dataclass
class GpuDef:
    """Static facts of a device. Keyed by UUID; the index is display only."""

    uuid: str
    index: int
    name: Optional[str] = None
    pci_bus_id: Optional[str] = None
    total_bytes: Optional[int] = None
    compute_capability: Optional[str] = None  # "9.0"
    max_sm_clock_mhz: Optional[int] = None
    max_pcie_generation: Optional[int] = None
    max_pcie_width: Optional[int] = None
    # What is read after the first readings, and again each minute.
    architecture: Optional[str] = None  # "Hopper"
    memory_bus_bits: Optional[int] = None
    max_memory_clock_mhz: Optional[int] = None
    vbios_version: Optional[str] = None
    minor: Optional[int] = None  # of /dev/nvidiaN
    ecc_enabled: Optional[bool] = None
    ecc_pending: Optional[bool] = None  # after the next reset
    mig_enabled: Optional[bool] = None
    mig_pending: Optional[bool] = None
    mig_instances: Optional[str] = None  # "0: MIG-UUID NAME; 1: …", "" for none
    default_power_limit_watts: Optional[float] = None
    min_power_limit_watts: Optional[float] = None
    max_power_limit_watts: Optional[float] = None
    slowdown_celsius: Optional[int] = None
    shutdown_celsius: Optional[int] = None
    persistence: Optional[bool] = None
    compute_mode: Optional[str] = None  # default, exclusive process, prohibited
    numa_node: Optional[str] = None  # nodes nearest to the GPU: "0", "0-1"
    cpu_affinity: Optional[str] = None  # cores nearest to the GPU: "0-23,48-71"
    nvlink_states: Optional[str] = None  # a digit a link, 1 up, 0 down; "" without NVLink
    # a word a GPU, by index: X itself, NV18, PIX, PXB, PHB, NODE, SYS, INT, ? unknown
    topology: Optional[str] = None
    peer_access: Optional[str] = None  # a word a GPU, by index: X itself, yes, no, ? unknown
    # joining the NVLink fabric: completed, failed …; "none" without one
    fabric: Optional[str] = None


@dataclass
class ProcDef:
    """A process, keyed by (host, pid, start).

    ``start`` is its kernel start time in clock ticks since boot: a reused pid has another.
    ``command`` of other users is cut by the agent to the program's name unless asked otherwise.
    """

    pid: int
    start: Optional[int] = None
    start_time: Optional[float] = None  # wall clock, seconds since the epoch
    user: Optional[str] = None
    command: Optional[str] = None
    name: Optional[str] = None
    ppid: Optional[int] = None
    mine: bool = False  # same uid as the agent
    # "docker 3f2a91c07d1e": from its control group; None in none that can be told
    container: Optional[str] = None
    pod: Optional[str] = None  # uid of its Kubernetes pod
    slurm_job: Optional[str] = None


@dataclass
class UseDef:
    """One process on one device: the row that carries its bytes there."""

    proc: int
    gpu: int


@dataclass
class TrainerDef:
    """A process with our probe in it.

    ``proc`` is filled by the agent; ``job`` joins the ranks of one job.
    """

    pid: int
    start: Optional[int] = None
    proc: Optional[int] = None
    rank: Optional[int] = None
    local_rank: Optional[int] = None
    world_size: Optional[int] = None
    job: Optional[str] = None
    script: Optional[str] = None
    torch_version: Optional[str] = None
    python_version: Optional[str] = None
    backend: Optional[str] = None  # allocator backend: native, cudaMallocAsync; None without CUDA
    origin: Optional[str] = None  # run, watch, lab, enable, inject
    cuda: bool = False  # CUDA initialised in the trainer
    # PYTORCH_ALLOC_CONF or its older name, as the process was started with
    allocator_settings: Optional[str] = None
    pod: Optional[str] = None  # of Kubernetes, where the trainer runs in one
    # that it may use: by its affinity and the CPU quota of its cgroup
    cores: Optional[float] = None
    step_source: Optional[str] = None  # what is counted: "optimizer steps", or what else and why


@dataclass
class AllocDef:
    """One trainer's memory on one device.

    ``ordinal`` is torch's own number (``cuda:N``), -1 the CPU. ``uuid`` says which card that
    is, and ``gpu`` is the agent's id for it: None where the mapping is unknown (with a why
    row).
    """

    trainer: int
    ordinal: int
    uuid: Optional[str] = None
    gpu: Optional[int] = None


# ── frames ────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Hello:
    """The first line of a stream and of a recording.

    ``t`` in wall seconds and ``m`` in monotonic ns are read together, so that every later ``m``
    has a wall time which no clock step can bend.
    """

    role: str = "agent"  # agent | probe
    v: int = PROTOCOL
    proto: List[int] = field(default_factory=lambda: [PROTOCOL, PROTOCOL])
    version: str = ""  # of gpuscope
    host: str = ""
    boot: str = ""
    py: str = ""
    pid: int = 0
    uid: int = -1
    t: float = 0.0
    m: int = 0
    hz: float = 0.0
    cols: Dict[str, List[str]] = field(default_factory=dict)
    requests: List[str] = field(default_factory=list)  # which requests this end serves
    nonce: str = ""


@dataclass
class Def:
    """The static facts of one entity. Exactly one of the kinds is set.

    Ids are never reused within a stream; a second definition of the same id replaces the first.
    """

    id: int
    host: Optional[HostDef] = None
    gpu: Optional[GpuDef] = None
    proc: Optional[ProcDef] = None
    use: Optional[UseDef] = None
    trainer: Optional[TrainerDef] = None
    alloc: Optional[AllocDef] = None


@dataclass
class Sample:
    """The readings of one tick: rows by table, columns as in ``hello.cols``; null is unknown.

    An entity without a row this tick has no new reading. ``why`` rows ``[id, column, code,
    text]`` travel on change and after a key frame; code "" means the reason no longer holds.
    ``ago`` rows ``[id, milliseconds]`` say how long before ``m`` a row was read, where rows of
    different readers are compared: allocators, and the devices and uses beside them.
    """

    q: int
    m: int
    h: List[Row] = field(default_factory=list)
    g: List[Row] = field(default_factory=list)
    p: List[Row] = field(default_factory=list)
    u: List[Row] = field(default_factory=list)
    t: List[Row] = field(default_factory=list)
    a: List[Row] = field(default_factory=list)
    why: List[List[Union[int, str]]] = field(default_factory=list)
    ago: List[List[int]] = field(default_factory=list)


@dataclass
class Event:
    """Something that happened to entity ``id``.

    ``e`` is gone, oom, retry, stall, resumed, phase, attach, detach, gap, dropped, problem,
    skip or note. What ``data`` holds depends on it: see docs/protocol.md.
    """

    id: int
    e: str
    m: int
    text: str = ""
    data: Dict[str, Scalar] = field(default_factory=dict)


@dataclass
class Key:
    """A place to join a stream.

    ``n`` definition lines follow, and the next sample carries every reason that holds.
    """

    q: int
    m: int
    t: float
    n: int


@dataclass
class Bye:
    why: str = ""


# ── requests and their answers ────────────────────────────────────────────────────────────────────

REQUESTS = (
    "rate", "snapshot", "history", "profile", "stacks", "inject", "detach", "signal", "environment",
    "cancel", "statistics", "modules", "holders", "growth", "recent", "time",
    "look",
)  # fmt: skip
"""Closed enum: what a viewer may ask. A name that is not here is refused by the decoder."""
EXCLUSIVE = frozenset(("snapshot", "history", "profile", "look", "stacks", "inject"))
"""At most one of these at a time per trainer; a second gets error ``busy``."""


@dataclass
class Request:
    """A request: it has ``r`` instead of ``k``.

    It is ``{"r": name, "id": n, "args": {...}, "deadline": seconds from receipt}``.
    """

    r: str
    id: int
    args: Dict[str, Scalar] = field(default_factory=dict)
    deadline: float = 10.0


@dataclass
class Ack:
    id: int


@dataclass
class Progress:
    id: int
    fraction: Optional[float] = None
    text: str = ""


@dataclass
class Result:
    id: int
    value: Dict[str, Any] = field(default_factory=dict)


@dataclass
class Error:
    """``code``: busy, unsupported, refused, timeout, cancelled, gone, failed."""

    id: int
    code: str
    reason: str = ""


@dataclass
class Blob:
    """A chunk of a compressed blob that belongs to request ``id``.

    ``data`` is base64 of at most 128 KiB; the last chunk carries the sha256 of the whole
    compressed content. ``size`` is the total, where known.
    """

    id: int
    n: int
    data: str = ""
    last: bool = False
    size: Optional[int] = None
    sha256: str = ""


@dataclass
class Credit:
    """Receiver → sender: ``n`` more chunks of blob ``id`` may be sent."""

    id: int
    n: int


@dataclass
class Ping:
    """Viewer → agent, at least every 10 s; an agent that hears nothing for 30 s ends itself."""

    t: float = 0.0


@dataclass
class Pong:
    t: float = 0.0
    m: int = 0


Frame = Union[
    Hello,
    Def,
    Sample,
    Event,
    Key,
    Bye,
    Request,
    Ack,
    Progress,
    Result,
    Error,
    Blob,
    Credit,
    Ping,
    Pong,
]

KINDS: Dict[str, Type[Any]] = {
    "hello": Hello,
    "def": Def,
    "s": Sample,
    "ev": Event,
    "key": Key,
    "bye": Bye,
    "ack": Ack,
    "progress": Progress,
    "result": Result,
    "error": Error,
    "blob": Blob,
    "credit": Credit,
    "ping": Ping,
    "pong": Pong,
}
DEFINITIONS: Dict[str, Type[Any]] = {
    "host": HostDef,
    "gpu": GpuDef,
    "proc": ProcDef,
    "use": UseDef,
    "trainer": TrainerDef,
    "alloc": AllocDef,
}
NAMES: Dict[Type[Any], Tuple[str, ...]] = {
    cls: tuple(f.name for f in fields(cls))
    for cls in [*KINDS.values(), Request, *DEFINITIONS.values()]
}
"""Field names of every dataclass that travels, in order of definition."""
