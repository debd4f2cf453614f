"""A job is no better than the worst device below it, on every screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gpuscope.doctor import live
from gpuscope.model import job_state as rules
from gpuscope.model.job_state import job_state, worst_of_jobs
from gpuscope.model.valid_history import while_it_answers
from gpuscope.tui.hosts.summary import Grade, summarise
from gpuscope.tui.memory.side_by_side import side_by_side
from gpuscope.tui.memory.subjects import subjects
from gpuscope.tui.overview.job_list import JobList
from gpuscope.tui.overview.sparklines import columns
from gpuscope.tui.processes.rows import Choice, listing
from gpuscope.tui.shared.job_rows import job_lines
from gpuscope.tui.theme import THEMES, Tokens
from gpuscope.tui.trainer.job_text import standing_out
from gpuscope.tui.trainer.rank_rows import rank_rows
from gpuscope.tui.widgets.text import DASH
from gpuscope.wire import frames as f
from tests.fakes import fleet, jobs, views
from tests.fakes.views import flat, seen

TOKENS = Tokens(THEMES[0])


def changed(frames: list[f.Frame], index: int, **readings: f.Scalar) -> list[f.Frame]:
    """The same frames with these readings of one device."""
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        for row in (row for row in sample.g if row[0] == 10 + index):
            for column, value in readings.items():
                row[1 + f.DEVICE_COLUMNS.index(column)] = value
    return frames


@dataclass(frozen=True)
class Below:
    """What is wrong with GPU 1, and what is to be said of the job whose rank 1 is on it."""

    name: str
    frames: Callable[[], list[f.Frame]]
    word: str
    kind: str
    note: str
    process: str
    grade: Grade
    severity: str


CASES = [
    Below(
        "lost",
        lambda: jobs.lose(jobs.ranks(), 1),
        "lost",
        "bad",
        "lost: GPU 1 of rank 1",
        "▲ GPU 1 lost",
        Grade.BROKEN,
        "problem",
    ),
    Below(
        "lost from the start, with other ranks stalled for it",
        lambda: jobs.lose(jobs.ranks(stalled=True), 3, 0),
        "lost",
        "bad",
        "lost: GPU 3 of rank 3",
        "▲ GPU 3 lost",
        Grade.BROKEN,
        "problem",
    ),
    Below(
        "with memory that fails",
        lambda: changed(jobs.ranks(), 1, remap_failed=1),
        "remap failed",
        "bad",
        "remap failed: GPU 1 of rank 1",
        "▲ GPU 1 remap failed",
        Grade.BROKEN,
        "problem",
    ),
    Below(
        "slowed by heat",
        lambda: changed(jobs.ranks(), 1, clock_event_reasons=0x20),
        "throttled",
        "warn",
        "slowed: GPU 1",
        "● step 4,119",
        Grade.WARNING,
        "warning",
    ),
    Below(
        "well",
        jobs.ranks,
        "ok",
        "ok",
        "",
        "● step 4,119",
        Grade.FINE,
        "",
    ),
]


@pytest.mark.parametrize("below", CASES, ids=[case.name for case in CASES])
def test_all_say_of_a_job_what_is_wrong_with_a_device_below_it(below: Below) -> None:
    host, history = seen(below.frames())
    (job,) = host.jobs
    state = job_state(host, job, history)
    assert (state.word, state.kind) == (below.word, below.kind)
    broken = below.kind == "bad"
    assert (worst_of_jobs(host) == "bad") == broken

    # the Overview: a sign before its name, and what is wrong below it
    (line,) = job_lines(host, history=history)
    assert (line.kind, line.broken) == (below.kind, broken)
    drawn = JobList._row(line, (), 40, 80, False, TOKENS)
    sign = {"bad": "  ▲ train.py", "warn": "  ◆ train.py"}.get(below.kind, "  train.py")
    assert flat([drawn]).startswith(sign)
    assert flat(line.notes).startswith(below.note if broken else "")

    # Processes, and the job's own screen
    rows = listing(host, history, Choice()).rows
    states = [flat([row.cells["state"]]) for row in rows]
    assert any(one.startswith(below.process) for one in states)
    assert states[0].startswith(below.process if broken else "")
    said = flat(standing_out(host, job, history))
    assert ("healthy" in said) == (below.kind != "bad")
    assert (below.word in said) == broken
    ranks = rank_rows(host, job, None, history)
    told = flat([ranks[0].cells["at"]]).startswith(f"GPU {3 if 'GPU 3' in below.note else 1} ")
    assert told == broken, "the rank on it comes first"

    # the fleet and the doctor give it the same weight
    assert summarise(host, (), history).grade == below.grade
    found = [one.severity for one in live.examine(host, history).findings]
    assert below.severity in found or not below.severity
    assert ("problem" in found) == broken


def test_what_is_drawn_of_a_lost_device_ends_when_it_was_lost() -> None:
    host, history = seen(jobs.lose(jobs.ranks(), 1, 60))
    device, other = host.devices[1], host.devices[2]
    for one, lost in ((device, True), (other, False)):
        spark = columns(history(one.id, "utilization_percent", 60.0), 60.0, 20, views.END)
        assert (spark[-1] is None, spark[-8] is None, spark[5] is None) == (lost, lost, False)
    allocator = device.allocators[0]
    held = history(allocator.id, "allocated_bytes", 60.0)
    assert None not in held.values, "torch still counts"
    kept = while_it_answers(held, history(device.id, "used_bytes", 60.0)).values
    assert [value is None for value in kept] == [False] * 60 + [True] * 60
    everything = subjects(host)
    table = side_by_side(host, everything, everything[0], history, 80)
    assert [" lost " in flat([line]) for line in table] == [False, False, True, False, False]


def test_a_job_that_runs_out_of_memory_first_has_no_eta() -> None:
    for frames, known in ((jobs.ranks(), True), (jobs.ranks(leaks=2), False)):
        host, history = seen(frames)
        (line,) = job_lines(host, history=history)
        assert (line.cells["eta"] != DASH) == known
        assert line.cells["pace"] != DASH, "it steps"


def test_the_devices_of_a_host_are_judged_once_however_many_jobs_it_has(monkeypatch) -> None:
    judged: list[int] = []

    def judge(host, device, history):
        judged.append(device.definition.index)
        return was(host, device, history)

    was = rules.judge
    monkeypatch.setattr(rules, "judge", judge)
    monkeypatch.setattr(rules, "broken", lambda device: pytest.fail("judged again"))
    host, history = seen(fleet.node(0, "busy", 4.0, processes=8))
    assert len(job_lines(host, history=history)) == 2, "my training, and what others run"
    assert judged == [*range(8)], "the list of jobs"
    judged.clear()
    assert len(summarise(host, (), history).runs()) == 9, "each, however many"
    assert judged == [*range(8)], "the Fleet"
