"""A ring of rows: the readings of one entity over time, all columns of a tick side by side in one flat array.

Appending a tick is one C call; a column is a strided slice. NaN inside means unknown, and becomes ``None`` on the way
out. Times are seconds on the host's monotonic clock: they only grow, and no step of a wall clock bends them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from math import inf, nan

from ..wire.frames import Row
from .view import History

POINTS = 3600
"""Ticks kept per entity: half an hour at 2 Hz."""
EMPTY = History()


class Ring:
    """The last ``points`` ticks of the given columns. Grows as it fills; :meth:`append` overwrites the oldest then."""

    __slots__ = ("_buffer", "_head", "_index", "_points", "_width", "columns", "last_seconds")

    def __init__(self, columns: Sequence[str], points: int = POINTS) -> None:
        self.columns = tuple(columns)
        self.last_seconds = -inf
        self._index = {name: position for position, name in enumerate(self.columns, 1)}
        self._width = len(self.columns) + 1
        self._points = points
        self._buffer = array("d")
        self._head = 0  # where the next tick goes once full: the oldest one

    def __len__(self) -> int:
        return len(self._buffer) // self._width

    @property
    def cells(self) -> int:
        """Numbers held, 8 bytes each."""
        return len(self._buffer)

    def append(self, seconds: float, values: Row) -> None:
        """One tick at ``seconds``, ``values`` in the order of ``columns``; missing ones at the end are unknown.

        A tick that is not later than the last one is ignored."""
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
        if len(self) < self._points:
            self._buffer.extend(tick)
        else:
            at = self._head * self._width
            self._buffer[at : at + self._width] = tick
            self._head = (self._head + 1) % self._points

    def shrink(self, share: float) -> None:
        """Keeps only the newest ``share`` of its ticks, and no more than so many from here on."""
        points = max(int(len(self) * share), 1)
        if points < len(self):
            ordered = self._buffer[self._head * self._width :] + self._buffer[: self._head * self._width]
            self._buffer = ordered[-points * self._width :]
            self._head = 0
        self._points = min(self._points, points)

    def history(self, column: str, window_seconds: float | None = None) -> History:
        """``column`` over the last ``window_seconds``, or over everything kept; empty for a column never sent."""
        position = self._index.get(column)
        if position is None or not self._buffer:
            return EMPTY
        seconds, values = self._ordered(0), self._ordered(position)
        start = 0 if window_seconds is None else bisect_left(seconds, self.last_seconds - window_seconds)
        return History(tuple(seconds[start:]), tuple(None if v != v else v for v in values[start:]))

    def with_columns(self, columns: Sequence[str]) -> Ring:
        """The same history under another set of columns: a sender that was replaced may have others."""
        if self.columns == tuple(columns):
            self.columns = tuple(columns)
            return self
        ring = Ring(columns, self._points)
        ring.last_seconds = self.last_seconds
        ring._buffer = array("d", [nan]) * (len(self) * ring._width)
        ring._buffer[0 :: ring._width] = self._ordered(0)
        for name, position in ring._index.items():
            if name in self._index:
                ring._buffer[position :: ring._width] = self._ordered(self._index[name])
        return ring

    def _ordered(self, position: int) -> array[float]:
        column = self._buffer[position :: self._width]
        return column[self._head :] + column[: self._head]
