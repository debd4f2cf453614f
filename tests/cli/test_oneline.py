"""A status bar gets one line, and is told which GPU is free.

The fake driver is seen as another process sees it.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import os

import pytest

from gpuscope.cli import free_devices, output, past_trainers
from gpuscope.cli.commands import oneline
from gpuscope.cli.commands.devices import verb as devices_verb
from gpuscope.cli.local_look import LocalLook, look
from gpuscope.store.view import Gone, HostView
from gpuscope.wire import frames as f
from gpuscope.wire.frames import NOT_SUPPORTED, Unknown
from tests.cli.test_why import of_cpu
from tests.fakes import clocks, views
from tests.fakes.in_process import command
from tests.fakes.nvml import FakeNvml, FakeProcess
from tests.fakes.program import program
from tests.recordings import SHIPPED


@pytest.fixture
def fake():
    nvml = FakeNvml(gpus=3, processes=[FakeProcess(os.getpid(), used=69 << 30, gpu=0)])
    for gpu in (1, 2):
        nvml.set(gpu, used=0, utilisation=0)
    nvml.set(0, used=70 << 30, utilisation=97, temperature=61)
    with nvml.install():
        yield nvml


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def seen() -> HostView:
    return look(5.0, want_trainers=False).host


def test_every_device_in_one_line(fake):
    fake.lose(2)
    out = io.StringIO()
    code = oneline.run(argparse.Namespace(watch=None), out=out)
    assert out.getvalue().count("\n") == 1
    assert "0 97% 70/" in out.getvalue()
    assert "1 free" in out.getvalue()
    assert "2 lost" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert code == 2


def test_colours_only_on_a_terminal_that_wants_them(fake):
    assert "\x1b[" in oneline.line(seen(), True)
    assert output.coloured(Screen(), {"TERM": "xterm"})
    assert not output.coloured(Screen(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert not output.coloured(Screen(), {"TERM": "dumb"})
    assert not output.coloured(io.StringIO(), {"TERM": "xterm"})


def test_without_a_driver_the_reason_is_the_line():
    done = program("--oneline")
    if done.returncode == 0:
        pytest.skip("there is a GPU here")
    assert done.stdout.startswith("no GPU"), "its reason only where no training runs"
    assert done.stdout.count("\n") == 1
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("no NVIDIA driver here: libnvidia-ml.so.1 was not found", "no NVIDIA driver"),
        (
            "no NVIDIA driver here: libnvidia-ml.so.1 was not found. This container has to be "
            "started with the GPUs (docker run --gpus all …)",
            "no NVIDIA driver",
        ),
        (
            "the NVIDIA library is here but its kernel module is not loaded. Next: sudo modprobe",
            "the NVIDIA library is here but its kernel module is not loaded",
        ),
        ("nvmlInit_v2: driver error 7", "nvmlInit_v2: driver error 7"),
    ],
)
def test_a_status_bar_has_no_room_for_more_than_the_reason_itself(fake, reason, said):
    view = dataclasses.replace(seen(), devices=(), jobs=(), nvml=Unknown(NOT_SUPPORTED, reason))
    assert oneline.line(view) == f"no GPU: {said}"


def test_a_training_that_waits_for_its_data_is_told_with_how_much():
    host, _ = views.seen(of_cpu(0.45))
    said = oneline.line(host, ended="2 jobs ended badly")
    assert " · train.py ◆ input-bound 45 % · 2 jobs ended badly" in said
    host, _ = views.seen(of_cpu(0.02))
    assert "input-bound" not in oneline.line(host)


def test_a_hang_comes_before_what_is_well():
    ((_, host, job), *_) = past_trainers.read(str(SHIPPED / "h200x2-stall.gsr")).jobs
    well = views.seen(of_cpu(0.02))[0].jobs
    said = oneline.line(dataclasses.replace(host, jobs=(*well, job)), colours=True)
    assert "\x1b[31mstall_train.py ▲ stalled\x1b[0m · " in said


def test_jobs_of_one_name_are_told_apart_by_their_process():
    host = views.seen(of_cpu(0.02))[0]
    (job,) = host.jobs
    said = oneline.line(dataclasses.replace(host, jobs=(job,) * 4))
    assert f"train.py ({job.trainers[0].definition.pid})" in said
    assert said.endswith(" · and 1 more job")


def test_a_job_whose_namesake_has_ended_is_called_by_its_name_alone():
    host = views.seen(of_cpu(0.02))[0]
    (job,) = host.jobs
    gone = Gone(1.0, None, "ended")
    ended = dataclasses.replace(
        job, trainers=tuple(dataclasses.replace(one, gone=gone) for one in job.trainers)
    )
    said = oneline.line(dataclasses.replace(host, jobs=(job, ended)))
    assert f"({job.trainers[0].definition.pid})" not in said
    assert "train.py" in said


def test_what_is_free_and_who_holds_the_rest(fake, capsys):
    told = list(free_devices.lines(seen()))
    assert told[0].startswith("free  GPU 1, 2: ")
    assert told[0].endswith(" GiB each")
    assert any(
        line.startswith("used  GPU 0: ") and f"pid {os.getpid()} 69.0 GiB" in line for line in told
    )
    parser = argparse.ArgumentParser()
    devices_verb.add_arguments(parser)
    devices_verb.run(parser.parse_args([]))
    assert told[0] in capsys.readouterr().out


def test_watch_without_oneline_is_refused():
    done = command("--watch", "3")
    assert (done.returncode, done.stdout) == (64, "")
    assert "Next: gpuscope --oneline --watch 3" in done.stderr


@pytest.mark.parametrize("cuda", [False, True])
def test_of_ranks_on_the_cpu_the_probes_are_asked_for_what_they_remember(cuda):
    """There the parts of a step do not tell that a rank waits; nobody else costs two seconds."""
    frames = clocks.of_ranks(slow=2)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.cuda = cuda
    past = [one for one in frames if isinstance(one, f.Event) and one.e == "time"]
    bare, _ = views.seen([one for one in frames if one not in past])
    out, asked = io.StringIO(), []

    def remembered() -> HostView:
        asked.append(True)
        return views.seen(frames)[0]

    args = argparse.Namespace(watch=None)
    oneline.run(args, lambda timeout: LocalLook(bare, True), out, remembered)
    assert bool(asked) == ("rank 2 late" in out.getvalue()) == (not cuda), out.getvalue()
