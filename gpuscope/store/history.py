"""The readings of one entity over time, all columns of a tick side by side in one flat array.

The newest ticks are kept unchanged, older ones as means of ten seconds, for hours. Appending a
tick is one C call, and a column is a strided slice. NaN inside the array means unknown and becomes
``None`` when it is read. Times are seconds on the host's monotonic clock, so they only grow, and
setting the wall clock does not affect them.

A device has 40 numbers per tick: 1.2 MB for the newest hour at 1 Hz, then 115 kB for each older
hour.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from math import floor, inf, nan

from ..wire.frames import Row
from .view import History

POINTS = 3600
"""Ticks of one entity that are kept unchanged: half an hour at 2 Hz."""
MEAN_SECONDS = 10.0
MEANS = 4320
"""Means that are kept of older ticks: 12 hours."""
SLACK = 64
"""Ticks beyond the limit are averaged when they are 1/64 of it, because many at once cost less."""
EMPTY = History()


class Ring:
    """The last ``points`` ticks of the given columns, and means of the earlier ones."""

    __slots__ = (
        "_means", "_means_kept", "_own_from", "_points", "_ticks", "_width", "columns",
        "last_seconds",
    )  # fmt: skip

    def __init__(self, columns: Sequence[str], points: int = POINTS, means: int = MEANS) -> None:
        self.columns = tuple(columns)
        self.last_seconds = -inf
        self._width = len(self.columns) + 1
        self._points, self._means_kept = points, means
        self._ticks, self._means = array("d"), array("d")
        self._own_from = -inf  # what lies before was not seen here, but reported later

    def __len__(self) -> int:
        return self.cells // self._width

    @property
    def cells(self) -> int:
        """Return how many numbers are held, 8 bytes each."""
        return len(self._ticks) + len(self._means)

    def append(self, seconds: float, values: Row) -> None:
        """Add one tick at ``seconds``, with ``values`` in the order of ``columns``.

        Values that are missing at the end are unknown. A tick that is not later than the last one
        is ignored.
        """
        if seconds <= self.last_seconds:
            return
        self.last_seconds = seconds
        try:
            tick: array[float] = array("d", values)  # type: ignore[arg-type]  # None and strings raise
        except TypeError:
            tick = array("d", [v if isinstance(v, (int, float)) else nan for v in values])
        missing = self._width - 1 - len(tick)
        if missing > 0:
            tick.extend([nan] * missing)
        elif missing < 0:
            del tick[missing:]
        tick.insert(0, seconds)
        self._ticks.extend(tick)
        if len(self._ticks) > (self._points + self._points // SLACK) * self._width:
            self._fold()

    def put_before(
        self, moments: Sequence[float], columns: Mapping[str, Sequence[float | None]]
    ) -> None:
        """Put readings that somebody else has made before the first tick.

        Columns that they lack are unknown for that time. Charts show these readings, but no picture
        of an earlier moment is made from them, because they are not complete. If hours are kept
        already, nothing is added.
        """
        if not self._ticks or self._means or self._own_from > -inf:
            return
        first, earlier = self._ticks[0], array("d")
        for at, moment in enumerate(moments):
            if moment < first:
                earlier.append(moment)
                values = (columns[name][at] if name in columns else None for name in self.columns)
                earlier.extend([nan if value is None else value for value in values])
        if earlier:
            self._own_from = first
            self._ticks = earlier + self._ticks

    def _fold(self) -> None:
        """Average the oldest ticks until there are few enough."""
        width, ticks = self._width, self._ticks
        while len(ticks) > self._points * width:
            end = (floor(ticks[0] / MEAN_SECONDS) + 1) * MEAN_SECONDS
            beyond = len(ticks) // width - self._points
            count = max(min(_first_at(ticks, width, end), beyond + self._points // SLACK), 1)
            for position in range(width):
                known = [
                    value for value in ticks[position : count * width : width] if value == value
                ]
                self._means.append(sum(known) / len(known) if known else nan)
            del ticks[: count * width]
        del self._means[: max(len(self._means) - self._means_kept * width, 0)]

    def shrink(self, share: float) -> None:
        """Drop numbers until only ``share`` of them is left.

        The oldest are dropped first. From now on the ring keeps no more ticks than are left now.
        """
        width, most = self._width, max(int(self.cells * share), self._width)
        self._points = min(self._points, max(int(len(self._ticks) // width * share), 1))
        self._fold()
        beyond = -(-(self.cells - most) // width) * width
        if beyond > 0:
            older = min(beyond, len(self._means))
            del self._means[:older]
            del self._ticks[: beyond - older]
        self._means_kept = min(self._means_kept, max(len(self._means) // width, 1))

    @property
    def first_seconds(self) -> float:
        """Return the oldest moment that was seen and is kept, infinity if nothing is kept."""
        oldest = next((kept[0] for kept in (self._means, self._ticks) if kept), inf)
        return max(oldest, self._own_from)

    def history(self, column: str, window_seconds: float | None = None) -> History:
        """Return ``column`` over the last ``window_seconds``, or over everything kept.

        It is empty for a column that was never sent.
        """
        if column not in self.columns or not self._ticks:
            return EMPTY
        position, since = self.columns.index(column) + 1, -inf
        if window_seconds is not None:
            since = self.last_seconds - window_seconds
        seconds, values = array("d"), array("d")
        for kept in (self._means, self._ticks):
            start = _first_at(kept, self._width, since) * self._width if since > -inf else 0
            seconds += kept[start :: self._width]
            values += kept[start + position :: self._width]
        remembered = seconds and seconds[0] < self._own_from
        return History(
            tuple(seconds),
            tuple([None if v != v else v for v in values]),
            self._own_from if remembered else None,
        )

    def at(self, seconds: float) -> tuple[float, dict[str, float | None]] | None:
        """Return the newest tick that is not later than ``seconds``.

        The result is its time and its numbers, or None before the first tick.
        """
        for kept in (self._ticks, self._means) if seconds >= self._own_from else ():
            row = _first_at(kept, self._width, seconds, after=True) - 1
            if row >= 0:
                found = kept[row * self._width : (row + 1) * self._width]
                numbers = (None if value != value else value for value in found[1:])
                return found[0], dict(zip(self.columns, numbers, strict=True))
        return None


def _first_at(kept: array[float], width: int, moment: float, after: bool = False) -> int:
    """Return the first row whose time is not before ``moment``; with ``after``, is after it."""
    low, high = 0, len(kept) // width
    while low < high:
        middle = (low + high) // 2
        seconds = kept[middle * width]
        if seconds < moment or (after and seconds == moment):
            low = middle + 1
        else:
            high = middle
    return low
