"""Define the immutable picture that panels, verbs and rules read.

There is one :class:`View` per update, made by ``store.Store``.

Entities carry their static definition (a dataclass of ``wire.frames``) and their last readings by
column name (the ``*_COLUMNS`` of ``wire.frames``). A reading is a number or a string, or
:class:`~gpuscope.wire.frames.Unknown` with a reason; a missing value is never 0. Everything here is
frozen, so it may be passed between threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

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

LOCAL = "local"
"""The key of this machine: of its source, and of its host."""
NOT_SENT = Unknown("not_sent", "no reading yet")
"""The code for a column that no sample has carried so far. The viewer sets it; it is never sent."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The end of an entity: when and why.

    ``wall_seconds`` is None if the host sent no valid wall time, and ``reason`` is in words.
    """

    monotonic_seconds: float
    wall_seconds: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Entity:
    """The fields that all entities share.

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
        """Return the last reading of ``column``, or an :class:`Unknown` with the reason."""
        return self.readings.get(column, NOT_SENT)

    def number(self, column: str) -> float | None:
        """Return the last reading as a number, ``None`` if it is unknown.

        :meth:`reading` has the reason.
        """
        value = self.readings.get(column)
        return value if isinstance(value, (int, float)) else None

    def unknown(self, column: str) -> Unknown | None:
        """Return why a column or a list is unknown, ``None`` if it is known or nobody says."""
        why = self.readings.get(column)
        return why if isinstance(why, Unknown) else None


@dataclass(frozen=True, slots=True)
class UseView(Entity):
    """One process on one device; column ``used_bytes``."""

    process: int
    gpu: int


@dataclass(frozen=True, slots=True)
class AllocView(Entity):
    """A trainer's memory on one device: columns ``ALLOCATOR_COLUMNS``.

    ``gpu`` is the device's id, None if it could not be matched. ``step_points`` are its bytes after
    each step, None before the first; ``model.growth`` judges them.
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

    ``trainers`` are sorted by rank, and empty if no process of the job has a probe. ``key`` is the
    job key, else the process key.
    """

    key: str
    title: str  # the script or command, shortened
    user: str | None
    mine: bool
    trainers: tuple[TrainerView, ...]
    processes: tuple[ProcView, ...]


RECORDING_ENDS = "end of the recording"
"""What the link of a replay says at its end, where nothing is wrong with the file."""
LinkState = Literal["connecting", "live", "stale", "ended", "replay"]
AGAIN = "; trying again"
"""What the text of a link has between why it failed and when it is tried again."""


@dataclass(frozen=True, slots=True)
class Link:
    """The state of a source.

    ``text`` says in words why it is not live; ``age_seconds`` since its last frame. ``retry_at`` is
    when it is tried again, on the viewer's monotonic clock; None where nobody waits for that.
    """

    state: LinkState
    text: str = ""
    age_seconds: float | None = None
    retry_at: float | None = None

    @property
    def failed(self) -> bool:
        """Whether connecting failed or the connection was lost, be it tried again or not."""
        return self.state == "ended" or self.retry_at is not None

    @property
    def reason(self) -> str:
        """The text without when it is tried again."""
        return self.text.partition(AGAIN)[0]


@dataclass(frozen=True, slots=True)
class Mark:
    """An event that is marked on the time axis of charts.

    Its kind is oom, retry, stall, resumed or phase, and it concerns the entity ``id`` at
    ``seconds`` on the host's monotonic clock. Marks are kept apart from the log, where other
    messages would displace them.
    """

    id: int
    kind: str
    seconds: float
    text: str = ""
    data: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostView(Entity):
    """One host as one source describes it.

    ``badge`` is REPLAY or SIMULATED if the numbers are not live.
    """

    name: str
    definition: HostDef
    link: Link
    badge: str
    rate_hz: float | None
    nvml: Unknown | None  # why there are no devices; None if the driver answered
    wall_seconds: float | None  # wall clock of the last sample
    devices: tuple[DeviceView, ...]
    processes: tuple[ProcView, ...]
    trainers: tuple[TrainerView, ...]
    jobs: tuple[JobView, ...]
    events: tuple[Event, ...]  # newest last, bounded
    marks: tuple[Mark, ...] = ()  # oldest first, bounded
    began_wall_seconds: float | None = None  # wall clock of the first sample that is known

    @property
    def unread(self) -> Unknown | None:
        """Return why some trainers of this host are not shown; None if all are."""
        return self.unknown("trainers")

    @property
    def hidden(self) -> Unknown | None:
        """Return why the pids that the driver reports are not those of the host's processes.

        They differ inside a container, for example. None if they are the same.
        """
        return self.unknown("processes")

    def job_of(self, trainer: TrainerView | None) -> JobView | None:
        return next((job for job in self.jobs if trainer in job.trainers), None)


_WithKey = TypeVar("_WithKey", DeviceView, ProcView, TrainerView, JobView, HostView)
_WithId = TypeVar("_WithId", DeviceView, ProcView, TrainerView)
_WithPid = TypeVar("_WithPid", ProcView, TrainerView)


def by_key(views: Iterable[_WithKey], key: str | None) -> _WithKey | None:
    """Return the view that has this key, which it keeps from one session to the next."""
    return next((one for one in views if one.key == key), None)


def by_id(views: Iterable[_WithId], number: int | None) -> _WithId | None:
    """Return the view with this id, which other views of the same host refer to it by."""
    return next((one for one in views if one.id == number), None)


def by_pid(views: Iterable[_WithPid], pid: int | None) -> _WithPid | None:
    """Return the first view of this process, be it living or not."""
    return next((one for one in views if one.definition.pid == pid), None)


@dataclass(frozen=True, slots=True)
class View:
    """All hosts at one moment.

    ``version`` grows with every change: two views with the same version are the same view.
    """

    version: int
    hosts: tuple[HostView, ...]

    @property
    def host(self) -> HostView | None:
        """Return the first host, which is the only one in a local session."""
        return self.hosts[0] if self.hosts else None


@dataclass(frozen=True, slots=True)
class History:
    """A column over time.

    ``seconds`` are on the host's monotonic clock, oldest first. A value is ``None`` if it was
    unknown. Values before ``seen_since`` were not seen by this viewer but reported later by a probe
    or the driver; None if all were seen.
    """

    seconds: tuple[float, ...] = ()
    values: tuple[float | None, ...] = ()
    seen_since: float | None = None

    def __len__(self) -> int:
        return len(self.seconds)


HistoryOf = Callable[[int, str, float | None], History]
"""A function of (entity id, column, seconds to look back or None for all) that returns the history
on one host.
"""


def no_history(_id: int, _column: str, _seconds: float | None) -> History:
    """Return an empty history, for a picture without any."""
    return History()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a source can do.

    ``actions`` maps the name of an action to "", or to the reason why it is not possible (which the
    screen shows next to it).
    """

    actions: Mapping[str, str] = field(default_factory=dict)

    def why_not(self, action: str) -> str:
        """Return "" if the action is possible, else the reason why not."""
        return self.actions.get(action, "this source does not support it")
