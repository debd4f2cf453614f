"""This module says what a wide Memory tab has room for besides the waterfall and the timeline.

That is what the allocator and the process count, and what fixes would free.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ...model.allocator_account import peak_sizes
from ...model.growth import trend_of
from ...model.memory_room import room_of
from ...model.reading_age import old_seconds
from ...predict.trainer_what_if import Freed, freed_by, larger_batch
from ...store.view import AllocView, Entity, HistoryOf, HostView, ProcView
from ...text import styled
from ...text.ranges import interval_text
from ...text.styled import Line
from ...text.units import MIB, bytes_text, percent_text, signed_bytes_text, window_text
from ..cells import fit
from ..charts.bins import Bins
from ..charts.load_strips import binned
from ..charts.spark import own_top, spark
from ..theme import Glyphs
from .subjects import Subject, process_of

SECONDS = 60.0
GROWTH_SECONDS, NEARLY_SECONDS = (60, 600), 2
"""Over which the resident memory of a training on a CPU is compared; readings may begin so late."""
NAME, SIZE, MOST_SPARK = 20, 11, 48
FREES, NARROW_FREES, FIX_CELLS = 12, 10, 24
"""Of a column of what a fix frees, and of its name at least."""
WORTH_TELLING = 1.1
"""A larger micro-batch is suggested only if it is at least this many times the present one."""
LEAST_SHARE = 0.001
"""A fix that frees a smaller share of the GPU's memory is not told."""
TENTHS_BELOW, MANY_TIMES = 100, 1000
"""How many times larger it may be is told in tenths below the one, and no longer beyond the other:
the memory of a batch so much larger was not measured.
"""


class Count(NamedTuple):
    """A reading that is shown with its course."""

    name: str
    column: str
    kind: str = "bytes"


ALLOCATOR = (
    Count("requested", "requested_bytes"),
    Count("active", "active_bytes"),
    Count("live blocks", "allocation_count", "count"),
    Count("segments", "segment_count", "count"),
)
"""What is in no row of the waterfall; torch's own words."""
PROCESS = (
    Count("RSS of the process", "rss_bytes"),
    Count("CPU, of one core", "cpu_percent", "percent"),
)


def count_lines(
    host: HostView, subject: Subject, history: HistoryOf, cells: int, glyphs: Glyphs
) -> list[Line]:
    """Return what allocator and process count, and how it went for a minute."""
    lines: list[Line] = []
    allocator, process = subject.allocator, process_of(host, subject)
    if subject.device is None:
        return rss_lines(process, history, cells) if process is not None else []
    counted: list[tuple[Entity, Count]] = []
    if allocator is not None:
        counted += [(allocator, one) for one in ALLOCATOR]
    if process is not None and subject.trainer is not None:
        counted += [(process, one) for one in PROCESS]
    room = min(cells - NAME - 2 * SIZE - 2, MOST_SPARK)
    for entity, one in counted:
        line = _course(host, entity, one, history, room, glyphs)
        lines += [line] if line is not None else []
    if lines:
        titles = fit("NOW", SIZE, "right") + fit("HIGHEST", SIZE, "right") + "  LAST 60 s"
        lines.insert(0, [(fit("", NAME) + titles, "muted")])
    lines += _events(allocator) if allocator is not None else []
    return [styled.cut(line, cells) for line in lines]


def rss_lines(process: ProcView, history: HistoryOf, cells: int) -> list[Line]:
    """Return how a process's resident memory has changed, and how large it was at most.

    What it is made of, and its course, stand in the waterfall and in the timeline.
    """
    past = history(process.id, "rss_bytes", GROWTH_SECONDS[-1])
    known = [(s, v) for s, v in zip(past.seconds, past.values, strict=True) if v]
    if len(known) < 2:
        return []
    newest, now = known[-1]
    seen = round(newest - known[0][0])
    seen = next((span for span in GROWTH_SECONDS if 0 <= span - seen <= NEARLY_SECONDS), seen)
    spans = [span for span in GROWTH_SECONDS if span <= seen] or [seen]
    changes = []
    for span in spans:
        before = next(value for moment, value in known if moment >= newest - span)
        change = signed_bytes_text(now - before) if now != before else "unchanged"
        changes.append(f"{change} in {window_text(span)}")
    most = max(value for _, value in known)
    facts = (
        ("change of RSS", " · ".join(changes)),
        ("highest RSS", f"{bytes_text(most)} in the last {window_text(seen)}"),
    )
    lines: list[Line] = [[(fit(name, NAME), "text"), (text, "muted")] for name, text in facts]
    return [styled.cut(line, cells) for line in lines]


def _course(
    host: HostView, entity: Entity, one: Count, history: HistoryOf, room: int, glyphs: Glyphs
) -> Line | None:
    value, now = entity.number(one.column), host.sampled_seconds
    if value is None or now is None:
        return None
    past = history(entity.id, one.column, SECONDS)
    most = max((known for known in past.values if known is not None), default=value)
    line: Line = [
        (fit(one.name, NAME), "text"),
        (fit(_amount(value, one.kind), SIZE, "right"), "text"),
        (fit(_amount(most, one.kind), SIZE, "right"), "muted"),
    ]
    if room >= 8:
        each = SECONDS / room
        bins = Bins.ending(now - each, SECONDS, room)
        values = binned(past, bins, now)
        drawn = spark(values, room, own_top(values), glyphs).replace(glyphs.unknown, " ")
        line.append(("  " + drawn, "series1"))
    return line


def _amount(value: float, kind: str) -> str:
    if kind == "count":
        return f"{value:,.0f}"
    return percent_text(value / 100, whole=True) if kind == "percent" else bytes_text(value)


def _events(allocator: AllocView) -> list[Line]:
    """Return what has happened in the allocator so far, and whether it grows."""
    n = allocator.number
    parts: list[tuple[str, str]] = []
    for name, column, token in (
        (("allocation retry", "allocation retries"), "alloc_retries", "warn"),
        (("out-of-memory error", "out-of-memory errors"), "ooms", "bad"),
    ):
        if (count := n(column)) is not None:
            text = f"{count:,.0f} {name[0] if count == 1 else name[1]}"
            parts.append((text, token if count else "muted"))
    if pools := n("private_pool_bytes"):
        parts.append((f"private pools {bytes_text(pools)}", "muted"))
    lines: list[Line] = []
    if parts:
        line: Line = [(fit("since the start", NAME), "text")]
        for at, part in enumerate(parts):
            line += [(" · ", "faint"), part] if at else [part]
        lines.append(line)
    held, step, trend = n("step_allocated_bytes"), n("step_allocated_step"), trend_of(allocator)
    if held is not None and step is not None:
        line = [(fit("held after a step", NAME), "text"), (bytes_text(held), "text")]
        line.append((f" at step {step:,.0f}", "muted"))
        if trend is not None:
            grows = f"{signed_bytes_text(trend.slope)} per step" if trend.grows else "does not grow"
            token = "warn" if trend.grows else "muted"
            line.append((f" · {grows}, over {trend.steps:,.0f} steps", token))
        lines.append(line)
    return lines


def measured_fixes(host: HostView, subject: Subject) -> list[Freed]:
    """Return what each fix would free of the peak, from what was measured, the most first."""
    allocator, trainer = subject.allocator, subject.trainer
    if allocator is None or trainer is None:
        return []
    peak, parameters, gradients, state, fixed = peak_sizes(allocator)
    cards = len([one for one in host.devices if one.gone is None])
    ranks = trainer.definition.world_size or cards
    return _freed(peak or 0, parameters, gradients, state, ranks, fixed)


def fix_lines(host: HostView, subject: Subject, cells: int) -> list[Line]:
    """Return what each fix would free of the peak, from what was measured; none without a peak.

    A fix that frees next to nothing of the GPU is no fix.
    """
    if subject.allocator is None:
        return []
    peak = peak_sizes(subject.allocator)[0]
    device = subject.device
    least = LEAST_SHARE * ((device.definition.total_bytes if device is not None else None) or 0)
    found = [one for one in measured_fixes(host, subject) if one.middle >= max(MIB, least)]
    if not found:
        return []
    wide = cells >= 3 * FREES + FIX_CELLS  # else the name of the fix has the room of the peak
    each, shown = (FREES, 3) if wide else (NARROW_FREES, 2)
    titles = "".join(fit(title, each, "right") for title in ("FREES", "±", "PEAK THEN")[:shown])
    lines: list[Line] = [[(f"{titles}  FIX, AND HOW", "muted")]]
    margin = FREES if wide else 2
    for one in found:
        error = f"±{bytes_text(one.error)}" if one.error >= MIB else ""
        then = fit(bytes_text((peak or 0) - one.middle), each, "right") if wide else ""
        lines += [
            [
                (fit(bytes_text(one.middle), each, "right"), "ok"),
                (fit(error, each, "right"), "muted"),
                (f"{then}  ", "text"),
                *styled.cut_items([(one.title, "text")], cells - each * shown - 2),
            ],
            [
                (" " * margin, "text"),
                *styled.cut_items([(one.change, "accent")], cells - margin),
            ],
        ]
    return lines


def larger_lines(host: HostView, subject: Subject, history: HistoryOf, cells: int) -> list[Line]:
    """Return how much larger the micro-batch could be, by what was measured; none if it could not.

    The room is that at the peak since the start, which may have been higher than the last steps.
    """
    allocator, trainer = subject.allocator, subject.trainer
    if allocator is None or trainer is None or old_seconds(host, allocator) is not None:
        return []
    room = room_of(host.devices, trainer, allocator, history)
    peak, parameters, gradients, state, fixed = peak_sizes(allocator)
    held = room.fullest.number("allocated_bytes")
    if peak is None or held is None or room.headroom_bytes is None:
        return []
    left = room.headroom_bytes - max(0.0, peak - held)
    found = larger_batch(peak, parameters, gradients, state, left, fixed)
    if found is None or found.low < WORTH_TELLING:
        return []
    each, error = (found.each_low + found.each_high) // 2, (found.each_high - found.each_low) // 2
    size = bytes_text(each) + (f" ±{bytes_text(error)}" if error >= MIB else "")
    about = f"at the peak {bytes_text(left)} are left, and twice the micro-batch takes {size} more"
    text: Line = [(room_text(found.low, found.high), "text"), (f": {about}", "muted")]
    return styled.hang([("≈ ", "muted")], text, cells)


def room_text(low: float, high: float) -> str:
    """Return how many times as large a micro-batch there is room for."""
    if low >= MANY_TIMES:
        return f"room for over {MANY_TIMES:,} times this micro-batch: memory is no limit"
    least, most = (f"{end:.1f}" if end < TENTHS_BELOW else f"{end:,.0f}" for end in (low, high))
    return f"room for a micro-batch {interval_text(least, most, ' to ')} times as large"


@lru_cache(maxsize=32)
def _freed(
    peak: int,
    parameters: int | None,
    gradients: int | None,
    state: int | None,
    ranks: int,
    fixed: int,
) -> list[Freed]:
    return freed_by(peak, parameters, gradients, state, ranks, fixed)
