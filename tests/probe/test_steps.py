"""Counting steps: which optimizer counts, and what the times are."""

from __future__ import annotations

import gc
import threading

import pytest

from gpuscope.probe.steps import TAKEOVER, WINDOW, Steps, median_interval, quantile


class Optimizer:
    pass


def run(steps: Steps, pattern: list[Optimizer], start: float = 0.0, each: float = 1.0) -> float:
    for optimizer in pattern:
        start += each
        steps.stepped(optimizer, start)
    return start


def test_one_optimizer_counts_every_step_and_times_them():
    steps, one = Steps(), Optimizer()
    run(steps, [one] * 10, each=0.25)
    assert steps.total == 10
    assert list(steps.durations) == [0.25] * 9
    assert steps.last == 2.5


def test_waits_are_of_the_same_steps_as_durations():
    # The first step has no known beginning: what was waited before it is part of no step that is
    # counted.
    steps, one = Steps(), Optimizer()
    for begin, seconds in ((0.0, 40.0), (50.0, 0.25), (51.0, 0.5)):
        steps.loads.append((threading.get_ident(), begin, begin + seconds))
        steps.stepped(one, begin + seconds + 0.5)
    assert steps.loader_seen
    assert list(steps.waits) == [0.25, 0.5]
    assert list(steps.durations) == [10.25, 1.25]


def test_two_optimizers_in_an_iteration_are_one_step():
    steps, generator, critic = Steps(), Optimizer(), Optimizer()
    run(steps, [generator, critic] * 20)
    assert steps.total == 20
    assert set(steps.durations) == {2.0}


def test_the_optimizer_that_steps_most_counts():
    steps, generator, critic = Steps(), Optimizer(), Optimizer()
    run(steps, [generator, *[critic] * 5] * 10)
    assert steps.total == 50


def test_an_optimizer_for_each_parameter_is_one_step_for_all():
    steps, many = Steps(), [Optimizer() for _ in range(100)]
    run(steps, many * 7)
    assert steps.total == 7


def test_a_replaced_optimizer_hands_the_count_over():
    steps, first = Steps(), Optimizer()
    end = run(steps, [first] * 30)
    del first
    gc.collect()
    second = Optimizer()
    run(steps, [second] * 5, end)
    assert steps.total == 35


def test_a_silent_optimizer_hands_over_to_the_one_that_goes_on():
    steps, first, second = Steps(), Optimizer(), Optimizer()
    end = run(steps, [first] * 30)
    run(steps, [second] * (TAKEOVER + 4), end)
    assert steps.total == 30 + TAKEOVER + 4
    assert set(steps.durations) == {1.0}


def test_the_window_is_bounded_and_forgets():
    steps, one = Steps(), Optimizer()
    end = run(steps, [one] * 10, each=100.0)
    run(steps, [one] * (WINDOW + 1), end, each=1.0)
    assert list(steps.durations) == [1.0] * WINDOW


def test_a_dead_optimizer_is_not_kept_alive():
    import weakref

    steps, one = Steps(), Optimizer()
    ref = weakref.ref(one)
    run(steps, [one] * 3)
    del one
    gc.collect()
    assert ref() is None


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([1.0], 0.5, 1.0),
        ([1.0, 3.0], 0.5, 2.0),
        ([1.0, 2.0, 9.0], 0.5, 2.0),
        (list(range(1, 101)), 0.95, 95),
    ],
)
def test_quantiles(values, share, expected):
    assert quantile(values, share) == expected


def test_medians_interval_by_hand():
    # of six values the smallest and the largest hold the median with 1 − 2/64 = 96.9 %; five cannot
    # reach 95 %
    assert median_interval([3, 1, 2, 6, 5, 4]) == (1, 6)
    assert median_interval([1, 2, 3, 4, 5]) is None
    assert median_interval([]) is None
    # n = 100: ranks 40 and 61, the usual table's
    assert median_interval(list(range(1, 101))) == (40, 61)
    low, high = median_interval(list(range(100_000)))  # type: ignore[misc]
    assert 49_600 < low < 50_000 < high < 50_400


def test_the_count_of_a_process_that_has_trained_before_goes_on_from_the_optimizers_own():
    """Each rank is looked into at a moment of its own."""
    torch = pytest.importorskip("torch")
    for make, expected in ((torch.optim.Adam, [8, 9]), (torch.optim.SGD, [1, 2])):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = make([parameter], lr=0.1)
        late, seen = Steps(goes_on=True), []
        for number in range(1, 10):
            parameter.grad = torch.ones(3)
            optimizer.step()
            if number >= 8:
                late.stepped(optimizer, float(number))
                seen.append(late.total)
        assert seen == expected
        assert list(late.durations) == [1.0]
