"""Memory over a trace as columns of blocks, with a moment that can be moved along it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.strip import Strip

from ...text.styled import Line
from ...text.units import bytes_text
from ..cells import fit
from ..theme import Tokens
from .axes import Heights
from .strips import Painted, strip_of

AXIS_CELLS = 11
CHOSEN = "series5"
NUMBERS = ("▁", "▂", "▃", "▄", "▅", "▆", "▇", "█")


@dataclass(frozen=True, slots=True)
class Band:
    """The least and the most of each bucket in bytes, as ``low`` and ``high``.

    ``ooms`` are the buckets in which memory ran out.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    ooms: frozenset[int] = frozenset()


class MomentChart(Painted):
    """Columns as high as the most that was allocated in their buckets.

    The chosen column is marked below.
    """

    DEFAULT_CSS = "MomentChart { height: 10; }"

    def __init__(self, **kwargs: str) -> None:
        super().__init__(**kwargs)
        self._curve = Band((), ())
        self._at = 0
        self._empty = ""

    def show(self, curve: Band, at: int, empty: str = "") -> None:
        """Draw ``curve`` with bucket ``at`` chosen; without buckets the text ``empty``."""
        if (curve, at, empty) != (self._curve, self._at, self._empty):
            self._curve, self._at, self._empty = curve, at, empty
            self.repaint()

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        count = len(self._curve.high)
        columns = max(1, width - AXIS_CELLS)  # few buckets are several columns wide each
        if not count or height < 3:
            return [strip_of([(self._empty, "muted")], width, tokens)][:height]
        spans = [
            (i * count // columns, max((i + 1) * count // columns, i * count // columns + 1))
            for i in range(columns)
        ]
        tops = [max(self._curve.high[a:b]) for a, b in spans]
        lows = [min(self._curve.low[a:b]) for a, b in spans]
        found = [i for i, (a, b) in enumerate(spans) if a <= self._at < b]
        chosen = range(found[0], found[-1] + 1) if found else range(columns - 1, columns)
        heights = Heights(0.0, max(max(tops), 1), height)  # the axis is the lowest row
        out = [
            strip_of(self._line(row, heights, tops, lows, chosen, tokens), width, tokens)
            for row in range(height - 1, 0, -1)
        ]
        return [*out, strip_of(self._marks(spans, lows, tops, chosen, tokens), width, tokens)]

    @staticmethod
    def _line(
        row: int,
        heights: Heights,
        tops: Sequence[int],
        lows: Sequence[int],
        chosen: range,
        tokens: Tokens,
    ) -> Line:
        """Return the line that is ``row`` rows above the axis.

        What a bucket never fell below is drawn fuller.
        """
        rows = heights.rows - 1
        label = bytes_text(heights.high * row / rows) if row in (rows, rows - rows // 2) else ""
        out: Line = [
            (fit(label, AXIS_CELLS - 2, "right") + " ", "faint"),
            ("┤" if label else "│", "border"),
        ]
        for index, (top, low) in enumerate(zip(tops, lows, strict=True)):
            eighths = int(min(8.0, max(0.0, (heights.of(top) - row) * 8)) + 0.5)
            token = CHOSEN if index in chosen else "allocated" if heights.of(low) > row else "other"
            if not eighths:
                text, token = ("│", CHOSEN) if index in chosen else (" ", "text")
            elif tokens.glyphs.eighths:
                text = NUMBERS[eighths - 1]
            else:
                text = tokens.glyphs.fill(token) if eighths >= 4 else " "
            out.append((text, token))
        return out

    def _marks(
        self,
        spans: Sequence[tuple[int, int]],
        lows: Sequence[int],
        tops: Sequence[int],
        chosen: range,
        tokens: Tokens,
    ) -> Line:
        """Return the axis with its marks, on which the columns stand."""
        foot = tokens.glyphs.upper if tokens.glyphs.eighths else "─"
        out: Line = [(fit("0 B", AXIS_CELLS - 2, "right") + " ", "faint"), ("┼", "border")]
        before = -1
        for index, (a, b) in enumerate(spans):
            oom = a != before and any(a <= bucket < b for bucket in self._curve.ooms)
            before = a
            out.append(
                ("▲", CHOSEN)
                if index == chosen[0]
                else (tokens.glyphs.bad, "bad")
                if oom
                else (foot, CHOSEN if index in chosen else "allocated" if lows[index] else "other")
                if tops[index] and foot != "─"
                else ("─", "border")
            )
        return out
