"""Define the immutable picture that panels, verbs and rules read.

There is one :class:`View` per update, made by ``store.Store``.

Entities carry their static definition (a dataclass of ``wire.frames``) and their last readings by
column name (the ``*_COLUMNS`` of ``wire.frames``). A reading is a number or a string, or
:class:`~gpuscope.wire.frames.Unknown` with a reason; it is never 0 for missing. Everything here is
frozen and safe to hand between threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..wire.frames import (
    AllocDef,
    Event,
    GpuDef,
    HostDef,
    ProcDef,
    Reading,
    Scalar,
    TrainerDef,
    Unknown,
)
from .step_points import StepPoints
from .time_minutes import Minute

NOT_SENT = Unknown("not_sent", "no reading yet")
"""A column no sample has carried so far. Local to the viewer, never on the wire."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The end of an entity.

    It says when (seconds on the host's monotonic clock, and wall clock, None where the host told
    none that can be) and why, in words.
    """

    monotonic_seconds: float
    wall_seconds: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Entity:
    """What all entities share.

    ``key`` is stable across reconnects and recordings (a device's UUID, a process's ``pid:start``);
    ``id`` is the small integer of this stream, also the handle for ``Store.history``.
    """

    id: int
    key: str
    readings: Mapping[str, Reading]
    # host's monotonic clock when the last row was read; None before the first
    sampled_seconds: float | None
    gone: Gone | None

    def reading(self, column: str) -> Reading:
        """The last reading of ``column``, or an :class:`Unknown` that says why there is none."""
        return self.readings.get(column, NOT_SENT)

    def number(self, column: str) -> float | None:
        """Return the last reading as a number, ``None`` when it is unknown.

        :meth:`reading` has the reason.
        """
        value = self.readings.get(column)
        return value if isinstance(value, (int, float)) else None


@dataclass(frozen=True, slots=True)
class UseView(Entity):
    """One process on one device; column ``used_bytes``."""

    process: int
    gpu: int


@dataclass(frozen=True, slots=True)
class AllocView(Entity):
    """A trainer's memory on one device: columns ``ALLOCATOR_COLUMNS``.

    ``gpu`` is the device's id, None if unmapped. ``step_points`` are its bytes after each step,
    None before the first; ``model.growth`` says what they come to.
    """

    definition: AllocDef
    gpu: int | None
    step_points: StepPoints | None = None


@dataclass(frozen=True, slots=True)
class ProcView(Entity):
    """A process: columns ``PROCESS_COLUMNS`` and its uses of devices.

    ``trainer`` is the trainer in it, if a probe answers there.
    """

    definition: ProcDef
    uses: tuple[UseView, ...]
    trainer: int | None


@dataclass(frozen=True, slots=True)
class TrainerView(Entity):
    """A process with a probe: columns ``TRAINER_COLUMNS`` and one allocator per device it uses.

    ``minutes`` are what its probe booked of its time, the oldest first; ``model.time_ledger`` reads
    them. ``look`` is what the last look at its device has found, None where nobody has taken one;
    ``model.look`` reads it.
    """

    definition: TrainerDef
    process: int | None
    allocators: tuple[AllocView, ...]
    minutes: tuple[Minute, ...] = ()
    look: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DeviceView(Entity):
    """A device: columns ``DEVICE_COLUMNS``, its users and its allocators.

    Its users are :class:`UseView`; the allocators are those that live on it.
    """

    definition: GpuDef
    uses: tuple[UseView, ...]
    allocators: tuple[AllocView, ...]


@dataclass(frozen=True, slots=True)
class JobView:
    """The ranks of one job, or one trainer by itself, or one process without a probe.

    ``trainers`` are sorted by rank and empty when nobody of the job has a probe. ``key`` is the job
    key, else the process key.
    """

    key: str
    title: str  # the script or command, short
    user: str | None
    mine: bool
    trainers: tuple[TrainerView, ...]
    processes: tuple[ProcView, ...]


LinkState = Literal["connecting", "live", "stale", "ended", "replay"]


@dataclass(frozen=True, slots=True)
class Link:
    """The state of a source.

    ``text`` says in words why it is not live; ``age_seconds`` since its last frame.
    """

    state: LinkState
    text: str = ""
    age_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """What belongs on the time axis of a chart.

    It is an event of kind oom, retry, stall, resumed or phase of the entity ``id``, at ``seconds``
    on the host's monotonic clock. Kept apart from the log, where others would displace it.
    """

    id: int
    kind: str
    seconds: float
    text: str = ""
    data: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostView(Entity):
    """One host as one source tells it.

    ``badge`` is REPLAY or SIMULATED where the numbers are not live.
    """

    name: str
    definition: HostDef
    link: Link
    badge: str
    rate_hz: float | None
    nvml: Unknown | None  # why there are no devices, None when the driver answers
    wall_seconds: float | None  # wall clock of the last sample
    devices: tuple[DeviceView, ...]
    processes: tuple[ProcView, ...]
    trainers: tuple[TrainerView, ...]
    jobs: tuple[JobView, ...]
    events: tuple[Event, ...]  # newest last, bounded
    marks: tuple[Mark, ...] = ()  # oldest first, bounded

    @property
    def unread(self) -> Unknown | None:
        """Why not all trainers of this host are told; None where they are."""
        reason = self.readings.get("trainers")
        return reason if isinstance(reason, Unknown) else None

    @property
    def hidden(self) -> Unknown | None:
        """Why the pids that the driver names are not those of the host's processes.

        They are on ``devices``, and differ as in a container; None where they are the same.
        """
        reason = self.readings.get("processes")
        return reason if isinstance(reason, Unknown) else None


@dataclass(frozen=True, slots=True)
class View:
    """All hosts at one moment.

    ``version`` grows with every change: equal versions are equal views.
    """

    version: int
    hosts: tuple[HostView, ...]

    @property
    def host(self) -> HostView | None:
        """The only or first host: what a local session shows."""
        return self.hosts[0] if self.hosts else None


@dataclass(frozen=True, slots=True)
class History:
    """A column over time.

    ``seconds`` are on the host's monotonic clock, oldest first; a value is ``None`` where it was
    unknown. What lies before ``seen_since`` was not seen here but told later, by a probe or by the
    driver; None where all was seen.
    """

    seconds: tuple[float, ...] = ()
    values: tuple[float | None, ...] = ()
    seen_since: float | None = None

    def __len__(self) -> int:
        return len(self.seconds)


HistoryOf = Callable[[int, str, float | None], History]
"""(entity id, column, of the last how many seconds or None for all) → its history on the host in
question.
"""


def no_history(_id: int, _column: str, _seconds: float | None) -> History:
    """The history of a picture alone: nothing is known of before."""
    return History()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a source can do.

    ``actions``: name of an action → "" when it can, else the reason it cannot (shown greyed beside
    it).
    """

    actions: Mapping[str, str] = field(default_factory=dict)

    def why_not(self, action: str) -> str:
        """ "" when the action is possible, else the reason."""
        return self.actions.get(action, "this source does not support it")
