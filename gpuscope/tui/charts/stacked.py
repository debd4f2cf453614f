"""This chart shows memory over time as stacked areas, drawn natively.

Tops are precise to an eighth of a cell, and gaps are where it was unknown.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, NamedTuple

from textual.strip import Strip

from ...model.device_state import NEARLY_FULL
from ...store.view import History
from ...text import styled
from ...text.styled import Line
from ...text.units import bytes_text, percent_text
from ..theme import Glyphs, Tokens
from .axes import Heights, even_ticks, mark_unknown, nominal, time_axis
from .bins import Bins, first_at
from .cell_fit import (
    ALL_APART,
    CELL,
    HALF,
    Edges,
    Rest,
    Stack,
    cell_of,
    draw_line,
    edges_of,
    foot_of,
    in_parts,
    in_whole_cells,
    is_large,
    on_feet,
    rest_of,
    zero_of,
)
from .layer_courses import Course, course_lines, courses_of, is_flat, rows_of_layers, wanted_rows
from .legend import Entries, is_whole, legend_lines, legend_of
from .marks import Tick, event_row, named_row, step_row
from .stack_axis import BYTES, TIMES, Units, axis_top, nanoseconds_text, unit_of
from .stack_columns import Layer, stack_columns, thinner_than
from .strips import TimedChart, empty_strips, strip_of


class Peak(NamedTuple):
    """A line across the chart at an amount of bytes, named in the legend.

    It begins at the moment ``since``: before, others may have held more.
    """

    value: float
    label: str
    since: float = -math.inf


NO_STEPS = History()
BAND_ROWS = 5
"""In fewer rows all layers but the largest are the rest: there is no room for each of them."""
MUCH_LARGER = 1.1
"""How many times as large as the largest layer so far another one is before it takes its place."""
AXIS_HEIGHT, MARKS_HEIGHT, STEPS_HEIGHT = 4, 7, 10
"""The heights from which on there are an axis, a row for events, and one for step numbers."""
LEGEND = (
    ("oom", "bad", "OOM"),
    ("spared", "warn", "survived"),
    ("retry", "warn", "retry"),
    ("stall", "bad", "stall"),
    ("phase", "accent", "phase"),
)
"""The events that have no label of their own."""
WARNING = "warn"


class StackedChart(TimedChart):
    """Stacked areas from 0, with the time before now.

    The border's title names the unit of the axis. The axis ends at the card's capacity, or,
    while little of it is used, at a round value above the highest sum shown.
    """

    UNITS: ClassVar[Units] = BYTES
    """The units of the axis, the largest first."""
    BESIDE: ClassVar[Collection[str]] = ("driver",)
    """Colours that a table beside it gives to other parts."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._layers: tuple[Layer, ...] = ()
        self._seconds: Sequence[float] = ()
        self._window = 60.0
        self._capacity: float | None = None
        self._now: float | None = None
        self._top = 0.0
        self._ticks: Sequence[Tick] = ()
        self._steps = NO_STEPS
        self._peak: Peak | None = None
        self._clock: float | None = None
        self._largest = ""
        """The layer that is drawn beside the rest where there is room for no more."""
        self._rest, self._spare = ALL_APART, False
        """What has no room of its own, and whether the legend has a row of the chart."""
        self._unseen: set[str] = set()
        """The tokens of layers that are too thin to be drawn anywhere."""
        self._named = self._marked = 0
        """How many entries of the legend are layers, and how many after those are events."""
        self._courses: list[Course] = []
        """The layers of a stack that hardly moves; none where it moves."""

    def show(
        self,
        layers: Sequence[Layer],
        seconds: Sequence[float],
        window_seconds: float,
        capacity: float | None,
        now: float | None = None,
        title: str = "",
        *,
        ticks: Sequence[Tick] = (),
        steps: History = NO_STEPS,
        peak: Peak | None = None,
        clock: float | None = None,
    ) -> None:
        """Draw the last ``window_seconds`` before ``now``, by default the newest moment.

        ``seconds`` ascend, on one clock with ``now``. ``capacity`` is in bytes, None where
        there is none. ``ticks``, the course of ``steps`` and the line of a ``peak`` are drawn
        where there is room. ``clock`` is the wall clock at ``now`` where that is not
        this moment.
        """
        self._layers = tuple(layer for layer in layers if layer.token != "free")
        self._seconds, self._window, self._now = seconds, window_seconds, now
        self._ticks, self._steps, self._peak, self._clock = ticks, steps, peak, clock
        if capacity != self._capacity:
            self._capacity, self._top = capacity, 0.0
        most = highest(self._layers, seconds, window_seconds, now)
        top = max(most, peak.value if peak and most else 0.0)
        self._top = axis_top(top, capacity, self._top, self.UNITS)
        if title:
            whole = f" (of {bytes_text(capacity)})" if capacity and self._top < capacity else ""
            title = f"{title}, {unit_of(self._top, self.UNITS)[0]}{whole}"
            if str(self.border_title or "") != title:  # the setter repaints the whole widget
                self.border_title = title
        glyphs = self.tokens.glyphs
        end = now if now is not None else seconds[-1] if seconds else 0.0
        start = end - window_seconds
        self._look_for_courses(start)
        drawn = [layer for layer in self._layers if any(layer.values)]
        self._named = len(drawn)
        entries = [(glyphs.fill(one.token), one.token, one.label) for one in drawn]
        kinds = {tick.kind for tick in ticks if start <= tick.seconds <= end}
        entries += [
            (getattr(glyphs, kind), token, label) for kind, token, label in LEGEND if kind in kinds
        ]
        self._marked = len(entries) - self._named
        if capacity and self._warns and most > capacity * NEARLY_FULL:
            glyph = glyphs.patterns.get(WARNING, glyphs.up[8])
            entries.append((glyph, WARNING, f"above {percent_text(NEARLY_FULL)}"))
        line = glyphs.dashes if in_whole_cells(glyphs) else glyphs.high
        entries += [(line, "text", peak.label)] if peak and most else []
        if drawn:
            first = first_at(seconds, start)
            sizes = {one.token: sum(value or 0.0 for value in one.values[first:]) for one in drawn}
            most_of = max(sizes, key=lambda token: sizes[token])
            if sizes[most_of] > sizes.get(self._largest, 0.0) * MUCH_LARGER:
                self._largest = most_of
        self.legend(entries)
        self.repaint()

    def _look_for_courses(self, start: float) -> None:
        """Look at whether the stack hardly moves, so that its layers are shown apart."""
        values = [layer.values for layer in self._layers]
        flat = is_flat(values, self._seconds, start, self._top, bool(self._courses))
        named = [(layer.label, layer.token, layer.values) for layer in self._layers]
        self._courses = courses_of(named, self._seconds, start, self._top) if flat else []

    @property
    def wanted(self) -> int:
        """The rows in which a stack that hardly moves says all it can; 0 where it moves."""
        return wanted_rows([one.moves for one in self._courses]) if self._courses else 0

    def _course_rows(self, height: int) -> list[int]:
        """Return the rows of each layer above the stack, none where they have no room."""
        return rows_of_layers([one.moves for one in self._courses], height) if self._courses else []

    def said(self, amount: float) -> str:
        """Return how an amount is written."""
        return bytes_text(amount)

    @property
    def _warns(self) -> bool:
        """Whether the axis ends at the capacity."""
        return self._top == self._capacity

    @property
    def _end(self) -> float:
        """Return where the axis ends: for a whole card at its nominal size."""
        unit = unit_of(self._top, self.UNITS)[1]
        return nominal(self._top / unit) * unit if self._warns else self._top

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        courses = self._course_rows(height)
        height -= sum(courses) + bool(courses)
        axis = 2 if height >= AXIS_HEIGHT else 0
        bottom = self._below(max(width - 5, 1), height, tokens.glyphs)
        rows, top = height - axis - len(bottom), self._end
        if not top >= 1 or width < 10 or rows < 1:
            return empty_strips(self._empty, width, height, tokens)
        _, unit = unit_of(top, self.UNITS)
        above, (ticks, rows) = rows, even_ticks(0.0, top / unit, rows, self._warns)
        above -= rows
        margin = max((len(label) for _, label in ticks), default=0)
        inner = width - margin - 1
        stacks = stack_columns(self._layers, self._seconds, self._window, self._now, inner)
        if not any(stacks):
            return empty_strips(self._empty, width, height, tokens)
        # in the rows that the layout has for them: in these columns others may be the oldest
        placed = self._below(inner, height, tokens.glyphs)
        bottom = {name: placed.get(name, [(" " * inner, "text")]) for name in bottom}
        # the lowest row is that of the axis, whose line is 0; without one its lower edge is
        under = bool(axis)
        heights = Heights(0.0, top, rows + under, 0.5 if under else 0.0)
        marks = {
            heights.row(value * unit) - under: label for value, label in ticks if value or under
        }
        warned = self._top * NEARLY_FULL if self._warns else math.inf
        now = self._now if self._now is not None else self._seconds[-1]
        bins = Bins.ending(now, self._window, inner)
        scale, whole = heights.each * CELL, in_whole_cells(tokens.glyphs)
        zero = under * zero_of(whole)
        most = heights.rows * CELL
        room = scale, zero, most, whole
        before = self._rest
        self._rest = self._rest_in(stacks, room, (width, height), named=bool(courses))
        unseen = thinner_than(1 / scale, [stack for stack in stacks if stack])
        if (self._rest, unseen) != (before, self._unseen):
            self._unseen = unseen
            self.call_later(self._tell_rest)
        stacks = [stack and in_parts(stack, self._rest) for stack in stacks]
        columns, feet = _draw(stacks, rows, heights, tokens.glyphs, warned)
        if self._peak is not None and 0 < self._peak.value <= top:
            high = (heights.of(self._peak.value) - under) * CELL + max(zero - HALF, 0)
            from_column = bins.index(max(self._peak.since, bins.start))
            draw_line(columns, max(math.ceil(high) - 1, 0), tokens.glyphs, from_column)
        lines = []
        if courses:
            shape = bins, now, self._top, margin + 1
            drawn = course_lines(self._courses, courses, *shape, self.said, tokens.glyphs, unit)
            lines = [strip_of(line, width, tokens) for line in drawn]
        lines += [strip_of((), width, tokens)] * above
        for row in range(rows - 1, -1, -1):
            label = marks.get(row)
            pieces = [("".rjust(margin) if label is None else label.rjust(margin), "muted")]
            pieces.append(("│" if label is None else "┤", "faint"))
            text, spec = "", ""
            for column in columns:
                glyph, style = column[row]
                if axis and glyph == tokens.glyphs.unknown:
                    glyph = " "  # it is on the axis, where it is no amount
                if style != spec:
                    pieces.append((text, spec))
                    text, spec = glyph, style
                else:
                    text += glyph
            pieces.append((text, spec))
            lines.append(strip_of([piece for piece in pieces if piece[0]], width, tokens))
        below = time_axis(self._window, margin, inner, self._clock, marks.get(-1, ""))[:axis]
        if below:
            unknown = tokens.glyphs.unknown
            lost = {margin + 1 + at for at, cells in enumerate(columns) if cells[0][0] == unknown}
            below[0] = mark_unknown(below[0], lost, unknown)
            below[0] = on_feet(below[0], feet, margin + 1, tokens.glyphs)
        if "events" in bottom:
            below.append([(" " * (margin + 1), "text"), *bottom["events"]])
        if "steps" in bottom:
            below.append(named_row("step", margin + 1, bottom["steps"]))
        return lines + [strip_of(line, width, tokens) for line in below]

    def _legend_lines(self, width: int, height: int) -> tuple[Line, Line]:
        """Return the legend of what is painted in this size, which is never that of another one."""
        if self._course_rows(height):  # their lines name them
            rest = self._named_rest()
            named = [(*rest[:2], self._names_of(self._rest))] if rest else []
            others = (*named, *self._others(height))
            return [], legend_of(others, width - 2, self.legend_elsewhere)
        # by all names, or the row would decide what is the rest; none that costs all the layers
        low = self._is_low(height) or self._is_low(height - 1)
        self._spare = not low and bool(super()._legend_lines(width, height)[0])
        rows, elsewhere = height if self._spare else 0, self.legend_elsewhere
        for brief in (False, True):
            drawn = self._as_drawn(self._rest, height - self._spare, brief=brief)
            above, border = lines = legend_lines(drawn, width - 2, rows, elsewhere)
            if is_whole(drawn, lines):
                break
        if elsewhere and border == [(elsewhere, "muted")] and (rest := self._named_rest()):
            (glyph, token, label), more = rest, elsewhere.replace("legend ", "others ", 1)
            both: Line = [(glyph, token), (f" {label}, {more}", "muted")]
            border = both if styled.cells(both) <= width - 2 else legend_of([rest], width - 2)
        return above or [(" ", "text")] if self._spare else [], border

    def _named_rest(self, rest: Rest | None = None) -> tuple[str, str, str] | None:
        """Return the entry of several layers that are drawn as one."""
        rest = rest or self._rest
        if rest.trace or not rest.tokens or rest.token in rest.tokens:
            return None
        return self.tokens.glyphs.fill(rest.token), rest.token, "rest"

    def _names_of(self, rest: Rest) -> str:
        """Return what several layers that are drawn as one are: both of two, else the largest."""
        there = {layer.token for layer in self._layers if any(layer.values)} & {*rest.tokens}
        named = [label for _, token, label in self._legend[: self._named] if token in there]
        if len(named) < 2:
            return named[0] if named else "rest"
        others = named[1] if len(named) == 2 else f"{len(named) - 1} others"
        return f"{named[0]} + {others}"

    def _others(self, height: int, brief: bool = False) -> Entries:
        """Return the legend but for the layers: only a chart of many rows has one for events.

        A ``brief`` one does not say since when a peak is the peak.
        """
        height -= sum(self._course_rows(height))
        first = self._named if height >= MARKS_HEIGHT else self._named + self._marked
        cut = self._peak.label.partition(" ")[0] if brief and self._peak else ""
        return [
            (glyph, token, cut if self._peak and label == self._peak.label and cut else label)
            for glyph, token, label in self._legend[first:]
        ]

    def _as_drawn(self, rest: Rest, height: int, brief: bool = False) -> Entries:
        """Return a legend of what is drawn, with this rest: each colour stands for one thing.

        A trace is named at the layer in whose colour it is, and the rest by its own names, but not
        in a ``brief`` one.
        """
        one = self._named_rest(rest)
        if one is not None and not brief:
            one = (*one[:2], self._names_of(rest))
        absent = {*rest.tokens} - {rest.token} | self._unseen - {*rest.tokens}
        layers = self._legend[: self._named]
        kept = [entry for entry in layers if entry[1] not in absent]
        if rest.trace and not brief:
            within = {*rest.tokens} - self._unseen
            more = "".join(f" + {label}" for _, token, label in layers if token in within)
            kept = [(g, t, label + more if t == rest.token else label) for g, t, label in kept]
        return (*kept, *([one] if one else []), *self._others(height, brief))

    def _rest_in(
        self,
        stacks: Sequence[Stack | None],
        room: tuple[float, int, int, bool],
        size: tuple[int, int],
        named: bool,
    ) -> Rest:
        """Return the layers that have no room of their own, in the chart or in its legend.

        Where they are ``named`` elsewhere they need no room in that. A large one is never among
        them: what fills a part of the chart is no rest, and the legend is cut then.
        """
        (width, height), named = size, named or bool(self.legend_elsewhere)
        of_each = list(zip(*(stack for stack in stacks if stack), strict=True))
        sums = {layer[0][1]: sum(size for size, _ in layer) for layer in of_each}
        by_size = sorted((token for token in sums if sums[token]), key=lambda token: sums[token])
        low = self._is_low(height) and self._named > 2
        by_size.sort(key=lambda token: low and token == self._largest)
        large = {
            layer[0][1]
            for layer in of_each
            if is_large([size * room[0] for size, _ in layer], layer[0][1] in self._rest.tokens)
        }
        thin = [token for token in by_size[:-1] if token not in large]
        found = ALL_APART
        for count in range(len(thin) if low else 0, len(thin) + 1):
            found = rest_of(stacks, *room, self._rest, thin[:count], self.BESIDE)
            entries = self._as_drawn(found, height, brief=True)
            rows = height * self._spare
            if named or is_whole(entries, legend_lines(entries, width - 2, rows)):
                break
        return found

    def _tell_rest(self) -> None:
        self._fit_legend()
        self.repaint()  # a part of the legend is in the picture

    def _is_low(self, height: int) -> bool:
        """Return whether a chart of so many rows can show only the largest layer and the rest."""
        axis = 2 if height >= AXIS_HEIGHT else 0
        return 0 < height - axis < BAND_ROWS

    def _below(self, inner: int, height: int, glyphs: Glyphs) -> dict[str, Line]:
        """Return the rows besides the axis: events, and step numbers."""
        now = self._now if self._now is not None else self._seconds[-1] if self._seconds else None
        if now is None:
            return {}
        bins = Bins.ending(now, self._window, inner)
        out: dict[str, Line] = {}
        if height >= MARKS_HEIGHT and (events := event_row(self._ticks, bins, glyphs)):
            out["events"] = events
        if height >= STEPS_HEIGHT and (
            row := step_row(self._steps.seconds, self._steps.values, bins, glyphs)
        ):
            out["steps"] = [(row, "faint")]
        return out


class TimeChart(StackedChart):
    """Stacked parts of a time, in nanoseconds."""

    UNITS: ClassVar[Units] = TIMES
    BESIDE: ClassVar[Collection[str]] = ()

    def said(self, amount: float) -> str:
        """Return how a time is written."""
        return nanoseconds_text(amount)


def highest(
    layers: Sequence[Layer], seconds: Sequence[float], window_seconds: float, now: float | None
) -> float:
    """Return the largest sum of the window, 0 where nothing is known."""
    if not seconds:
        return 0.0
    known = [layer for layer in layers if any(value is not None for value in layer.values)]
    start = first_at(seconds, (seconds[-1] if now is None else now) - window_seconds)
    moments = zip(*(layer.values[start : len(seconds)] for layer in known), strict=False)
    sums = [sum([max(one, 0.0) for one in amounts]) for amounts in moments if None not in amounts]
    return max((one for one in sums if math.isfinite(one)), default=0.0)


def _draw(
    stacks: Sequence[Stack | None],
    rows: int,
    heights: Heights,
    glyphs: Glyphs,
    warned: float = math.inf,
) -> tuple[list[Line], dict[int, str]]:
    """Return the cells of each column, bottom up, without that of the axis, and what is on that.

    Equal columns are drawn once; what lies before the first one stays blank. What a column has
    beyond ``warned`` has the colour of a warning.
    """
    whole, under = in_whole_cells(glyphs), heights.rows - rows
    zero, most = under * zero_of(whole), heights.rows * CELL
    gap = [(glyphs.unknown, "faint")] + [(" ", "text")] * (rows - 1)
    drawn: dict[Edges | None, tuple[Line, str]] = {None: (gap, "")}
    first = next((place for place, stack in enumerate(stacks) if stack is not None), len(stacks))
    columns, feet = [[(" ", "text")] * rows] * first, {}
    for place, stack in enumerate(stacks[first:], first):
        if stack is not None and sum(amount for amount, _ in stack) > warned:
            stack = _warn_beyond(stack, warned)
        edges = None
        if stack is not None:
            edges = edges_of(stack, heights.each * CELL, zero, most, whole, WARNING)
        if edges not in drawn:
            cells = range(under * CELL, most, CELL)
            filled = [cell_of(edges or (), cell, glyphs, zero) for cell in cells]
            drawn[edges] = filled, foot_of(edges or (), zero)
        column, foot = drawn[edges]
        columns.append(column)
        if foot:
            feet[place] = foot
    return columns, feet


def _warn_beyond(stack: Stack, limit: float) -> Stack:
    """Return a column whose part beyond a limit is a warning."""
    kept, total = [], 0.0
    for amount, token in stack:
        kept.append((max(min(amount, limit - total), 0.0), token))
        total += amount
    return (*kept, (total - limit, WARNING))
