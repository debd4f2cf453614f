"""The doctor takes a short look at the trainers of this machine.

There are a fake driver, real probe sockets, and the past out of a black box.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest

from gpuscope.agent.live_frames import LiveFrames
from gpuscope.agent.picture import Collector
from gpuscope.cli.commands.doctor import live as doctor_live
from gpuscope.probe import blackbox, records
from gpuscope.probe.sampler import TRAINER_ID
from gpuscope.process.procfs import start_ticks
from gpuscope.wire import frames
from tests.fakes import probe_process
from tests.fakes.nvml import FakeNvml, FakeProcess

GIB, MIB = 1 << 30, 1 << 20


@pytest.fixture
def sockets(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSCOPE_BLACKBOX_DIR", str(tmp_path / "boxes"))
    monkeypatch.setattr(records, "FREE_BYTES", 0)
    return probe_process.make_directory(tmp_path / "sockets")


@pytest.fixture
def fake():
    fake = FakeNvml(gpus=2)
    with fake.install():
        yield fake


def look(sockets, pid=None, timeout=8.0):
    collector = Collector(4.0, probe_hz=5.0, directories=[str(sockets)])
    return doctor_live.examine(pid, timeout, LiveFrames(4.0, 5.0, collector))


def leave_box(pid: int, per_step: int) -> None:
    """A black box of that process whose memory after each step has grown by so much, up to now."""
    cols = {
        "t": ["step", "step_seconds"],
        "a": ["allocated_bytes", "step_allocated_bytes", "step_allocated_step"],
    }
    box = blackbox.BlackBox(
        lambda hz: frames.Hello(role="probe", cols=cols, pid=pid, t=1000.0, m=5)
    )
    definitions = {
        TRAINER_ID: frames.Def(
            TRAINER_ID,
            trainer=frames.TrainerDef(pid=pid, start=start_ticks(pid), script="train.py"),
        ),
        2: frames.Def(2, alloc=frames.AllocDef(TRAINER_ID, 0, uuid=probe_process.UUID)),
    }
    now = time.monotonic_ns()
    for n in range(90):
        size = 10 * GIB + n * per_step
        rows = {"t": [[TRAINER_ID, 100 + n, 1.0]], "a": [[2, size, size, 100 + n]]}
        box.sample(frames.Sample(n + 1, now - (90 - n) * 10**9, **rows), {}, definitions, {})
    assert box.path
    shutil.move(box.path, os.path.join(os.path.dirname(box.path), f"{pid}-{start_ticks(pid)}.box"))


def test_without_a_trainer_it_says_so_at_once(fake, sockets):
    report = look(sockets, timeout=600)  # far beyond the time that a test has
    assert (report.findings, report.problems) == ((), ())
    said, devices = report.examined
    assert devices == "2 GPUs"
    assert said.startswith("no trainer with a probe runs here")


def test_growth_is_judged_at_once_by_the_past_in_the_black_box(fake, sockets):
    with probe_process.start(sockets) as trainer:
        fake.processes.append(FakeProcess(trainer.pid, used=9 << 30, gpu=0))
        leave_box(trainer.pid, 2 * GIB)
        report = look(sockets)
    growing = next(
        one
        for one in report.findings
        if one.cause == "live.memory_grows" and one.confidence == "likely"
    )
    assert growing.severity in ("problem", "warning")
    assert "per step" in growing.evidence[0].text
    assert f"pid {trainer.pid}" in growing.where
    assert report.examined == (f"train.py (pid {trainer.pid})", "2 GPUs")


def test_growth_is_judged_at_once_by_what_the_trainer_remembers(fake, sockets):
    """It has trained for a quarter of a minute: its box holds too few readings."""
    with probe_process.start(sockets, "leaks") as trainer:
        fake.processes.append(FakeProcess(trainer.pid, used=9 << 30, gpu=0))
        report = look(sockets, trainer.pid)
    growing = next(
        one
        for one in report.findings
        if one.cause == "live.memory_grows" and one.confidence == "likely"
    )
    assert "768 KiB per step" in growing.evidence[0].text


@pytest.mark.slow
def test_a_level_past_is_no_growth_and_without_a_box_it_is_left_open(fake, sockets):
    with probe_process.start(sockets) as trainer:
        fake.processes.append(FakeProcess(trainer.pid, used=9 << 30, gpu=0))
        without = look(sockets)
        leave_box(trainer.pid, 0)
        report = look(sockets)
    assert "detach-loss-accumulation" in {one.pitfall for one in without.abstained}
    assert [one.cause for one in report.findings if one.severity != "info"] == []


def test_one_pid_its_launcher_and_one_that_is_none(fake, sockets):
    with probe_process.start(sockets) as one:
        assert look(sockets, one.pid).examined == (f"train.py (pid {one.pid})", "GPU 0")
        # it started that one
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


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["garbage", "endless", "mute", "lies", "huge", "babbles"])
def test_hostile_probes_change_nothing_for_others(fake, sockets, mode):
    with probe_process.start(sockets, mode), probe_process.start(sockets) as good:
        report = look(sockets)
        assert report.examined
        assert good.poll() is None


def test_it_needs_neither_torch_nor_the_screen():
    code = (
        "import sys; from gpuscope.cli.commands.doctor import live; live.examine(None, 1.0)\n"
        "from gpuscope.doctor import live, postmortem, postmortem_snapshot, postmortem_end\n"
        "print([name for name in ('torch', 'textual', 'asyncio', 'gpuscope.tui') if name in "
        "sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
