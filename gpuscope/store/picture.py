"""Draw the immutable :class:`~gpuscope.store.view.HostView` of a stream.

Only entities that have changed are drawn again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

from ..wire.frames import Event, Reading, Unknown
from .jobs import group
from .records import Record, Registry
from .stream import Stream
from .view import AllocView, DeviceView, Gone, HostView, Link, Mark, ProcView, TrainerView, UseView


class Picture:
    """How a stream is shown.

    Label, badge and link belong to the viewer; the stream does not know them.
    """

    def __init__(self, key: str, label: str, badge: str) -> None:
        self.key, self.label = key, label
        self.badge = badge
        self.shares_name = False
        """Whether another source's host has the same name."""
        self.link = Link("connecting")
        self._events: tuple[Event, ...] = ()
        self._marks: tuple[Mark, ...] = ()

    def draw(self, stream: Stream) -> HostView:
        if stream.events_changed:
            self._events, self._marks, stream.events_changed = (
                tuple(stream.events),
                tuple(stream.marks),
                False,
            )
        registry = stream.registry
        devices, processes, trainers = _draw_entities(registry)
        host, hello = registry.host, stream.hello
        nvml = host.readings.get("nvml")
        wall = stream.wall(stream.last_m) if stream.last_m is not None else None
        return HostView(
            *_common(host),
            name=self._name(hello.host if hello is not None else ""),
            definition=host.definition,
            link=self.link,
            badge=self.badge,
            rate_hz=_rate(stream),
            nvml=nvml if isinstance(nvml, Unknown) else None,
            wall_seconds=wall,
            devices=tuple(sorted(devices, key=lambda device: device.definition.index)),
            processes=tuple(processes),
            trainers=tuple(trainers),
            jobs=group(processes, trainers),
            events=self._events,
            marks=self._marks,
            began_wall_seconds=_began(stream, wall),
        )

    def _name(self, said: str) -> str:
        """Return what a host calls itself, after the key of its source where another does too."""
        if said and self.shares_name and said != self.key:
            return f"{self.key} ({said})"
        return said or self.label


def _draw_entities(
    registry: Registry,
) -> tuple[list[DeviceView], list[ProcView], list[TrainerView]]:
    """Draw the parts first, then the entities that hold them.

    A device shows only parts that are alive; their owners also show those that have ended.
    """
    uses_of, uses_on = defaultdict[int, list[UseView]](list), defaultdict[int, list[UseView]](list)
    allocs_of, allocs_on = (
        defaultdict[int, list[AllocView]](list),
        defaultdict[int, list[AllocView]](list),
    )
    touched: set[int | None] = set()
    for record in registry.of("use"):
        owner, device = record.owner, record.target
        if owner is None or device is None:
            continue
        if record.stale:
            record.view, record.stale = UseView(*_common(record), owner.id, device.id), False
            touched.update((owner.id, device.id))
        uses_of[owner.id].append(record.view)
        if record.gone is None:
            uses_on[device.id].append(record.view)
    for record in registry.of("alloc"):
        owner, device = record.owner, registry.device_of(record)
        if owner is None:
            continue
        gpu = device.id if device is not None else None
        if record.stale or record.view.gpu != gpu:
            if record.view is not None:  # the device that it was on before shows it no more
                touched.add(record.view.gpu)
            points = record.track.points if record.track is not None else None
            record.view, record.stale = (
                AllocView(*_common(record), record.definition, gpu, points),
                False,
            )
            touched.update((owner.id, gpu))
        allocs_of[owner.id].append(record.view)
        if record.gone is None and device is not None:
            allocs_on[device.id].append(record.view)

    devices, processes, trainers = [], [], []
    for record in registry.of("gpu"):
        if record.stale or record.id in touched:
            parts = tuple(uses_on[record.id]), tuple(allocs_on[record.id])
            record.view, record.stale = (
                DeviceView(*_common(record), record.definition, *parts),
                False,
            )
        devices.append(record.view)
    for record in registry.of("proc"):
        trainer = registry.trainer_in(record)
        inside = trainer.id if trainer is not None else None
        if record.stale or record.id in touched or record.view.trainer != inside:
            uses = tuple(uses_of[record.id])
            record.view, record.stale = (
                ProcView(*_common(record), record.definition, uses, inside),
                False,
            )
        processes.append(record.view)
    for record in registry.of("trainer"):
        process = registry.process_of(record)
        around = process.id if process is not None else None
        if record.stale or record.id in touched or record.view.process != around:
            allocs = tuple(allocs_of[record.id])
            minutes = record.minutes.all if record.minutes is not None else ()
            record.view, record.stale = (
                TrainerView(
                    *_common(record), record.definition, around, allocs, minutes, record.look
                ),
                False,
            )
        trainers.append(record.view)
    return devices, processes, trainers


def _common(record: Record) -> tuple[int, str, Mapping[str, Reading], float | None, Gone | None]:
    return record.id, record.key, record.readings, record.seconds, record.gone


def _began(stream: Stream, wall: float | None) -> float | None:
    """Return when the first sample was taken, by the wall clock of the last one."""
    if wall is None or stream.last_m is None or stream.began is None:
        return None
    return wall - (stream.seconds(stream.last_m) - stream.began)


RATE_INTERVALS = 5
"""A rate is measured over so many intervals between samples, or more."""
BEGINNING_SECONDS = 3.0
"""At its beginning an agent sends a sample as soon as another of its readers has answered."""


def _rate(stream: Stream) -> float | None:
    """Return the measured samples per second, or the announced rate before there are enough.

    The first samples of an agent follow each other faster than later ones.
    """
    began = stream.began or 0.0
    times = [one for one in stream.recent if one - began >= BEGINNING_SECONDS]
    intervals = [later - earlier for earlier, later in pairwise(times) if later > earlier]
    if len(intervals) >= RATE_INTERVALS:
        from statistics import median  # a verb that looks only once does without

        return round(1 / median(intervals), 2)
    return (stream.hello.hz if stream.hello else 0.0) or None
