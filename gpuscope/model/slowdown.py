"""Say since when a trainer's steps are slower, and what else changed at that time.

The histories of the trainer, its GPUs and its host are those that a viewer has, or a black box.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..store.view import HistoryOf, HostView, TrainerView
from ..text.clock import MINUTE, clock_text
from ..text.units import bytes_text, duration_text, three_digits
from ..wire.frames import TrainerDef
from .change_point import LEAST_SECONDS, ChangePoint, Series, change_of, changed_at
from .step_time import SLOWER, SPLIT, split_of, words_of

PART_SHARE = 0.25
"""A part of the step is named if it explains this share of the added time."""
NEAR_SECONDS = 40.0
"""Something that begins this close to the change is reported with it."""
LEAST_POINTS = 16
MAX_JUDGED = 1024
_Format = Callable[[float], str]


def _with(unit: str) -> _Format:
    return lambda value: f"{three_digits(value)}{unit}"


_DEVICE: Mapping[str, tuple[str, float, _Format]] = {
    "sm_clock_mhz": ("clock of GPU {}", 0.97, _with(" MHz")),
    "power_limit_watts": ("power limit of GPU {}", 0.98, _with(" W")),
    "temperature_celsius": ("temperature of GPU {}", 1.1, _with(" °C")),
}
"""For each column: its name, and the ratio from which it slows a step (below 1 if a fall does)."""
_HOST: Mapping[str, tuple[str, float, _Format]] = {
    "load_1m": ("load of the host", 1.5, _with("")),
    "cpu_percent": ("CPU of the host", 1.3, _with(" %")),
    "swap_used_bytes": ("swap of the host", 1.2, bytes_text),
}


class Coincidence(NamedTuple):
    """What else changed when the steps became slower, in words, and where that was read."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A trainer's steps are slower since ``change.seconds``, when other things changed too.

    ``wall`` is that moment on the wall clock, None where that is not known.
    """

    trainer: TrainerView
    change: ChangePoint
    coincidences: tuple[Coincidence, ...]
    wall: float | None

    @property
    def then(self) -> tuple[str, ...]:
        """What changed at that time, in words."""
        return tuple(one.text for one in self.coincidences)

    @property
    def text(self) -> str:
        """One line for people, without a full stop."""
        change = self.change
        steps = f"{duration_text(change.before)} → {duration_text(change.after)}"
        also = f"; then changed: {', '.join(self.then)}" if self.then else ""
        return f"Steps take {self.times} ({steps}){also}"

    @property
    def times(self) -> str:
        """How much slower and since when: ``1.42 times as long since 14:02``."""
        return f"{three_digits(self.change.ratio)} times as long {self._since}"

    @property
    def brief(self) -> str:
        """The same for a line of a table: ``1.42× slower since 14:02: clock of GPU 0 …``."""
        also = f": {', '.join(self.then)}" if self.then else ""
        return f"{three_digits(self.change.ratio)}× slower {self._since}{also}"

    @property
    def _since(self) -> str:
        if self.wall is None:
            return "than before"
        return f"since {clock_text(self.wall, MINUTE)}"


def of_trainer(trainer: TrainerView, host: HostView, history: HistoryOf) -> Slowdown | None:
    """Return since when the steps of a trainer are slower, None where they are not."""
    steps = _series(history, trainer.id, "step_seconds")
    change = change_of(steps) if len(steps) >= LEAST_POINTS else None
    if change is None or change.ratio < SLOWER:
        return None
    found = [
        ("probe", _parts(trainer, history, change)),
        ("probe", _collections(trainer, change)),
        ("nvml", _devices(trainer, host, history, change)),
        ("/proc", _host(host, history, change)),
        ("nvml", _neighbours(trainer, host, history, change)),
    ]
    then = [Coincidence(text, source) for source, texts in found for text in texts]
    wall = None
    if host.wall_seconds is not None and host.sampled_seconds is not None:
        wall = host.wall_seconds - (host.sampled_seconds - change.seconds)
    return Slowdown(trainer, change, tuple(then), wall)


_judged: dict[tuple[str, int], tuple[TrainerDef, float, Slowdown | None]] = {}


def of_trainers(
    trainers: Iterable[TrainerView], host: HostView, history: HistoryOf
) -> Slowdown | None:
    """Return the worst of some trainers, each judged again at most every ten seconds.

    A screen asks many times a second, and no change is visible sooner.
    """
    found = []
    for trainer in trainers:
        key, now = (host.key, trainer.id), trainer.sampled_seconds or 0.0
        kept = _judged.get(key)
        definition = trainer.definition
        if kept is None or kept[0] is not definition or not 0 <= now - kept[1] < LEAST_SECONDS:
            if len(_judged) >= MAX_JUDGED:
                _judged.clear()
            kept = _judged[key] = definition, now, of_trainer(trainer, host, history)
        if kept[2] is not None:
            found.append(kept[2])
    return max(found, key=lambda one: one.change.ratio, default=None)


def _series(history: HistoryOf, entity: int, column: str) -> Series:
    found = history(entity, column, None)
    pairs = zip(found.seconds, found.values, strict=True)
    return [(at, value) for at, value in pairs if value is not None]


def _parts(trainer: TrainerView, history: HistoryOf, change: ChangePoint) -> list[str]:
    found, names = [], words_of(split_of(trainer))
    for part in SPLIT:
        moved = changed_at(_series(history, trainer.id, f"{part}_seconds"), change.seconds)
        if moved is None:
            continue
        longer = moved.after - moved.before
        if longer >= PART_SHARE * (change.after - change.before):
            words = f"{names[part]} {duration_text(moved.before)} → {duration_text(moved.after)}"
            found.append((-longer, words))
    return [words for _, words in sorted(found)]


def _collections(trainer: TrainerView, change: ChangePoint) -> list[str]:
    """Collections of garbage, as the probe booked them by the minute."""
    from .time_ledger import read

    series = []
    for minute in trainer.minutes:
        ledger = read({"minutes": [minute]})
        if ledger.steps and ledger.seconds:
            spent = sum(row.seconds for row in ledger.rows if row.name == "collection")
            series.append((minute["m"] / 1e9, spent / ledger.steps))
    moved = changed_at(series, change.seconds)
    if moved is None or moved.after - moved.before < PART_SHARE * (change.after - change.before):
        return []
    return [
        f"garbage collection {duration_text(moved.before)} → {duration_text(moved.after)} a step"
    ]


def _devices(
    trainer: TrainerView, host: HostView, history: HistoryOf, change: ChangePoint
) -> list[str]:
    used = {alloc.gpu for alloc in trainer.allocators if alloc.gpu is not None}
    found = []
    for device in host.devices:
        if device.id in used:
            for column, (name, ratio, words) in _DEVICE.items():
                moved = changed_at(_series(history, device.id, column), change.seconds)
                found += _change_text(name.format(device.definition.index), moved, ratio, words)
    return found


def _host(host: HostView, history: HistoryOf, change: ChangePoint) -> list[str]:
    found = []
    for column, (name, ratio, words) in _HOST.items():
        moved = changed_at(_series(history, host.id, column), change.seconds)
        found += _change_text(name, moved, ratio, words)
    return found


def _change_text(name: str, moved: ChangePoint | None, ratio: float, words: _Format) -> list[str]:
    if moved is None or (moved.ratio > ratio if ratio < 1 else moved.ratio < ratio):
        return []
    return [f"{name} {words(moved.before)} → {words(moved.after)}"]


def _neighbours(
    trainer: TrainerView, host: HostView, history: HistoryOf, change: ChangePoint
) -> list[str]:
    """Other processes that came to a GPU of the trainer at that time."""
    used = {alloc.gpu for alloc in trainer.allocators if alloc.gpu is not None}
    processes = {process.id: process.definition for process in host.processes}
    found = []
    for device in host.devices:
        for use in device.uses if device.id in used else ():
            seen = history(use.id, "used_bytes", None).seconds
            came = seen[0] if seen else None
            other = processes.get(use.process)
            if use.process == trainer.process or came is None or other is None:
                continue
            if abs(came - change.seconds) <= NEAR_SECONDS:
                found.append(f"pid {other.pid} came to GPU {device.definition.index}")
    return found
