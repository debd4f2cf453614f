"""The instruments for looks, on figures whose answer is known: the trainings need a card."""

from __future__ import annotations

import pytest

from bench.look.cost import bars_of, compared, cost_of, lost_in, own_seconds, where
from gpuscope.model.look import read


def moments(step=0.01, lost=0.0, at=5.0, burst=0):
    """Ends of steps for ten seconds; at a moment some time is lost, or waited and made up for."""
    found, now = [], 0.0
    while now < 10.0:
        found.append(now)
        if at <= now < at + step:
            now += lost + burst * step
        now += step
    for number in range(burst):
        found.append(at + lost + burst * step + step * (number + 1) / (burst + 2))
    return sorted(found)


@pytest.mark.parametrize("lost", [0.0, 0.12])
@pytest.mark.parametrize("burst", [0, 20])
def test_the_cost_of_a_look_is_what_was_lost_and_not_what_was_waited(lost, burst):
    assert cost_of(moments(lost=lost, burst=burst), 5.0, 5.4) == pytest.approx(lost, abs=0.012)


def test_a_training_of_too_few_steps_has_no_cost():
    assert cost_of(moments(step=1.5), 5.0, 5.4) is None


def test_what_a_look_cost_is_shared_out_to_what_was_done_and_adds_up():
    ends = moments(lost=0.12, at=5.0)
    spans = [
        ["search", 4.99, 5.0],
        ["enable", 5.02, 5.05],
        ["stop", 5.06, 5.12],
        ["read", 6.0, 6.1],
    ]
    lost = lost_in(ends, 5.0, 5.4, spans)
    assert sum(lost.values()) == pytest.approx(cost_of(ends, 5.0, 5.4), abs=1e-9)
    assert (lost["enable"], lost["stop"]) == (pytest.approx(0.03), pytest.approx(0.06))
    assert lost["around"] == pytest.approx(0.03, abs=1e-6)
    assert lost_in(moments(step=1.5), 5.0, 5.4, spans) == {}


def test_the_table_has_the_bars_and_the_lines_say_where_time_was_lost():
    row = {
        "kind": "gpt", "cold": True, "first_cost_ms": [170.0], "cost_ms": [90.0], "worst": 0.06,
        "costs_ms": [170.0, 90.0], "lost_ms": [{"cupti": 40.0, "stop": 130.0}, {"stop": 90.0}],
        "looks": [{"calls": [["cudaLaunchKernel", 10, 1e-4]], "events": 20,
                   "overheads": [["Resource", 2, 0.03]]}] * 2,
    }  # fmt: skip
    table = "\n".join(bars_of([row]))
    assert all(word in table for word in ("gpt*", "170.0", "90.0", "6.0"))
    line = where(row, 0, "first look")
    assert "170 ms: CUPTI set up 40, stop 130; 20 events, 10 us a launch" in line
    assert line.endswith("CUPTI says: Resource 2x 30")


def test_a_moment_is_the_kernels_that_computes_then_communications_then_the_copys():
    ran = [["gemm", 0, 100], ["ncclDevKernel_AllReduce", 50, 150], ["gemm", 300, 400],
           ["Memcpy DtoH (Device -> Pageable)", 120, 200]]  # fmt: skip
    found = {name: round(seconds * 1e9) for name, seconds in own_seconds(ran).items()}
    assert found == {"products": 200, "communication": 50, "copies-out": 50}


def test_rows_are_compared_in_seconds_a_step_and_idle_is_what_is_left_of_the_clock():
    look = read({"seconds": 0.3, "steps": 3, "kernels": [["gemm", 3, 0.21, 0.21]],
                 "left_out": [0, 0, 0.0, 0.0], "idle": [["launch", 0.06, 5, "", 0.0]]})  # fmt: skip
    assert look is not None
    trace = {"steps": 2, "ran": [["gemm", 0, 80_000_000], ["gemm", 100_000_000, 160_000_000]]}
    rows = compared([look, look], trace, 0.1)
    assert rows["products"] == (pytest.approx(0.07), pytest.approx(0.07))
    assert rows["idle"] == (pytest.approx(0.03), pytest.approx(0.03))
