"""Keep what an allocator held right after each step, from step to step.

``step_allocated_bytes`` is read right after ``optimizer.step()``: one fixed point of the step,
where activations are freed and the rest should be the same every time. Nothing here judges it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

WARM_UP_POINTS, WARM_UP_STEPS = 5, 10
"""This many points from the start are ignored, and points of these first steps too, because
optimizer state and gradients are allocated then and kernels are tuned.
"""
RECENT_POINTS, OLD_POINTS = 240, 360
SPARSE_POINTS = 80
"""With fewer recent points than this, each new one is shown at once."""

MAX_ORDINALS, MAX_REMEMBERED = 64, 1024
"""Limits of what is read from a probe's answer: devices, and points of each."""

Point = tuple[float, float]
"""(step, bytes)."""


class StepPoints:
    """The points of one allocator at one moment, never changed afterwards.

    ``recent`` holds all of the newest points; ``old`` holds a thinned selection of earlier ones.
    """

    __slots__ = ("__weakref__", "_old", "_recent")

    def __init__(self, old: array[float], recent: array[float]) -> None:
        # step, bytes, step, bytes, …: there may be two thousand allocators
        self._old = old
        self._recent = recent

    @property
    def old(self) -> list[Point]:
        return _points(self._old)

    @property
    def recent(self) -> list[Point]:
        return _points(self._recent)


class Track:
    """The growing, bounded record of one allocator's points: all recent ones, fewer older ones.

    A step number that is lower than the last one starts a new record: the process trains again.
    """

    __slots__ = ("_count", "_old", "_old_stride", "_overflow", "_points", "_points_at", "_recent")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        # step, bytes, step, bytes, …: there may be two thousand allocators
        self._recent = array("d")
        self._old = array("d")
        self._old_stride = 1
        self._overflow = 0
        self._count = 0
        self._points_at = 0
        self._points: StepPoints | None = None

    def __len__(self) -> int:
        return (len(self._old) + len(self._recent)) // 2

    def add(self, step: float, size: float) -> None:
        """Add one reading. A step that is already known is ignored."""
        step = float(step)  # beyond 2**53 two steps may have the same float
        if self._recent:
            last = self._recent[-2]
            if step == last:
                return
            if step < last:
                self._clear()
        self._count += 1
        if self._count <= WARM_UP_POINTS or step <= WARM_UP_STEPS:
            return
        self._recent.extend((step, size))
        if len(self._recent) > 2 * RECENT_POINTS:
            if self._overflow % self._old_stride == 0:
                self._old.extend(self._recent[:2])
            del self._recent[:2]
            self._overflow += 1
            if len(self._old) >= 2 * OLD_POINTS:
                kept = [point for number, point in enumerate(_points(self._old)) if number % 2 == 0]
                self._old = array("d", [value for point in kept for value in point])
                self._old_stride *= 2

    def put_before(self, points: Sequence[Point]) -> None:
        """Put points that were read before this record began before the others, the oldest first.

        For times that the record covers, its own points are used.
        """
        own = [*_points(self._old), *_points(self._recent)]
        self._clear()
        for step, size in points:
            self.add(step, size)
        last = points[-1][0] if points else -1.0
        for step, size in own:
            if step > last:
                self.add(step, size)

    @property
    def points(self) -> StepPoints | None:
        """Return the points so far; None before the first.

        A new copy is made only after every few points. So a copy is judged once, and the judgement
        stays valid as long as a view shows the same copy.
        """
        held = len(self._recent) // 2
        every = 1 if held < SPARSE_POINTS else 4 if held < RECENT_POINTS else 8
        if held and self._count - self._points_at >= every:
            self._points_at = self._count
            self._points = StepPoints(self._old[:], self._recent[:])
        return self._points


def remembered(value: Mapping[str, object]) -> dict[int, list[Point]]:
    """Read a probe's answer to the request ``growth``: memory right after steps, by device ordinal.

    The answer may hold anything; whatever is not a point is left out.
    """
    kept = value.get("points")
    found: dict[int, list[Point]] = {}
    for one in kept[:MAX_ORDINALS] if isinstance(kept, list) else ():
        if (
            isinstance(one, list)
            and len(one) == 2
            and type(one[0]) is int
            and isinstance(one[1], list)
        ):
            points = [
                point
                for point in one[1][:MAX_REMEMBERED]
                if isinstance(point, list) and len(point) == 2
            ]
            found[one[0]] = [
                (float(step), float(size))
                for step, size in points
                if type(step) is int
                and type(size) is int
                and 0 <= step < 1 << 60
                and 0 <= size < 1 << 60
            ]
    return found


def _points(flat: array[float]) -> list[Point]:
    return list(zip(flat[::2], flat[1::2], strict=True))
