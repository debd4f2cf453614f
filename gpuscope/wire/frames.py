"""The frames: the dataclasses that travel, their units, and the columns of samples.

The columns come from ``columns.py``. One frame is one line of JSON (NDJSON), and the names of the
fields are the names on the wire; frames that are sent often have short names. The viewer's typed
decoder (``store/decode.py``) uses the same dataclasses as its schema, so each field is defined
once.

A stream begins with ``hello``, followed by definitions: facts about an entity that do not change,
sent once with a small integer id. Samples follow, whose rows hold only numbers, by column. Events
are sent when something happens. Every ``KEY_SECONDS`` a key frame repeats all definitions, so that
a reader can join there. ``bye`` ends the stream. Fields are only ever added to protocol 1: readers
ignore unknown fields and columns.

This module runs inside trainers and on hosts where nothing is installed, so it uses only the
standard library and the syntax of Python 3.8.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Optional, Tuple, Type, Union

from .columns import (  # readers import a frame and its columns from one place
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
"""Every reader refuses a longer line, so that a hostile peer cannot fill its memory."""
MAX_STRING_CHARS = 4096
KEY_SECONDS = 60.0
MAX_RATE_HZ = 10.0

Scalar = Union[int, float, str, bool, None]
Row = List[Scalar]

HOST_ID = 0
"""The id of the host itself. It marks the host's row in table h and the reasons that concern the
whole host: ``[0, "nvml", "driver_error", …]`` says why there are no devices, ``[0, "trainers",
"too_many", …]`` why some trainers are not reported.
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
    """A reading that is not available, with the reason.

    It takes the place of a number, because a missing value is not zero.
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
    container: Optional[str] = None  # docker, kubernetes, podman …; None outside of containers
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
    # Fields from here on are read after the first readings, and again every minute.
    architecture: Optional[str] = None  # "Hopper"
    memory_bus_bits: Optional[int] = None
    max_memory_clock_mhz: Optional[int] = None
    vbios_version: Optional[str] = None
    minor: Optional[int] = None  # of /dev/nvidiaN
    ecc_enabled: Optional[bool] = None
    ecc_pending: Optional[bool] = None  # its value after the next reset
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
    numa_node: Optional[str] = None  # NUMA nodes nearest to the GPU: "0", "0-1"
    cpu_affinity: Optional[str] = None  # cores nearest to the GPU: "0-23,48-71"
    nvlink_states: Optional[str] = None  # a digit per link, 1 if it is up; "" without NVLink
    # one word per GPU, by index: X itself, NV18, PIX, PXB, PHB, NODE, SYS, INT, ? unknown
    topology: Optional[str] = None
    peer_access: Optional[str] = None  # one word per GPU, by index: X itself, yes, no, ? unknown
    # state of joining the NVLink fabric: completed, failed …; "none" without a fabric
    fabric: Optional[str] = None


@dataclass
class ProcDef:
    """A process, keyed by (host, pid, start).

    ``start`` is its kernel start time in clock ticks since boot; another process that gets the same
    pid has another start time. For processes of other users the agent cuts ``command`` to the
    program's name, unless it is asked not to.
    """

    pid: int
    start: Optional[int] = None
    start_time: Optional[float] = None  # wall clock, seconds since the epoch
    user: Optional[str] = None
    command: Optional[str] = None
    name: Optional[str] = None
    ppid: Optional[int] = None
    mine: bool = False  # same uid as the agent
    # "docker 3f2a91c07d1e", from its control group; None if that names no container
    container: Optional[str] = None
    pod: Optional[str] = None  # uid of its Kubernetes pod
    slurm_job: Optional[str] = None


@dataclass
class UseDef:
    """One process on one device. Its row holds the bytes that the process uses there."""

    proc: int
    gpu: int


@dataclass
class TrainerDef:
    """A process with our probe in it.

    The agent fills in ``proc``. The ranks of one job have the same ``job``.
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
    cuda: bool = False  # whether CUDA was initialised in the trainer
    # PYTORCH_ALLOC_CONF, or the variable of its older name, at the start of the process
    allocator_settings: Optional[str] = None
    pod: Optional[str] = None  # the Kubernetes pod, if the trainer runs in one
    # cores it may use, by its affinity and the CPU quota of its cgroup
    cores: Optional[float] = None
    step_source: Optional[str] = None  # what a step is: "optimizer steps", or else what and why
    # the package whose trainer runs the loop, such as "transformers"; None for the user's own loop
    framework: Optional[str] = None


@dataclass
class AllocDef:
    """One trainer's memory on one device.

    ``ordinal`` is torch's own number (``cuda:N``), or -1 for the CPU. ``uuid`` identifies the card.
    ``gpu`` is the agent's id for it, or None (with a why row) if the mapping is unknown.
    """

    trainer: int
    ordinal: int
    uuid: Optional[str] = None
    gpu: Optional[int] = None


# ── frames ────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Hello:
    """The first line of a stream and of a recording.

    ``t`` (wall clock, seconds) and ``m`` (monotonic clock, ns) are read at the same moment. So
    every later ``m`` can be converted to a wall time, even if the wall clock is set meanwhile.
    """

    role: str = "agent"  # agent | probe
    v: int = PROTOCOL
    version: str = ""  # version of gpuscope
    host: str = ""
    boot: str = ""
    py: str = ""
    pid: int = 0
    uid: int = -1
    t: float = 0.0
    m: int = 0
    hz: float = 0.0
    cols: Dict[str, List[str]] = field(default_factory=dict)
    requests: List[str] = field(default_factory=list)  # the requests that this end serves
    nonce: str = ""

    @property
    def refusal(self) -> str:
        """Why a sender of another protocol is not listened to, "" for one of ours."""
        if self.v == PROTOCOL:
            return ""
        said = f"gpuscope {self.version[:40]} there speaks protocol {self.v}, this one {PROTOCOL}"
        return f"{said}: bring both to the same version"


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

    An entity without a row has no new reading in this tick. ``why`` rows ``[id, column, code,
    text]`` are sent when a reason changes and after a key frame; the code "" means that the reason
    no longer holds. ``ago`` rows ``[id, milliseconds]`` say how long before ``m`` a row was read.
    They are sent where rows of different readers are compared: for allocators, and for the devices
    and uses that they are compared with.
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

    ``n`` lines with definitions follow, and the next sample carries all reasons that hold.
    """

    q: int
    m: int
    t: float
    n: int


@dataclass
class Bye:
    """The last frame: ``why`` is one of the words below, or the exception or the exit code."""

    why: str = ""


PROGRAM_ENDED, INTERRUPTED = "the program has ended", "interrupted with Ctrl-C (KeyboardInterrupt)"
PROBE_REMOVED, DETACHED = "it was removed", "detached on request"
UNWATCHED = "no viewer has been connected for long"
"""Why a probe ends: with its program, or, by the last three, while the program continues."""
EXITED = "exited: "
"""Begins the reason of an end if the program's last words are known; they follow."""
NOT_ANSWERED = "NVML has not answered yet"
NO_LAST_WORDS = "ended without a message (a signal, a crash or os._exit)"
"""The reason of an end if a trainer vanished and its probe had sent no last words."""
AFTER_OUT_OF_MEMORY = "it ended right after an out-of-memory error"


# ── requests and their answers ────────────────────────────────────────────────────────────────────

REQUESTS = (
    "rate", "snapshot", "history", "profile", "stacks", "inject", "detach", "signal", "environment",
    "cancel", "statistics", "modules", "holders", "growth", "recent", "time",
    "look", "work",
)  # fmt: skip
"""The requests that a viewer may send, a closed set. The decoder refuses any other name."""
EXCLUSIVE = frozenset(("snapshot", "history", "profile", "look", "work", "stacks", "inject"))
"""Of these requests a trainer serves only one at a time; a second one gets the error ``busy``."""


@dataclass
class Request:
    """A request. Unlike other frames it has ``r`` in place of ``k``.

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
    """The failure of a request.

    ``code``: busy, unsupported, refused, unfinished, timeout, cancelled, gone, failed. Whoever did
    not finish in time says so itself; after a timeout nothing has answered.
    """

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
    """Viewer → agent, at least every 10 s. An agent that receives nothing for 30 s ends itself."""

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
"""The field names of every dataclass that travels, in the order of their definition."""
