"""How many events there were of each kind over time, as columns below the list of the log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ...text.clock import clock_text
from ...text.styled import Line
from ...text.units import window_text
from ..background.log_entry import GROUPS, LogEntry
from ..cells import fit
from ..charts.bins import Bins
from ..charts.spark import spark
from ..shared.event_rows import sign
from ..theme import Glyphs

NAME_CELLS, COUNT_CELLS, LAST_CELLS = 10, 7, 9
AROUND_CELLS = NAME_CELLS + COUNT_CELLS + LAST_CELLS
LEAST_CELLS = AROUND_CELLS + 20
BIN_SECONDS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
)  # fmt: skip
"""The lengths that a column can have; the shortest that shows most events is taken."""
MOST_SHARE = 0.75
"""The share of the events that the axis covers, so that one old event does not squeeze the rest."""
LEAST_SECONDS, WHOLE_SECONDS = 60.0, 3600.0
"""The shortest time that the axis covers, and the longest for which it covers all events."""
GRAVE = ("bad", "warn")


def activity(
    entries: Sequence[LogEntry],
    now: float,
    chosen: LogEntry | None,
    glyphs: Glyphs,
    cells: int,
) -> tuple[str, list[Line]]:
    """Return what a column stands for, and a lane for each kind of event with an axis below.

    ``chosen`` is the event under the cursor, which the axis marks. Each lane ends with the number
    of its events in sight, and the time of the last of them.
    """
    count = cells - AROUND_CELLS
    if not entries or cells < LEAST_CELLS:
        return "", []
    bins = _bins([one.wall_seconds for one in entries], now, count)
    groups = {group: [e for e in entries if e.group == group] for group in GROUPS}
    groups = {group: found for group, found in groups.items() if found}
    counts = {group: _counts(found, bins) for group, found in groups.items()}
    top = max(max(row) for row in counts.values())
    out = [_lane(group, row, groups[group], top, glyphs, bins) for group, row in counts.items()]
    out.append(_axis(bins, chosen, glyphs))
    out.append(_times(bins))
    older = len(entries) - sum(map(sum, counts.values()))
    what = f"each column is {window_text(bins.width)}"
    what += f", the highest has {top}" if top > 1 else ""
    return f"{what} · {older} older" if older else what, out


def rows_of(entries: Iterable[LogEntry]) -> int:
    """Return how many lines the events take: a lane for each kind, and the axis."""
    return len({one.group for one in entries}) + 2


def _bins(moments: Sequence[float], now: float, count: int) -> Bins:
    """Return the columns up to ``now`` that are the shortest for most events."""
    ages = sorted(max(0.0, now - moment) for moment in moments)
    whole = min(ages[-1], WHOLE_SECONDS)
    span = max(LEAST_SECONDS, whole, ages[math.ceil(MOST_SHARE * len(ages)) - 1])
    width = next((one for one in BIN_SECONDS if one * (count - 1) > span), BIN_SECONDS[-1])
    return Bins.ending(now, float(width * count), count)


def _counts(found: Sequence[LogEntry], bins: Bins) -> list[int]:
    row = [0] * bins.count
    for one in found:
        place = bins.index(one.wall_seconds)
        if 0 <= place < bins.count:
            row[place] += 1
    return row


def _lane(
    group: str,
    row: Sequence[int],
    found: Sequence[LogEntry],
    top: int,
    glyphs: Glyphs,
    bins: Bins,
) -> Line:
    """Return the events of one kind; a column has the colour of the gravest of them."""
    by_place: dict[int, list[LogEntry]] = {}
    for one in found:
        by_place.setdefault(bins.index(one.wall_seconds), []).append(one)
    seen = [one for place, some in by_place.items() if 0 <= place < bins.count for one in some]
    # without colours an alarm is drawn inverted, which turns a column into its opposite
    plain = bool(glyphs.patterns)
    worst = _token(seen)
    drawn = spark([n / top if n > 0 else None for n in row], len(row), 1.0, glyphs)
    line: Line = [(fit(GROUPS[group], NAME_CELLS), "muted")]
    line += [
        (drawn[place], "series1" if plain else _token(by_place[place]))
        if n > 0
        else (glyphs.groove, "border")
        for place, n in enumerate(row)
    ]
    alarm = worst in GRAVE
    line += [
        (f" {len(seen):>3} ", "text"),
        (f"{sign(worst, glyphs)} " if alarm else "  ", worst if alarm else "text"),
        (_last(found).rjust(LAST_CELLS), "faint"),
    ]
    return line


def _last(found: Sequence[LogEntry]) -> str:
    """Return when the last of these events was."""
    newest = max(found, key=lambda one: one.wall_seconds)
    return clock_text(newest.wall_seconds)


def _token(found: Sequence[LogEntry]) -> str:
    """Return the colour of the gravest event."""
    tokens = {one.token for one in found}
    return next((token for token in GRAVE if token in tokens), "series1")


def _axis(bins: Bins, chosen: LogEntry | None, glyphs: Glyphs) -> Line:
    """Return the axis, on which the event under the cursor is marked."""
    place = bins.index(chosen.wall_seconds) if chosen is not None else -1
    if not 0 <= place < bins.count:
        return [(" " * NAME_CELLS, "text"), ("─" * bins.count, "border")]
    return [
        (" " * NAME_CELLS, "text"),
        ("─" * place, "border"),
        (glyphs.bad, "accent"),
        ("─" * (bins.count - place - 1), "border"),
        ("  this event", "accent"),
    ]


def _times(bins: Bins) -> Line:
    """Return the times below the axis: of its begin, its middle, and now."""
    form = "%H:%M:%S" if bins.width < 60 else "%H:%M" if bins.width < 1800 else "%b %d %H:%M"
    first, middle = (
        clock_text(bins.start + share * bins.width * bins.count, form) for share in (0.0, 0.5)
    )
    half = bins.count // 2
    left = first.ljust(max(half - len(middle) // 2, len(first) + 1)) + middle
    return [(" " * NAME_CELLS + left.ljust(bins.count - 3) + "now", "faint")]
