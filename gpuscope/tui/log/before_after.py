"""The readings of a job or a GPU shortly before an event and shortly after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from ...model.first_step import first_step
from ...model.valid_history import while_it_steps
from ...store.view import DeviceView, History, HistoryOf, HostView, TrainerView
from ...text import styled
from ...text.styled import Line
from ...text.units import bytes_text, duration_text
from ..shared.host_trends import share_text, watts_text
from ..shared.job_rows import loss_text

SPAN_SECONDS = 30.0
"""How long before and after an event its readings are looked at."""
LEAST_SECONDS = 2.0
"""An event that is younger has no time after it yet."""
NAME_CELLS, VALUE_CELLS = 26, 14
MOST_DEVICES = 8


class _Reading(NamedTuple):
    name: str
    history: History
    text: Callable[[float], str]


def before_after_lines(
    host: HostView,
    wall_seconds: float,
    trainers: Sequence[TrainerView],
    devices: Sequence[DeviceView],
    history: HistoryOf,
    cells: int,
) -> list[Line]:
    """Return the median of each reading in the half minutes before and after a moment.

    Of a training that began to step only after it, the time after begins with its first step: over
    its loading as well, a busy GPU would seem idle. A reading that is known on neither side is left
    out, and so is all of it where the moment is older than what is recorded.
    """
    if host.sampled_seconds is None or host.wall_seconds is None:
        return []
    ago = host.wall_seconds - wall_seconds
    at = host.sampled_seconds - ago
    if ago < LEAST_SECONDS:
        return []
    begin, end = _after(at, host.sampled_seconds, trainers, history, ago + SPAN_SECONDS + 1)
    rows: list[Line] = []
    for name, past, text in _readings(host, trainers, devices, history, ago + SPAN_SECONDS + 1):
        sides = (_median(past, at - SPAN_SECONDS, at), _median(past, begin, end))
        if sides == (None, None):
            continue
        line: Line = [(f"{name:{NAME_CELLS}}", "muted")]
        for value in sides:
            shown = "none" if value is None else text(value)
            line.append((f"{shown:>{VALUE_CELLS}}", "faint" if value is None else "text"))
        rows.append(styled.cut(line, cells))
    if not rows:
        return []
    span = f"{SPAN_SECONDS:.0f} s"
    titles = (f"{span} before", f"{int(end - begin)} s {'after' if begin == at else 'of steps'}")
    head: Line = [(f"{'Median':{NAME_CELLS}}", "title")]
    head += [(f"{title:>{VALUE_CELLS}}", "muted") for title in titles]
    return [head, *rows]


def _after(
    at: float, now: float, trainers: Sequence[TrainerView], history: HistoryOf, seconds: float
) -> tuple[float, float]:
    """Return from when to when the readings after a moment are looked at."""
    firsts = [first for t in trainers if (first := first_step(t, history, seconds)) is not None]
    first = min(firsts, default=at)
    begin = first if at + LEAST_SECONDS <= first <= now - LEAST_SECONDS else at
    return begin, min(begin + SPAN_SECONDS, now)


def _median(past: History, begin: float, end: float) -> float | None:
    pairs = zip(past.seconds, past.values, strict=True)
    known = [value for moment, value in pairs if value is not None and begin <= moment < end]
    return median(known) if known else None


def _readings(
    host: HostView,
    trainers: Sequence[TrainerView],
    devices: Sequence[DeviceView],
    history: HistoryOf,
    seconds: float,
) -> Iterator[_Reading]:
    for trainer in trainers[:1]:
        rank = trainer.definition.rank
        whose = f", rank {rank}" if rank is not None and len(trainers) > 1 else ""
        steps = history(trainer.id, "step", seconds)
        past = while_it_steps(history(trainer.id, "step_seconds", seconds), steps, trainer)
        yield _Reading(f"step time{whose}", past, duration_text)
        past = while_it_steps(history(trainer.id, "loss", seconds), steps, trainer)
        yield _Reading(f"loss{whose}", past, loss_text)
    for device in devices[:MOST_DEVICES]:
        name = f"GPU {device.definition.index}"
        past = history(device.id, "utilization_percent", seconds)
        yield _Reading(f"{name} utilisation", past, share_text)
        yield _Reading(
            f"{name} memory in use", history(device.id, "used_bytes", seconds), bytes_text
        )
        yield _Reading(f"{name} power", history(device.id, "power_watts", seconds), watts_text)
    yield _Reading("CPU of the host", history(host.id, "cpu_percent", seconds), share_text)
