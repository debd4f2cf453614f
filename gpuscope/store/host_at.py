"""A host as it was at an earlier moment, put together from its history.

Numbers and words are kept over time. Why something was unknown is not kept, and the reason says so.
An entity that ended later is shown alive, and one that began later is left out. A process that was
there before it was read for the first time has no readings then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from ..text.units import age_text
from ..wire.frames import Reading, Unknown
from .jobs import group
from .view import AllocView, Entity, HostView, ProcView, TrainerView

NOT_KEPT = Unknown("not_kept", "its readings from then were discarded")
UNKNOWN_THEN = Unknown("not_kept", "it was unknown then")
HOLD_SECONDS = 15.0
"""The longest time that a reading stays valid without a newer one; older readings are means of 10
s.
"""

Then = Callable[[int, float], "tuple[float, Mapping[str, float | str | None]] | None"]
"""A function of an entity's id and a moment: its newest readings then, and when they were taken."""
E = TypeVar("E", bound=Entity)


def host_at(host: HostView, seconds: float, then: Then) -> HostView:
    """Return ``host`` as it was at ``seconds`` of its monotonic clock."""

    def was(entity: E) -> E | None:
        gone = entity.gone
        if gone is not None and gone.monotonic_seconds <= seconds:
            return entity
        found = then(entity.id, seconds)
        if found is None:
            return None if entity.sampled_seconds is not None else entity
        return replace(
            entity, readings=_readings(entity, seconds, *found), sampled_seconds=found[0], gone=None
        )

    ago = (host.sampled_seconds or seconds) - seconds
    wall = None if host.wall_seconds is None else host.wall_seconds - ago

    def process_was(process: ProcView) -> ProcView | None:
        start = process.definition.start_time
        past = was(process)
        if past is not None or wall is None or start is None or start > wall:
            return past
        return replace(process, readings=MappingProxyType(_none_of(process)), gone=None)

    def those(entities: tuple[E, ...]) -> tuple[E, ...]:
        return tuple(past for entity in entities if (past := was(entity)) is not None)

    found = [past for one in host.processes if (past := process_was(one)) is not None]
    processes = tuple(replace(one, uses=those(one.uses)) for one in found)
    trainers = tuple(_trainer(one, those(one.allocators)) for one in those(host.trainers))
    allocators: dict[int, list[AllocView]] = {}
    uses: dict[int, list[object]] = {}
    for trainer in trainers:
        for allocator in trainer.allocators:
            if allocator.gpu is not None and allocator.gone is None:
                allocators.setdefault(allocator.gpu, []).append(allocator)
    for process in processes:
        for use in process.uses:
            if use.gone is None:
                uses.setdefault(use.gpu, []).append(use)
    devices = tuple(
        replace(one, uses=tuple(uses.get(one.id, ())), allocators=tuple(allocators.get(one.id, ())))  # type: ignore[arg-type]
        for one in those(host.devices)
    )
    own = was(host) or host
    return replace(
        own,
        sampled_seconds=seconds,
        wall_seconds=wall,
        devices=devices,
        processes=processes,
        trainers=trainers,
        jobs=group(list(processes), list(trainers)),
        events=tuple(event for event in host.events if event.m / 1e9 <= seconds),
        marks=tuple(mark for mark in host.marks if mark.seconds <= seconds),
    )


def _none_of(entity: Entity) -> dict[str, Reading]:
    return dict.fromkeys(entity.readings, UNKNOWN_THEN)


def _trainer(trainer: TrainerView, allocators: tuple[AllocView, ...]) -> TrainerView:
    return replace(trainer, allocators=tuple(replace(one, step_points=None) for one in allocators))


def _readings(
    entity: Entity, seconds: float, taken: float, kept: Mapping[str, float | str | None]
) -> Mapping[str, Reading]:
    if seconds - taken > HOLD_SECONDS:
        silent = Unknown("not_kept", f"no reading then for {age_text(seconds - taken)}")
        return MappingProxyType(dict.fromkeys(entity.readings, silent))
    found: dict[str, Reading] = {}
    for column, now in entity.readings.items():
        value = kept.get(column)
        found[column] = (
            value if value is not None else NOT_KEPT if isinstance(now, str) else UNKNOWN_THEN
        )
    return MappingProxyType(found)
