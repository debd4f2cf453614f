"""The doctor takes a short look at the trainers of this machine.

There are a fake driver, real probe sockets, and what trainers remember of the minutes before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from gpuscope.agent.live_frames import LiveFrames
from gpuscope.agent.picture import Collector
from gpuscope.cli import one_trainer
from gpuscope.cli.commands.doctor import live as doctor_live
from gpuscope.cli.main import main
from gpuscope.probe import rendezvous
from tests.fakes import probe_process
from tests.fakes.nvml import FakeNvml, FakeProcess
from tests.recordings import SHIPPED


@pytest.fixture
def sockets(tmp_path):
    return probe_process.make_directory(tmp_path / "sockets")


@pytest.fixture
def fake():
    fake = FakeNvml(gpus=2)
    with fake.install():
        yield fake


def look(sockets, pid=None, timeout=8.0):
    collector = Collector(4.0, probe_hz=5.0, directories=[str(sockets)])
    return doctor_live.examine(pid, timeout, LiveFrames(4.0, 5.0, collector))


def test_without_a_trainer_it_says_so_at_once(fake, sockets):
    report = look(sockets, timeout=600)  # far beyond the time that a test has
    assert (report.findings, report.problems) == ((), ())
    said, devices = report.examined
    assert devices == "2 GPUs"
    assert said.startswith("no trainer with a probe runs here")


def test_a_look_knows_what_the_trainer_remembers_of_the_minutes_before(fake, sockets):
    collector = Collector(4.0, probe_hz=5.0, directories=[str(sockets)])
    with probe_process.start(sockets):
        watched = doctor_live.LocalWatch(LiveFrames(4.0, 5.0, collector), ask=True)
        began = time.monotonic()
        try:
            watched.first(8.0)
            (trainer,) = watched.tick()
            steps = watched.history(trainer.id, "step_seconds", None)
        finally:
            watched.stop()
    assert steps.seconds[0] < began - 60 * (probe_process.MINUTES_BEFORE - 1)
    assert (steps.values[0], steps.values[-1]) == (0.5, 0.25), "what was told, then what was seen"


def test_growth_is_judged_at_once_by_what_the_trainer_remembers(fake, sockets):
    with probe_process.start(sockets, "leaks") as trainer:
        fake.processes.append(FakeProcess(trainer.pid, used=9 << 30, gpu=0))
        report = look(sockets, trainer.pid)
    growing = next(
        one
        for one in report.findings
        if one.cause == "live.memory_grows" and one.confidence == "likely"
    )
    assert "768 KiB per step" in growing.evidence[0].text
    assert report.examined == (f"train.py (pid {trainer.pid})", "GPU 0")


@pytest.mark.slow
def test_a_level_past_is_no_growth_and_without_one_it_is_left_open(fake, sockets):
    with probe_process.start(sockets) as trainer:
        fake.processes.append(FakeProcess(trainer.pid, used=9 << 30, gpu=0))
        without = look(sockets)
    with probe_process.start(sockets, "level") as trainer:
        fake.processes.append(FakeProcess(trainer.pid, used=9 << 30, gpu=0))
        report = look(sockets)
    assert "detach-loss-accumulation" in {one.pitfall for one in without.abstained}
    assert [one.cause for one in report.findings if one.severity != "info"] == []


def test_the_pid_of_a_launcher_and_one_that_is_none(fake, sockets):
    with probe_process.start(sockets) as one:
        # this process started that one
        assert look(sockets, os.getpid()).examined == (f"train.py (pid {one.pid})", "GPU 0")
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
            said = look(sockets, stranger.pid)
            stranger.kill()
    assert said.findings == ()
    assert said.problems[0].startswith(f"There is no probe in pid {stranger.pid}")
    assert (
        look(sockets, stranger.pid)
        .problems[0]
        .startswith(f"No process has pid {stranger.pid} here")
    )


def test_a_process_that_no_probe_can_be_in_is_not_said_to_lack_one(fake, sockets, monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as stranger:
        said = look(sockets, stranger.pid).problems[0]
        monkeypatch.setattr(one_trainer, "_another_user", lambda _: "ada")
        of_ada = look(sockets, stranger.pid).problems[0]
        stranger.kill()
    assert said.startswith(f"Pid {stranger.pid} (sleep 60) runs no Python")
    assert of_ada == (
        f"Pid {stranger.pid} belongs to ada: its probe, if it has one, answers only that user. "
        f"Next, as ada: gpuscope doctor {stranger.pid}"
    )


def test_a_program_of_gpuscope_run_that_has_not_trained_yet_is_told_as_such(fake, sockets):
    env = {**os.environ, "PYTHONPATH": "/tmp/hook-1234"}  # as gpuscope run begins it
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env) as early:
        said = look(sockets, early.pid)
        early.kill()
    (problem,) = said.problems
    assert problem.startswith(f"Pid {early.pid} was started with gpuscope run")
    assert "with the first step of an optimizer" in problem
    assert "a few backward passes if the optimizer is not torch's" in problem
    assert f"gpuscope doctor {early.pid}    again, once it trains" in problem
    assert f"gpuscope attach {early.pid} --inject    to start the probe at once" in problem


@pytest.mark.slow
def test_a_probe_that_answers_later_than_those_of_others_is_waited_for(
    fake, sockets, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rendezvous, "directory", lambda: str(sockets))
    with probe_process.start(sockets), probe_process.start(sockets, "late") as late:
        assert look(sockets, late.pid, timeout=30.0).examined[0] == f"train.py (pid {late.pid})"
        early = look(sockets, late.pid, timeout=1.0)
    assert early.examined == ()
    assert early.problems[0].startswith(f"The probe in pid {late.pid} has not answered within 1 s")


def test_a_probe_that_answers_while_a_look_takes_what_is_new_is_seen(fake, sockets):
    class SlowTick(LiveFrames):
        """All answers come after the first frames were made, and before anybody asks for them."""

        def tick(self):
            frames = super().tick()
            while self.answered[:3] != (True, False, False):  # all, searching, connecting
                time.sleep(0.01)
            return frames

    collector = Collector(4.0, probe_hz=5.0, directories=[str(sockets)])
    with probe_process.start(sockets) as trainer:
        report = doctor_live.examine(trainer.pid, 8.0, SlowTick(4.0, 5.0, collector))
    assert report.examined[0] == f"train.py (pid {trainer.pid})"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["garbage", "endless", "mute", "lies", "huge", "babbles"])
def test_hostile_probes_change_nothing_for_others(fake, sockets, mode):
    with probe_process.start(sockets, mode), probe_process.start(sockets) as good:
        report = look(sockets)
        assert report.examined
        assert good.poll() is None


def test_of_a_recording_it_is_said_that_it_is_too_short_to_tell(capsys):
    main(["doctor", str(SHIPPED / "h200-lab.gsr")])
    shown = capsys.readouterr().out
    assert "whether memory grows: the recording is too short to tell" in shown
    assert "Look again" not in shown
    assert "detach-loss-accumulation" not in shown
