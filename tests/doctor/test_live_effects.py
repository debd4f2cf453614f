"""The cures of live findings are predicted by the readings.

The readings are those of made-up streams through the real store.
"""

from __future__ import annotations

import pytest

from gpuscope.wire import frames as f
from tests.doctor.test_live import found, named, one, other, put
from tests.fakes import jobs
from tests.fakes.views import GIB, row


def test_the_waiting_for_input_is_the_most_that_workers_can_win():
    effect = named(
        one(**jobs.split(0.5, input=0.6, compute=0.2, optimizer=0.05)), "num-workers"
    ).effect
    assert (effect.saved_share, effect.bound) == (pytest.approx(0.6, abs=0.01), "at most")
    assert "2.5 times as many steps" in effect.text


def test_exposed_communication():
    frames = jobs.ranks()
    for name, seconds in jobs.split(0.5, compute=0.3, optimizer=0.05).items():
        put(frames, name, lambda _, seconds=seconds: seconds)
    effect = named(frames, "nccl-config").effect
    assert 0.4 < effect.saved_share < 1
    assert "all of the exposed communication" in effect.text


def test_what_the_others_wait_for_a_slow_rank():
    """A share of the 0.5 s that the parts add up to: the median of other steps is half of that."""
    frames = put(jobs.ranks(), "step_seconds", lambda _: 0.25)
    rest = sum(
        share for name, share in jobs.SPLIT.items() if name not in ("compute", "communication")
    )
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        for rank, values in enumerate(sample.t):
            compute = (1.0 if rank == 1 else 0.6) - rest  # what is left is communication
            for name, seconds in jobs.split(0.5, compute=compute).items():
                values[1 + f.TRAINER_COLUMNS.index(name)] = seconds
    (slow,) = [finding for finding in found(frames) if finding.cause == "ranks.straggler"]
    assert slow.effect.saved_share == pytest.approx(0.4, abs=0.05)
    assert "the time for which the others wait for it" in slow.effect.text


def test_the_gap_between_reserved_and_allocated_at_their_peaks():
    sizes = {"peak_allocated_bytes": 100 * GIB, "peak_reserved_bytes": 130 * GIB}
    frames = put(one(60, used=132.0, allocator=sizes), "alloc_retries", lambda q: 2 + q)
    assert named(frames, "expandable-segments").effect.freed_bytes == 30 * GIB


def test_half_a_batch_by_the_exact_categories():
    sizes = {
        "peak_allocated_bytes": 130 * GIB,
        "peak_reserved_bytes": 132 * GIB,
        "parameter_bytes": 10 * GIB,
    }
    sizes |= {"gradient_bytes": 10 * GIB, "optimizer_state_bytes": 20 * GIB}
    frames = put(one(60, used=134.0, allocator=sizes), "alloc_retries", lambda q: q)
    effect = named(frames, "reduce-batch-size").effect
    assert (effect.freed_bytes, effect.bound) == (45 * GIB, "at most")  # (130 − 10 − 10 − 20) / 2


def test_what_another_process_holds_is_exact():
    there = [row("u", 250, used_bytes=60 * GIB)]
    tight = one(
        used=138.0,
        extra=other(),
        uses=there,
        allocator={"active_bytes": 77 * GIB, "reserved_bytes": 77 * GIB},
    )
    effect = named(tight, "other-process-holds-gpu").effect
    assert (effect.freed_bytes, effect.bound) == (60 * GIB, "exactly")


def test_skipped_steps():
    assert named(
        one(skipped_steps=1000), "bf16-instead-of-fp16"
    ).effect.saved_share == pytest.approx(0.2, abs=0.01)
