"""All surfaces count the jobs that ended badly, and the open findings, alike."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gpuscope.cli import dead_trainers
from gpuscope.cli.commands import oneline
from gpuscope.cli.commands.doctor import background_checks, left
from gpuscope.doctor.finding import Finding, Report
from gpuscope.model.ended_jobs import EndedJob, brief_text, ended_badly, joined, sentence
from gpuscope.model.job_ends import End, job_end, killed_by
from gpuscope.probe import blackbox, records
from gpuscope.store.view import LOCAL
from gpuscope.text.clock import MINUTE, clock_text
from gpuscope.tui.hosts.rows import host_row, totals_lines
from gpuscope.tui.hosts.summary import Grade, summarise, totals
from gpuscope.tui.theme import THEMES, Tokens
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.tui.doctor_home import at_home
from tests.tui.pilot import in_loop, make_app, until

FAILED = {"how": "exception", "type": "ValueError", "message": "no labels", "stack": []}
TWO = "2 jobs ended badly in the last day"
TOKENS = Tokens(THEMES[0])


@pytest.fixture
def left_boxes(monkeypatch, tmp_path) -> Path:
    """Boxes of three dead trainers: two ranks of one job that failed, and one without a message."""
    place = tmp_path / "boxes"
    monkeypatch.setenv("GPUSCOPE_BLACKBOX_DIR", str(place))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(records, "FREE_BYTES", 0)
    hello = f.Hello(role="probe", boot="x", cols={"t": list(f.TRAINER_COLUMNS)})
    for pid, job, end in ((4_100_001, "a", FAILED), (4_100_002, "a", FAILED), (4_100_003, "", {})):
        box = blackbox.BlackBox(lambda hz: hello)
        trainer = f.TrainerDef(pid, 3, script="train.py", job=job or None)
        row = [1, 1.0, *[None] * (len(f.TRAINER_COLUMNS) - 2)]
        box.sample(f.Sample(1, 10**9, t=[row]), {}, {1: f.Def(1, trainer=trainer)}, {})
        if end:
            box.ended(end)
        os.replace(box.path, place / f"{pid}-3.box")
    return place


def test_the_ranks_of_a_job_count_once_for_every_verb(left_boxes, capsys):
    said = f"{TWO}: 1 failed, 1 ended without an error message"
    assert dead_trainers.ended() == said
    assert dead_trainers.line().startswith(f"{said}. To play the last minutes of the newest:  ")
    assert left.examine().ended_here == said
    shown = oneline.line(views.host_of(views.cpu_only()), ended=dead_trainers.brief())
    assert shown.endswith(" · 2 jobs ended badly")
    background_checks.main(["left"])
    parts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (told,) = (part["jobs"] for part in parts if part["part"] == "ended")
    assert [sorted(one["pids"]) for one in told] == [[4_100_003], [4_100_001, 4_100_002]]


@in_loop
async def test_the_screens_count_what_the_verbs_count(left_boxes):
    app = make_app(views.cpu_only(), "doctor")
    at_home(app)
    watch = app.session.doctor
    jobs = [
        {"pids": one.pids, "seconds": one.seconds, "end": asdict(one.end)}
        for one in dead_trainers.counted()
    ]
    async with app.run_test(size=(120, 40)) as pilot:
        watch._take_report("ended", Report(), {"jobs": jobs})
        screen = await until(pilot, f"Nothing wrong: gpuscope lab, step 390  {TWO}")
        header, tabs = screen.splitlines()[:2]
        assert TWO in header
        assert "Doctor   " in tabs, "no finding is open"
    summary = summarise(views.host_of(views.cpu_only()), left=watch.left_here)
    worst = host_row(summary, TOKENS).cells["worst"]
    assert worst[0] == (f"{TWO}: 1 failed, 1 ended without an error message", "muted")
    assert summary.grade is Grade.ENDED
    lines = totals_lines(totals([summary]), 1, 120, TOKENS)
    assert views.flat(lines).splitlines()[0].endswith(TWO)


@in_loop
async def test_the_name_of_the_tab_counts_the_rows_of_the_list():
    """Those of ranks that say the same are one row; what ended or no longer holds has no sign."""
    app = make_app(views.cpu_only(), "doctor")
    at_home(app)
    watch = app.session.doctor
    one = Finding(
        pitfall="nccl-config",
        cause="e",
        title="GPU 0 is slowed by heat",
        severity="warning",
        confidence="definite",
        evidence=(),
        where="GPU 0",
    )
    gpus = [replace(one, title=f"GPU {n} is slowed by heat", where=f"GPU {n}") for n in range(3)]
    died = replace(one, severity="problem", title="it ran out", where="a.py (pid 7)")
    watch.environment = Report(findings=(*gpus, replace(one, title="old driver", where="")))
    more = {"pid": 7, "ended": time.time(), "name": "a.py", "path": "/tmp/a.box"}
    more["end"] = asdict(End("killed", "bad", how="by SIGKILL"))
    async with app.run_test(size=(120, 40)) as pilot:
        watch._take_report("left", Report(findings=(died,)), more)
        screen = await until(pilot, "GPU 0-2 are slowed", "old driver", "○ it ran out")
        header, tabs, *rows = screen.splitlines()
        assert "1 job ended badly: killed" in header
        assert "Doctor ◆2 " in tabs
        assert "▲" not in tabs
        assert sum("◆" in row for row in rows[:9]) == 2


def test_a_job_that_two_lists_name_counts_once_and_as_the_one_that_knows_more():
    silent, killed = End("ended", "warn", how="without an error message"), End("killed", "bad")
    seen, boxed = EndedJob((7, 8), 100.0, killed), EndedJob((8,), 101.0, silent)
    assert joined([boxed], [seen]) == (EndedJob((8, 7), 101.0, killed),)
    assert sentence(joined([boxed], [EndedJob((9,), 50.0, killed)])).startswith(TWO)
    assert brief_text(()) == sentence(()) == ""


def test_several_that_ended_in_one_way_are_counted_once():
    silent, killed = End("ended", "warn", how="without an error message"), End("killed", "bad")
    alike = [EndedJob((pid,), 100.0, silent) for pid in range(3)]
    assert brief_text(alike, False) == "3 jobs ended badly: all without an error message"
    assert sentence(alike).endswith(": all without an error message")
    mixed = [*alike, EndedJob((9,), 100.0, killed)]
    assert brief_text(mixed, False) == (
        "4 jobs ended badly: 1 killed, 3 ended without an error message"
    )


def test_a_job_counts_for_a_day_by_the_clock_of_its_host():
    host = views.host_of(views.ended())
    (job,) = ended_badly(host)
    assert job.end.phrase == "killed by SIGKILL"
    later = replace(host, wall_seconds=(host.wall_seconds or 0.0) + 86401.0)
    assert ended_badly(later) == []
    assert ended_badly(host, dict.fromkeys(job.pids, "SIGTERM")) == []


def test_of_another_host_the_count_says_since_when_it_was_watched():
    """Only this machine's black boxes tell what ended before."""
    here = views.host_of(views.ended())
    began = here.began_wall_seconds
    assert here.wall_seconds - began == 9.5, "twenty samples, two in a second"
    there = replace(here, key="ada@node-1")
    since = f"since {clock_text(began, MINUTE)}"
    assert sentence(ended_badly(there)) == f"1 job ended badly {since}: 1 killed by SIGKILL"
    assert summarise(there).words[0].text.endswith(f"{since}: killed")
    days = replace(there, began_wall_seconds=here.wall_seconds - 86401.0)
    for host in (replace(here, key=LOCAL), days):
        assert sentence(ended_badly(host)).startswith("1 job ended badly in the last day: ")
    boxed = EndedJob((9,), 50.0, End("failed", "bad"))
    both = joined(ended_badly(there), [boxed])
    assert sentence(both).startswith(f"{TWO}, as far as watched: ")
    same = boxed._replace(pids=ended_badly(there)[0].pids)
    assert sentence(joined(ended_badly(there), [same])).startswith("1 job ended badly in the last")


@pytest.mark.parametrize("sent", [1, 2, 15])
def test_a_job_that_was_asked_to_end_has_not_ended_badly(sent: int, left_boxes):
    ends = [
        replace(one, text=f"killed by signal {sent}") if getattr(one, "e", "") == "gone" else one
        for one in views.ended()
    ]
    host = views.host_of(ends)
    ended = [end for job in host.jobs if (end := job_end(job)) is not None]
    assert ended == [killed_by(sent)]
    assert ended_badly(host) == []
    blackbox.note_exit(4_100_003, 3, sent)
    assert dead_trainers.ended() == "1 job ended badly in the last day: 1 failed"
