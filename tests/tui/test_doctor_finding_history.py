"""No finding flickers, and each tells for how long it holds.

One that is over stays a while, greyed.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.doctor.finding import Evidence, Finding
from gpuscope.tui.background.finding_history import (
    GONE_SECONDS,
    NEW_SECONDS,
    PAST_SECONDS,
    FindingHistory,
)


def finding(cause: str = "live.input_bound", **more: Any) -> Finding:
    values: dict[str, Any] = {
        "pitfall": "num-workers",
        "title": "it waits",
        "severity": "warning",
        "confidence": "likely",
        "evidence": (Evidence("31 %"),),
        "where": "rank 0, GPU 0, pid 4711",
    }
    return Finding(cause=cause, **{**values, **more})


def live(*found: Finding, job: str = "job") -> list[Any]:
    return [("live", job, one) for one in found]


def test_what_holds_when_we_begin_is_shown_at_once_and_may_be_older():
    course = FindingHistory()
    course.follow(live(finding()), 100.0)
    (case,) = course.cases
    assert (case.before, case.since, case.past) == (True, 100.0, False)


def test_a_new_warning_is_shown_when_it_has_held_and_a_problem_at_once():
    course = FindingHistory()
    course.follow([], 100.0)
    course.follow(live(finding(), finding("stall.alone", severity="problem")), 101.0)
    assert [case.finding.cause for case in course.cases] == ["stall.alone"]
    course.follow(live(finding(), finding("stall.alone", severity="problem")), 101.0 + NEW_SECONDS)
    assert [case.finding.cause for case in course.cases] == ["stall.alone", "live.input_bound"]
    assert [(case.since, case.before) for case in course.cases] == [(101.0, False)] * 2


def test_a_reading_about_a_threshold_gives_one_finding_that_stays():
    course = FindingHistory()
    course.follow(live(finding()), 0.0)
    number = course.cases[0].number
    for second in range(1, 60):
        course.follow(live(finding()) if second % 3 == 0 else [], float(second))
        assert [(case.number, case.past, case.since) for case in course.cases] == [
            (number, False, 0.0)
        ]


def test_one_that_no_longer_holds_is_greyed_with_its_time_and_goes_after_a_while():
    course = FindingHistory()
    course.follow(live(finding()), 0.0)
    course.follow([], GONE_SECONDS + 1)
    (case,) = course.cases
    assert case.past
    assert case.seen == 0.0
    assert not case.grave
    course.follow([], GONE_SECONDS + PAST_SECONDS - 1)
    assert len(course.cases) == 1
    course.follow([], GONE_SECONDS + PAST_SECONDS + 1)
    assert course.cases == ()


def test_one_that_comes_again_is_the_same_row_and_begins_anew():
    course = FindingHistory()
    course.follow(live(finding()), 0.0)
    number = course.cases[0].number
    course.follow([], 20.0)
    course.follow(live(finding()), 40.0)
    (case,) = course.cases
    assert (case.number, case.since, case.past, case.before) == (number, 40.0, False, False)


def test_another_rank_of_the_job_that_is_the_worst_now_goes_on_with_the_case():
    course = FindingHistory()
    course.follow(live(finding(where="rank 0, GPU 0, pid 10")), 0.0)
    course.follow(live(finding(where="rank 3, GPU 3, pid 13")), 5.0)
    (case,) = course.cases
    assert (case.since, case.pid) == (0.0, 13)
    course.follow(
        live(finding(where="rank 3, GPU 3, pid 13"), job="job")
        + live(finding(where="pid 99"), job="b"),
        6.0,
    )
    assert [case.since for case in course.cases] == [0.0], (
        "another job's is another, and must hold first"
    )


def test_the_same_words_for_another_cause_are_the_same_case():
    course = FindingHistory()
    course.follow(live(finding("ranks.straggler", pitfall="rank-straggler")), 0.0)
    course.follow(live(finding("ranks.slow_input")), 5.0)
    assert [(case.since, case.finding.cause) for case in course.cases] == [
        (0.0, "ranks.slow_input")
    ]


def test_the_severity_falls_only_when_it_has_been_milder_for_a_while():
    course = FindingHistory()
    course.follow(live(finding(title="31 %")), 0.0)
    course.follow(live(finding(severity="info", title="29 %")), 1.0)
    assert [(c.finding.severity, c.finding.title) for c in course.cases] == [("warning", "29 %")]
    course.follow(live(finding(severity="info", title="12 %")), GONE_SECONDS + 1)
    assert [(c.finding.severity, c.finding.title) for c in course.cases] == [("info", "12 %")]
    course.follow(live(finding(severity="problem", title="90 %")), GONE_SECONDS + 2)
    assert [c.finding.severity for c in course.cases] == ["problem"], "worse is told at once"


def test_how_a_trainer_ended_stays():
    course = FindingHistory()
    course.follow([("end", "job", finding("oom.live_tensors", severity="problem"))], 0.0)
    course.follow([], 5000.0)
    assert [case.past for case in course.cases] == [False]


def test_time_that_runs_backwards_begins_anew():
    course = FindingHistory()
    course.follow(live(finding()), 100.0)
    course.follow(live(finding(where="pid 1")), 40.0)
    assert [(case.since, case.before, case.pid) for case in course.cases] == [(40.0, True, 1)]


FOUND = st.lists(
    st.builds(
        lambda cause, **more: finding(cause, title=f"{cause} says so", **more),
        st.sampled_from(["a", "b"]),
        severity=st.sampled_from(["problem", "warning", "info"]),
        where=st.sampled_from(["pid 1", "pid 2", "host"]),
        rank=st.floats(0, 3),
    ),
    max_size=5,
    unique_by=lambda one: (one.cause, one.where),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(FOUND, st.floats(0.1, 30.0)), max_size=12))
def test_whatever_comes_each_case_is_once_there_and_what_is_found_is_never_past(rounds):
    course, now = FindingHistory(), 0.0
    for found, wait in rounds:
        now += wait
        course.follow(live(*found), now)
        numbers = [case.number for case in course.cases]
        assert len(set(numbers)) == len(numbers)
        here = {(one.cause, one.where) for one in found}
        for case in course.cases:
            if (case.finding.cause, case.finding.where) in here:
                assert not case.past
        ranked = [
            (case.past, ["problem", "warning", "info"].index(case.finding.severity))
            for case in course.cases
        ]
        assert ranked == sorted(ranked), "what holds first, the worst first"
