"""The order in which every screen and the shell name the fixes of a finding."""

from __future__ import annotations

from gpuscope.doctor.finding import Evidence, Finding, Fix
from gpuscope.doctor.report import evidence_lines
from gpuscope.doctor.steps import marked_step, paste_of, steps_of
from gpuscope.text import styled

CAUSE = Fix(title="Find what it waits for")
PREVENTION = Fix(title="Fail instead", code="timeout=120")
STACKS = Fix(title="Read the stacks", command="gpuscope attach 7", now=True)
LOG = Fix(title="Check the log", command="dmesg", now=True)


def finding(*fixes: Fix) -> Finding:
    return Finding(
        pitfall="hang-in-loader",
        cause="stall.loader",
        title="Hang",
        severity="problem",
        confidence="definite",
        evidence=(),
        fixes=fixes,
    )


def test_what_helps_now_comes_first_then_the_order_of_the_table():
    assert steps_of(finding(CAUSE, STACKS, PREVENTION), False) == [STACKS, CAUSE, PREVENTION]


def test_a_recording_has_only_what_is_for_the_next_run_if_there_is_any():
    assert steps_of(finding(LOG, CAUSE, STACKS, PREVENTION), True) == [CAUSE, PREVENTION]
    assert steps_of(finding(STACKS, LOG), True) == [LOG]


def test_copied_is_the_first_of_the_next_run_and_then_the_others_in_turn():
    found = finding(LOG, CAUSE, PREVENTION)
    assert [marked_step(found, False, turned) for turned in range(3)] == [2, 0, 2]
    assert marked_step(finding(CAUSE, STACKS), False) is None


def test_only_what_runs_as_it_stands_is_copied():
    assert paste_of(Fix(title="", code="DataLoader(…, timeout=120)")) == "timeout=120"
    assert paste_of(Fix(title="", code="DataLoader(…, num_workers=N, timeout=120)")) == ""
    assert paste_of(Fix(title="", command="gpuscope run -- torchrun …")) == ""
    assert paste_of(Fix(title="", command="gpuscope why PID", environment="A=1")) == "A=1"
    code = "for x in data:\n    model(x)"
    assert paste_of(Fix(title="", code=code)) == code


def test_a_source_stands_behind_the_last_word_even_where_the_line_is_full():
    one = Evidence("rank 0 waits at train.py:69 in main", "probe")
    lines = [styled.plain(line) for line in evidence_lines(one, 37)]
    assert lines == ["rank 0 waits at train.py:69 in", "main   probe"]
