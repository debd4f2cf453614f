"""What is examined aside does not weigh on the viewer.

A child, which loads what the viewer must not, looks at the environment and at trainers that ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gpuscope.cli.commands.doctor import left as doctor_left
from gpuscope.doctor import report as reports
from gpuscope.doctor import table
from gpuscope.doctor.finding import Abstained, Evidence, Finding, Fix, Report
from gpuscope.model.ended_jobs import ended_badly
from gpuscope.model.job_ends import End, end_of_box
from gpuscope.tui.background.checks import SCRIPT, Aside, report_of
from gpuscope.tui.background.doctor_watch import DoctorWatch
from gpuscope.tui.background.unseen_deaths import UnseenDeaths
from gpuscope.tui.background.view_state import ViewState
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.fakes.probe_client import environment
from tests.fakes.waiting import until_true
from tests.fakes.watched import WATCHED
from tests.tui.doctor_home import Told, at_home
from tests.tui.pilot import in_loop, make_app, until

FAILED = End("failed", "bad", "ValueError: no labels")
NO_HISTORY = views.store_of([]).history


def history(*_: Any) -> Any:
    return NO_HISTORY("", 0, "")


def heard_by(
    argv: list[str], parts: tuple[str, ...] = ("environment",), wait: float = 90.0
) -> list[Any]:
    heard: list[Any] = []

    async def run() -> None:
        aside = Aside(lambda *said: heard.append(said), argv)
        aside.start(parts)
        end = time.monotonic() + wait
        while aside.running and time.monotonic() < end:
            await asyncio.sleep(0.02)
        aside.close()

    asyncio.run(run())
    return heard


def test_a_report_comes_through_json_as_it_was():
    made = Report(
        findings=(
            Finding(
                pitfall="num-workers",
                cause="a",
                title="t",
                severity="problem",
                confidence="prior",
                where="GPU 1",
                evidence=(Evidence("x", "nvml"), Evidence("y")),
                verify="gpuscope lab",
                fixes=(
                    Fix(title="f", code="a\nb", before="c", now=True),
                    Fix(title="g", environment="A=1"),
                ),
            ),
        ),
        abstained=(Abstained(pitfall="shm-size", missing="m"),),
        problems=("p",),
        examined=("e",),
    )
    settled = reports.finish(made, table.load())
    again = report_of(json.loads(json.dumps(reports.document(settled, 2))))
    assert again == settled


@pytest.mark.slow
def test_the_child_examines_the_environment_and_what_died_here(tmp_path):
    more = {"GPUSCOPE_BLACKBOX_DIR": str(tmp_path / "boxes"), "XDG_STATE_HOME": str(tmp_path)}
    env = environment(**more)
    raised = "raise AssertionError('Torch not compiled with CUDA enabled')"
    for end in (raised, "os.kill(os.getpid(), 9)"):
        subprocess.run(
            [sys.executable, "-c", WATCHED + end], env=env, capture_output=True, timeout=60
        )
    assert len(list((tmp_path / "boxes").glob("*.box"))) == 2
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "environment", "left"],
        env={**os.environ, **more},
        capture_output=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr.decode()
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["part"] for one in said] == ["environment", "ended", "left", "left", "end"]
    assert any("torch" in one for one in said[0]["report"]["examined"])
    left = said[2:4]
    assert all(one["name"] == f"python -c (pid {one['pid']})" for one in left)
    firsts = {report_of(one["report"]).findings[0].cause: one for one in left}
    assert "end.unseen" in firsts
    (exception,) = (
        report_of(one["report"]) for cause, one in firsts.items() if cause != "end.unseen"
    )
    assert exception.findings[0].severity == "problem"
    for one in left:
        first = report_of(one["report"]).findings[0]
        assert abs(one["ended"] - time.time()) < 60
        assert f"pid {one['pid']}" in first.where
        assert first.fixes[0].command.startswith("gpuscope replay ")
        assert first.fixes[0].now


def test_the_record_of_an_oom_stands_for_its_box(monkeypatch, tmp_path):
    from gpuscope.cli import dead_trainers
    from gpuscope.cli.commands.doctor import targets as doctor_targets

    pid = 4_000_123
    place = tmp_path / "gpuscope" / "records"
    place.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in (
        f"oom-h-{pid}-77-1.confirmed.pickle.gz",
        f"oom-h-{pid}-77-2.unconfirmed.pickle.gz",
        f"oom-h-{os.getpid()}-1-1.withdrawn.pickle.gz",
        "oom-h-nonsense",
    ):
        (place / name).write_bytes(b"x")
    (place / f"{pid}-77.box").write_bytes(b"x")
    monkeypatch.setattr(dead_trainers, "boxes", lambda *_: [(time.time(), place / f"{pid}-77.box")])
    seen: list[str] = []

    def examine(targets: list[str], *_: Any) -> Report:
        seen.extend(Path(target).name for target in targets)
        one = Finding(
            pitfall="reduce-batch-size",
            cause="oom.live_tensors",
            title="t",
            severity="problem",
            confidence="definite",
            evidence=(),
            where="cuda:0",
        )
        return Report(findings=(one,))

    monkeypatch.setattr(doctor_targets, "examine", examine)
    (death,) = doctor_left.deaths()
    report = death.report
    assert seen == [f"oom-h-{pid}-77-1.confirmed.pickle.gz"]
    assert death.pid == pid
    assert report.findings[0].where == f"pid {pid}, cuda:0"
    assert report.findings[0].fixes[0].command.startswith("gpuscope snapshot ")
    assert len(report.findings[0].fixes) > 1, "with the fixes of its pitfall"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('no json')", "malformed"),
        ("import sys; sys.exit(7)", "it ended with exit code 7"),
        ('print(\'{"part": "environment"}\')', "malformed"),
        ("import sys; sys.stdout.write('x' * 5_000_000)", "its answer is too long"),
    ],
)
def test_a_child_that_fails_is_a_line_under_what_could_not_be_checked(code, why):
    ((part, report, _),) = heard_by([sys.executable, "-c", code])
    assert part == "problem"
    assert why in report.problems[0]
    assert report.problems[0].startswith("The environment: not checked, ")
    assert report.problems[0].endswith("Try: gpuscope doctor")


def test_a_child_that_cannot_be_started_or_does_not_end(monkeypatch):
    from gpuscope.tui.background import checks as aside

    ((_, report, _),) = heard_by(["/nowhere/python"], ("left",))
    assert (
        "Trainers that ended here: not checked, it cannot be started: No such file"
        in report.problems[0]
    )
    monkeypatch.setattr(aside, "LIMIT_SECONDS", 0.3)
    ((_, report, _),) = heard_by([sys.executable, "-c", "import time; time.sleep(600)"])
    assert "it has not ended within" in report.problems[0]


def test_a_session_that_ends_leaves_no_child(tmp_path):
    pid_file = tmp_path / "pid"
    code = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"

    async def run() -> None:
        aside = Aside(lambda *_: None, [sys.executable, "-c", code])
        aside.start(("environment",))
        await until_true(lambda: pid_file.exists() and pid_file.read_text(), 60)
        aside.close()
        await asyncio.sleep(0.1)

    asyncio.run(run())
    pid = int(pid_file.read_text())
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError("the child lives on")


# ── what becomes of it ──


def left(pid: int, ended: float, end: End = FAILED) -> dict[str, object]:
    """What is told of a trainer that ended, besides its report."""
    return {"pid": pid, "ended": ended, "name": "a.py", "end": asdict(end), "path": "/tmp/a.box"}


def watch_of(local: bool) -> tuple[DoctorWatch, Told]:
    aside = Told()
    watch = DoctorWatch(lambda: None, lambda: local, aside=aside)
    watch.prepare()
    return watch, aside


def test_it_is_asked_once_on_this_machine_again_after_a_death_and_never_for_others():
    watch, aside = watch_of(True)
    watch.look(views.store_of(views.crowd()).view().host, history)
    assert aside.asked == [("environment", "left")]
    watch._next = 0.0
    watch.look(views.store_of(views.crowd(9.0)).view().host, history)
    assert len(aside.asked) == 1
    watch._next = 0.0
    watch.look(views.store_of(views.ended()).view().host, history)
    assert aside.asked[1:] == [("left",)]
    watch, aside = watch_of(False)
    watch.look(views.store_of(views.crowd()).view().host, history)
    assert aside.asked == []
    assert "another machine" in watch.not_examined


def test_a_death_is_marked_until_it_was_seen_whatever_ended_the_trainer():
    watch, _ = watch_of(True)
    end = Finding(
        pitfall="reduce-batch-size",
        cause="oom.live_tensors",
        title="it ran out",
        severity="problem",
        confidence="definite",
        evidence=(),
        where="pid 9, cuda:0",
    )
    killed = replace(end, severity="info", title="it was killed", where="pid 10")
    for pid, found in ((9, end), (10, killed)):
        watch._take_report("left", Report(findings=(found,)), left(pid, time.time() - pid))
    assert [case.kind for case in watch.cases] == ["left", "left"]
    ended = watch.ended
    assert [one.end for one in ended] == [FAILED, FAILED]
    assert watch.counts() == (0, 0, ended, True), "no finding on what lives now"
    watch.see_deaths()
    assert watch.counts() == (0, 0, ended, False), "counted for a day, and news until it was seen"
    watch._take_report("left", Report(), left(11, time.time(), end_of_box(None)))
    assert watch.counts() == (0, 0, watch.ended, True), "it ended after that"
    assert [one.end for one in watch.ended] == [end_of_box(None), FAILED, FAILED]


def test_a_job_that_is_killed_while_it_is_watched_is_marked_and_one_that_was_stopped_is_not():
    stopped: dict[int, str] = {}
    unseen = UnseenDeaths(ViewState())
    host = views.store_of(views.ended()).view().host
    unseen.watched(ended_badly(host, stopped))
    (job,) = unseen.jobs(())
    assert job.end.phrase == "killed by SIGKILL"
    stopped.update(dict.fromkeys(job.pids, "SIGTERM"))
    unseen.watched(ended_badly(host, stopped))
    assert unseen.jobs(()) == ()


def test_how_a_watched_trainer_was_killed_is_said_in_place_of_the_guess_from_its_box():
    watch, _ = watch_of(True)
    host = views.store_of(views.ended()).view().host
    assert host is not None
    guess = Finding(
        pitfall="host-memory-limit",
        cause="end.unseen",
        title="a.py ended without an error message: a signal, a crash or os._exit",
        severity="info",
        confidence="prior",
        evidence=(),
        where="pid 48220",
    )
    watch._take_report(
        "left", Report(findings=(guess,)), left(48220, host.wall_seconds or 0.0, end_of_box(None))
    )
    assert [case.finding for case in watch.cases] == [guess]
    watch.look(host, history)
    titles = [case.finding.title for case in watch.cases if case.kind == "left"]
    assert titles == ["a.py was killed by SIGKILL: often the kernel's OOM killer"]
    assert [one.end.phrase for one in watch.deaths] == ["killed by SIGKILL"]


@pytest.mark.parametrize(
    ("script", "counted"),
    [("train.py", 1), ("gpuscope lab", 0), ("/lib/ipykernel_launcher.py", 0)],
)
def test_a_silent_end_is_counted_unless_it_is_of_a_notebook_or_of_the_lab(script, counted):
    frames = views.trainer(48213, 0, 1, "ada", True, "job", script)
    sample = f.Sample(1, int(views.END * 1e9), h=[views.host_row()])
    ended = f.Event(313, "gone", int((views.END + 1) * 1e9), f.NO_LAST_WORDS)
    later = replace(sample, q=2, m=sample.m + 2 * 10**9)
    frames = [views.hello(), views.host_def(), *frames, sample, ended, later]
    unseen = UnseenDeaths(ViewState())
    unseen.watched(ended_badly(views.host_of(frames)))
    assert len(unseen.jobs(())) == counted


@in_loop
async def test_the_findings_of_the_environment_stand_among_the_others_and_it_is_told_that_they_are_awaited():  # noqa: E501
    app = make_app(views.crowd(), "doctor")
    watch = app.session.doctor
    at_home(app)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "the environment is being checked")
        found = Finding(
            pitfall="persistence-mode" if "persistence-mode" in table.load() else "nccl-config",
            cause="e",
            title="made up of the driver",
            severity="warning",
            confidence="definite",
            evidence=(Evidence("0 of 8"),),
            where="GPU 0",
        )
        watch._take_report(
            "environment", Report(findings=(found,), examined=("environment", "8 GPUs")), {}
        )
        await until(pilot, "▸ ◆ made up of the driver", "4 Doctor ◆1", "checked at the start")


@pytest.mark.slow
def test_the_viewer_loads_neither_torch_nor_pynvml_for_it(tmp_path):
    code = (
        "import asyncio, sys\n"
        "from gpuscope.tui.app.app import GpuscopeApp\n"
        "from gpuscope.tui.shell.session import Session\n"
        "from tests.fakes import views\n"
        "async def main():\n"
        "    session = Session(views.store_of(views.training()))\n"
        "    type(session).local = property(lambda self: True)\n"
        "    from gpuscope.tui.background import doctor_watch as watch\n"
        "    watch.ASIDE_SECONDS = 0.0\n"
        "    app = GpuscopeApp(session, 'doctor')\n"
        "    async with app.run_test(size=(120, 40)) as pilot:\n"
        "        for _ in range(600):\n"
        "            await pilot.pause(0.05)\n"
        "            if session.doctor.environment is not None and session.doctor.cases: break\n"
        "        await pilot.press('enter', 'escape', 'n')\n"
        "        assert session.doctor.environment.examined, session.doctor.environment\n"
        "asyncio.run(main())\n"
        "print(sorted({'torch', 'pynvml', 'gpuscope.collect.nvml', 'gpuscope.collect.host'} & "
        "set(sys.modules)))\n"
    )
    env = {
        **os.environ,
        "PYTHONPATH": ".",
        "XDG_STATE_HOME": str(tmp_path),
        "GPUSCOPE_BLACKBOX_DIR": str(tmp_path),
    }
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, cwd=root
    )
    assert done.stdout.strip() == "[]", done.stderr[-2000:]
