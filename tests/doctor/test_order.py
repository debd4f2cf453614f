"""A cause stands before what it is known to lead to, on the command line and in the tab alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuscope.doctor import explain, live, table
from gpuscope.doctor.finding import Evidence, Finding
from gpuscope.doctor.order import rank
from gpuscope.store.view import no_history
from gpuscope.text.styled import plain
from gpuscope.tui.background.finding_history import FindingHistory, pid_of
from tests.fakes import views

LOST = Finding(
    pitfall="not-finite",
    cause="loss.turned",
    title="The loss is NaN since step 26",
    severity="problem",
    confidence="definite",
    evidence=(Evidence("its log says nan"),),
    where="rank 0, pid 7",
)
UNDIVIDED = Finding(
    pitfall="loss-not-divided",
    cause="script.loss-not-divided",
    title="The loss is not divided",
    severity="warning",
    confidence="likely",
    evidence=(Evidence("loss.backward()"),),
    where="train.py:38",
    pids=(6, 7),
)
SLOW = replace(LOST, pitfall="num-workers", cause="live.input_bound", severity="warning")


def causes(*found: Finding) -> list[str]:
    """Return the causes in their order, which must be that of the tab for what the tab can show."""
    course = FindingHistory()
    course.follow([("live", "", one) for one in found], 1.0)
    ranked = [one.cause for one in rank(found)]
    assert [case.finding.cause for case in course.cases] == ranked
    return ranked


def test_what_makes_the_loss_nan_stands_before_it_and_both_say_so():
    assert causes(SLOW, LOST, UNDIVIDED) == [UNDIVIDED.cause, LOST.cause, SLOW.cause]
    cause, symptom, slow = rank([SLOW, LOST, UNDIVIDED])
    assert cause.evidence[-1].text == f"this can lead to: {LOST.title}"
    assert symptom.evidence[-1].text == f"this can come of: {UNDIVIDED.title} (train.py:38)"
    assert slow == SLOW, "what has no part in it is unchanged"
    assert (cause.severity, symptom.severity) == ("warning", "problem"), "and none is graver"


@pytest.mark.parametrize(
    "other",
    [
        replace(UNDIVIDED, pids=(8,)),
        replace(UNDIVIDED, pids=()),
        replace(UNDIVIDED, severity="info"),
        replace(UNDIVIDED, confidence="prior"),
        replace(UNDIVIDED, cause="script.zeroed-each-micro-batch"),
    ],
    ids=["another training", "of nobody known", "no trouble", "only frequent", "unrelated"],
)
def test_nothing_else_comes_before_a_problem(other):
    assert causes(other, LOST)[0] == LOST.cause
    assert all("this can" not in line.text for one in rank([other, LOST]) for line in one.evidence)


def test_a_cause_of_a_cause_stands_before_both():
    edge = replace(LOST, pitfall="reduce-batch-size", cause="live.at_the_edge")
    grows = replace(LOST, pitfall="detach-loss-accumulation", cause="live.memory_grows")
    grows = replace(grows, severity="warning", confidence="likely")
    kept = replace(UNDIVIDED, pitfall="detach-loss-accumulation", cause="script.loss-kept")
    assert causes(edge, grows, kept) == [kept.cause, grows.cause, edge.cause]


def test_a_finding_on_a_gpu_knows_the_trainings_there():
    host = views.host_in(views.store_of(views.hung()))
    found = {one.where: one for one in live.examine(host, no_history).findings}
    for trainer in host.trainers:
        pid = trainer.definition.pid
        on_devices = [one for one in found.values() if pid in one.pids]
        assert all(pid_of(one) is None for one in on_devices)
    assert any(one.pids for one in found.values() if one.pitfall == "gpu-health"), found


def test_each_relation_of_the_table_is_between_causes_that_are_found_and_is_told_on_both_pages():
    rows = table.load()
    known = {cause for row in rows.values() for cause in row.causes}
    pages = explain.site_pages(rows.values())
    related = [row for row in rows.values() if row.comes_of]
    assert related
    for row in related:
        assert {*row.comes_of} <= known, row.id
        for other in table.comes_of(row):
            assert f"({other}.md)" in pages[f"pitfalls/{row.id}.md"].partition("Can come of")[2]
            assert f"({row.id}.md)" in pages[f"pitfalls/{other}.md"].partition("Can lead to")[2]
            said = "\n".join(plain(line) for line in explain.explained(rows[other], 80))
            assert row.id in said.partition("Can lead to")[2]
