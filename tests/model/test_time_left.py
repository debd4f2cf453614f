"""What a step still has to do bounds what a cure brings: the work of its host and of its GPU."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.model.look import Look, LookRow
from gpuscope.model.time_cause import Cause, Known
from gpuscope.model.time_causes import ranked
from gpuscope.model.time_ledger import TimeLedger, read

KINDS = {"kernels": "kernels", "copies-out": "copies"}


def ledger(step: float = 0.010, steps: int = 1000, **shares: float) -> TimeLedger:
    """A clock of so many steps, with the rest of it in the forward pass."""
    rows = {**shares, "forward": 1 - sum(shares.values())}
    seconds = step * steps
    minute = {
        "age_seconds": 1.0,
        "steps": steps,
        "looks": 1000,
        "rows": [[name, seconds * share, int(1000 * share)] for name, share in rows.items()],
    }
    return read({"minutes": [minute]})


def look(step: float = 0.010, gap: float = 30e-6, **rows: Any) -> Look:
    """A look at three steps with these milliseconds of each row; busy for what is left.

    ``gap`` is how long its idle gaps are on average.
    """
    names = ("held_seconds", "paused_seconds", "host_step_seconds")
    more = {name: rows.pop(name, None) for name in names}
    parts = {name.replace("_", "-"): 3e-3 * spent for name, spent in rows.items()}
    parts["products-half"] = 3 * step - sum(parts.values())
    found = tuple(
        LookRow(name, name, "idle" if name.startswith("idle") else "kernels", spent,
                spent / (3 * step), max(1, round(spent / gap)))
        for name, spent in parts.items()
    )  # fmt: skip
    return Look(3 * step, 3, found, 1, 0.0, 0.0, 0.0, 0.0, 0.0, **more)


def causes(clock: TimeLedger, seen: Look | None = None, **known: Any) -> dict[str, Cause]:
    return {one.name: one for one in ranked(clock, seen, Known(**known))}


@pytest.mark.parametrize(
    ("held", "share"),
    [
        (None, 0.5),  # not said: all launches that come late after the reads
        (0.0, 0.3),  # the host has work for the whole step: only what the reads themselves take
        (0.4, 0.4),
        (0.9, 0.5),  # the GPU has work for half of the step
    ],
)
def test_launches_after_reads_are_won_as_far_as_the_host_has_time(held, share):
    seen = look(idle_sync=3.0, idle_launch=2.0, held_seconds=None if held is None else held * 0.030)
    one = causes(ledger(), seen)["read"]
    assert one.share == pytest.approx(share, abs=0.001)
    assert one.high == pytest.approx(0.5, abs=0.001), "the upper end has them all"


@pytest.mark.parametrize(
    ("host", "share"),
    [
        (0.002, 0.45),  # the GPU has work for half of the step, and gaps between its kernels
        (0.007, 0.3),
        (0.011, 0.2),  # the reads themselves
    ],
)
def test_without_reads_the_host_needs_its_way_from_launch_to_launch(host, share):
    """However long the calls were held: the way back from a read goes with it."""
    seen = look(idle_sync=2.0, idle_launch=2.5, idle_queue=0.5, held_seconds=0.0,
                host_step_seconds=host)  # fmt: skip
    one = causes(ledger(), seen)["read"]
    assert one.share == pytest.approx(share, abs=0.001)
    assert one.high >= 0.5 - 0.001, "it cannot be shorter than what the GPU runs"


def test_without_reads_the_host_needs_no_more_than_it_does_apart_from_them():
    """The trace made it slower; by the clock it reads for 0.4 of a step."""
    seen = look(idle_sync=2.0, idle_launch=2.5, idle_queue=0.5, held_seconds=0.0,
                host_step_seconds=0.011)  # fmt: skip
    assert causes(ledger(read=0.4), seen)["read"].share == pytest.approx(0.4)


def test_steps_far_longer_than_most_go_into_what_the_gpu_waits_for_most_to_be_allocated():
    """Half of the time is in steps longer than the median, while the GPU does the same work."""
    seen = look(step=0.005, idle_allocate=2.0, idle_launch=0.5)
    one = causes(ledger(), seen, median_step_seconds=0.005)["allocate"]
    assert (one.share, one.high) == (pytest.approx(0.75), pytest.approx(0.75)), (
        "its work is the rest"
    )
    even = causes(ledger(), seen, median_step_seconds=0.010)["allocate"]
    assert even.share == pytest.approx(0.5, abs=0.01), "all steps are so long: more of the same"
    less = look(step=0.005, idle_allocate=1.0, idle_launch=1.5)
    assert causes(ledger(), less, median_step_seconds=0.005)["allocate"].share < 0.5
    rare = look(step=0.005, idle_allocate=0.2)
    assert "allocate" not in causes(ledger(), rare, median_step_seconds=0.005)


def test_without_blocking_launches_the_host_still_has_its_own_work():
    seen = look(idle_launch=8.0, held_seconds=0.015)
    facts = {"launch_blocking": 1}
    assert causes(ledger(), seen, facts=facts)["launch-blocking"].share == pytest.approx(0.5)
    seen = look(idle_launch=8.0, held_seconds=0.030)
    assert causes(ledger(), seen, facts=facts)["launch-blocking"].share == pytest.approx(0.8)


def test_a_pause_takes_what_the_median_of_the_steps_leaves_out():
    """The samples have seen half of it, as where it holds the interpreter."""
    clock = ledger(checkpoint=0.4)
    assert causes(clock, look(idle_launch=9.0))["checkpoint"].share == pytest.approx(0.4)
    seen = look(idle_launch=9.0, paused_seconds=0.0)
    one = causes(clock, seen, median_step_seconds=0.002)["checkpoint"]
    assert one.share == pytest.approx(0.8)
    assert one.low < 0.4
    assert one.high >= 0.8
    alone = causes(clock, median_step_seconds=0.002)["checkpoint"]
    assert (alone.share, alone.high) == (pytest.approx(0.4), pytest.approx(0.8))


def test_a_pause_in_most_steps_is_what_the_clock_says():
    seen = look(idle_launch=9.0, paused_seconds=0.0)
    one = causes(ledger(validation=0.5), seen, median_step_seconds=0.010)["validation"]
    assert one.share == pytest.approx(0.5)


def test_a_thread_that_waits_in_a_pause_for_its_gpu_wins_only_the_work_of_the_pause():
    """The host runs ahead by a queue of steps, and waits for all of them in the validation."""
    seen = look(paused_seconds=0.009)
    one = causes(ledger(validation=0.6), seen, median_step_seconds=0.002)["validation"]
    assert one.share == pytest.approx(0.3)
    assert one.high > 0.6


def test_a_gpu_that_never_rests_has_its_longer_steps_from_pauses():
    """The look has met no pause, and the clock has seen few: together they are what is missing."""
    one = causes(ledger(input=0.2), look(step=0.0075))["input"]
    assert one.share == pytest.approx(min(0.25, one.clock.high), abs=0.01)
    resting = causes(ledger(input=0.2), look(step=0.0075, idle_launch=3.0))["input"]
    assert resting.share == pytest.approx(0.2, abs=0.001)


def test_long_gaps_before_launches_belong_to_the_code_that_the_clock_has_seen():
    seen = look(gap=0.5e-3, idle_other=2.0, idle_launch=2.0)
    found = causes(ledger(other=0.35), seen)
    assert found["other"].share == pytest.approx(0.35, abs=0.001)
    assert "launch" not in found, "most of it is the other code's"
    short = causes(ledger(other=0.35), look(idle_launch=2.0))
    assert "other" not in short
    assert short["launch"].share == pytest.approx(0.2, abs=0.001)
