"""Jobs stand in one order everywhere: hangs, the longest first, then a lost loss, then by PID."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest

from gpuscope.cli.commands import oneline
from gpuscope.cli.commands.ps import document as ps_document
from gpuscope.doctor import live, order
from gpuscope.store.view import HostView, Link, no_history
from gpuscope.tui.background.finding_history import FindingHistory
from gpuscope.tui.hosts.runs import joined
from gpuscope.tui.hosts.summary import Grade, summarise
from gpuscope.tui.hosts.watch import word_of
from gpuscope.tui.shared.job_rows import job_lines
from gpuscope.wire import frames as f
from tests.fakes.wire import heard, hello, row, sample

HUNG_LATER, NAN, WELL, HUNG_FIRST, NAN_TOO, WELL_TOO = range(11, 17)
WORST_FIRST = [HUNG_FIRST, HUNG_LATER, NAN, NAN_TOO, WELL, WELL_TOO]
AGES = {HUNG_FIRST: 60.0, HUNG_LATER: 20.0}
BAD = 4
"""So many of them have a trouble that is told in the Doctor."""


def host(found: tuple[int, ...]) -> HostView:
    """Return a machine with these trainings, which were found in this order."""
    defs = [
        one
        for pid in found
        for one in (
            f.Def(pid, proc=f.ProcDef(pid, 1, user="ann", mine=True)),
            f.Def(pid + 100, trainer=f.TrainerDef(pid, 1, proc=pid, script=f"/x/t{pid}.py")),
        )
    ]
    rows = []
    for pid in found:
        hangs = {"stall_at": "a.py:9 f"} if pid in AGES else {}
        age = AGES.get(pid, 0.1)
        told = row(pid + 100, "t", step=90, step_seconds=0.2, step_age_seconds=age, **hangs)
        rows.append(told)
    why = [
        [pid + 100, "loss", f.NOT_SUPPORTED, "the progress bar shows loss nan since step 4"]
        for pid in (NAN, NAN_TOO)
    ]
    tick = sample(1, h=[], g=[], p=[], u=[], t=rows, a=[], why=why)
    view = heard(hello(), *defs, tick).view().host
    assert view is not None
    return replace(view, link=Link("live"))


def pid_in(text: str) -> int:
    return int(text.split("t", 1)[1][:2])


def overview(view: HostView) -> list[int]:
    return [pid_in(line.cells["job"][0]) for line in job_lines(view)]


def ps(view: HostView) -> list[int]:
    return [one["pid"] for one in ps_document.document(view, [])["processes"]]


def fleet(view: HostView) -> list[int]:
    rows = joined([(view.name, summarise(view, (), no_history).runs())])
    return [pid_in(one.parts[0][1].title) for one in rows]


def one_line(view: HostView) -> list[int]:
    named = [part for part in oneline.line(view).split(" · ") if ".py" in part]
    return [pid_in(part) for part in named]


def doctor(view: HostView) -> list[int]:
    found = order.rank(live.examine(view).findings)
    return [pid for one in found if one.severity == "problem" and (pid := order.pid_of(one))]


def findings(view: HostView) -> list[int]:
    course = FindingHistory()
    told = live.examine(view).findings
    course.follow([("live", one.job, one) for one in told[::-1]], 1.0)
    course.follow([("live", one.job, one) for one in told], 2.0)
    shown = [case for case in course.cases if case.finding.severity == "problem"]
    return [case.pid for case in shown if case.pid is not None]


def wrong_in_fleet(view: HostView) -> list[int]:
    return [pid_in(word.job) for word in summarise(view).words]


def told_in_fleet(view: HostView) -> list[int]:
    found = order.rank(live.examine(view).findings)
    told = [word_of(one, False, live.job_of(one, view)) for one in found]
    words = summarise(view, [word for word in told if word is not None]).words
    return [pid_in(word.job) for word in words if word.grade <= Grade.PROBLEM]


ALL: tuple[Callable[[HostView], list[int]], ...] = (overview, ps, fleet)
PROBLEMS: tuple[Callable[[HostView], list[int]], ...] = (
    doctor,
    findings,
    wrong_in_fleet,
    told_in_fleet,
)
FOUND = [*permutations(WORST_FIRST)][::97]


@pytest.mark.parametrize("surface", ALL)
def test_jobs_stand_in_one_order_however_they_were_found(surface):
    for found in FOUND:
        assert surface(host(found)) == WORST_FIRST


@pytest.mark.parametrize("surface", PROBLEMS)
def test_their_findings_stand_in_the_order_of_the_jobs(surface):
    for found in FOUND:
        assert surface(host(found)) == WORST_FIRST[:BAD]


def test_one_line_begins_with_the_worst_of_them():
    for found in FOUND:
        told = one_line(host(found))
        assert told == WORST_FIRST[: len(told)]
        assert told
