"""The points of an allocator's memory after steps are kept bounded, and shown unchanging."""

from __future__ import annotations

from itertools import pairwise

from gpuscope.store import step_points
from gpuscope.store.step_points import Track
from tests.fakes.memories import GIB, MIB


def test_points_are_bounded_and_span_the_whole_run():
    track = Track()
    for step in range(1, 50_001):
        track.add(step, GIB)
    assert len(track) <= step_points.RECENT_POINTS + step_points.OLD_POINTS
    assert track.points is not None
    points = track.points.old
    assert points[0][0] <= 20
    gaps = [b[0] - a[0] for a, b in pairwise(points)]
    assert max(gaps) <= 2 * 2 * 50_000 / step_points.OLD_POINTS


def test_a_step_that_goes_back_begins_anew():
    track = Track()
    for step in range(1, 61):
        track.add(step, GIB + 10 * MIB * step)
    assert len(track) > 0
    track.add(1, GIB)
    assert len(track) == 0
    assert track.points is None


def test_points_once_shown_stay_as_they_were():
    track = Track()
    for step in range(1, 21):
        track.add(step, GIB)
    shown = track.points
    assert shown is not None
    before = list(shown.recent)
    assert track.points is shown
    track.add(21, GIB)
    assert track.points is not shown
    assert shown.recent == before


def test_an_answer_of_a_probe_may_hold_anything():
    good = [[100 + n, n * MIB] for n in range(3)]
    odd = [[1], "x", [2, -1], [3, 1 << 80], [4.5, 1], [True, 1], None]
    told = {"points": [[0, [*odd, *good]], ["a"], 7, [1.5, good], [2, "x"], None]}
    assert step_points.remembered(told) == {0: [(100.0 + n, float(n * MIB)) for n in range(3)]}
    for nothing in ({}, {"points": None}, {"points": {"0": good}}):
        assert step_points.remembered(nothing) == {}
    flood = step_points.remembered({"points": [[n, [[1, 1]] * 5000] for n in range(5000)]})
    assert len(flood) == step_points.MAX_ORDINALS
    assert {len(points) for points in flood.values()} == {step_points.MAX_REMEMBERED}
