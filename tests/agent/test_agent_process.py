"""The agent as a viewer meets it: a real process from the zip, no driver needed."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time

import pytest

from gpuscope.agent import main as agent_main
from gpuscope.agent.requests import Requests
from gpuscope.attach import bundle
from gpuscope.wire import frames
from tests.fakes import agents
from tests.fakes.program import python

QUIET = ("--sockets", "/nonexistent")


def test_without_a_driver_the_reason_is_told_and_the_host_is_sampled():
    with agents.process(*QUIET) as (viewer, _):
        viewer.wait(lambda: len(viewer.rows("h", 0)) >= 3, "host rows")
        if any(d.gpu for d in viewer.all(frames.Def)):
            pytest.skip("there is a GPU here")
        code, text = viewer.reasons(0)["nvml"]
        assert code in frames.CODES
        assert text
        assert viewer.reasons(0)["driver_version"] == (code, text)


def test_requests_are_answered():
    with agents.process(*QUIET, env={"NCCL_DEBUG": "INFO", "WANDB_API_KEY": "hush"}) as (viewer, _):
        viewer.send(frames.Ping(t=12.5))
        viewer.send(frames.Request("environment", 1))
        viewer.send(frames.Request("rate", 2, {"hz": 10}))
        viewer.send(frames.Request("rate", 3, {"hz": 11}))
        viewer.send(frames.Request("signal", 4))
        viewer.send(frames.Request("snapshot", 5, {"trainer": 99}))
        viewer.send(frames.Request("snapshot", 6))
        viewer.send(frames.Request("cancel", 7, {"id": 5}))
        viewer.send(b'{"r":"launch missiles","id":8}\n')
        viewer.send(b"\xff\x00 garbage\n[" + b"[" * 5000 + b"\n")
        viewer.wait(lambda: len(viewer.all(frames.Error)) >= 8, "errors")
        assert viewer.wait_for(frames.Pong).t == 12.5
        told = viewer.wait_for(frames.Result, lambda r: r.id == 1).value
        assert told["environment"]["NCCL_DEBUG"] == "INFO"
        assert "hush" not in json.dumps(told)
        assert viewer.all(frames.Result, id=2)[0].value == {"hz": 10.0}
        errors = {e.id: e.code for e in viewer.all(frames.Error)}
        assert errors == {
            0: "refused",
            3: "refused",
            4: "refused",
            5: "gone",
            6: "refused",
            7: "gone",
        }


def test_the_rate_changes():
    with agents.process("--hz", "0.1", *QUIET) as (viewer, _):
        viewer.wait(lambda: viewer.rows("h", 0), "first row")  # does not wait for the rate
        viewer.send(frames.Request("rate", 1, {"hz": 10}))
        viewer.wait(lambda: len(viewer.rows("h", 0)) > 10, "rows at the new rate", 8)


def test_ends_on_a_signal_and_when_nobody_reads():
    with agents.process(*QUIET) as (viewer, child):
        viewer.wait_for(frames.Sample)
        child.send_signal(signal.SIGTERM)
        bye = viewer.wait_end()
        assert bye is not None
        assert "signal" in bye.why
        assert child.wait(5) == 0
    with agents.process("--hz", "10", *QUIET, read=False) as (_, child):
        child.stdout.close()
        child.wait(10)


def test_ends_when_nothing_is_heard(monkeypatch):
    monkeypatch.setattr(agent_main, "PING_SECONDS", 0.5)
    with agents.inside(*QUIET) as viewer:
        bye = viewer.wait_end()
        assert bye is not None
        assert "the viewer has been silent" in bye.why
    with agents.inside("--no-ping-timeout", *QUIET) as viewer:
        viewer.wait(lambda: len(viewer.all(frames.Sample)) > 4, "samples beyond the limit")


@pytest.fixture
def late(monkeypatch):
    """The thread that reads requests begins when this event is set."""
    usual, late = Requests._read, threading.Event()

    def read(self):
        late.wait(60)
        usual(self)

    monkeypatch.setattr(agent_main, "PING_SECONDS", 0.8)
    monkeypatch.setattr(Requests, "_read", read)
    return late


def test_a_viewer_that_has_left_is_not_heard_though_a_line_of_it_waits(late):
    with agents.inside(*QUIET) as viewer:
        viewer.send(frames.Ping(t=1.5))
        viewer.close_requests()
        bye = viewer.wait_end()
        late.set()
        assert bye is not None
        assert "the viewer has been silent" in bye.why


def test_a_line_that_nobody_has_read_yet_has_been_heard(late):
    # All of the agent was stopped for a while, and goes on: what the viewer wrote meanwhile is
    # there, and the thread that reads it comes late.
    with agents.inside("--hz", "10", *QUIET) as viewer:
        viewer.send(frames.Ping(t=1.5))
        begin = viewer.wait_for(frames.Sample).m
        viewer.wait(
            lambda: viewer.all(frames.Sample)[-1].m > begin + 1.6e9, "samples beyond the limit"
        )
        late.set()
        assert viewer.wait_for(frames.Pong).t == 1.5


@pytest.mark.slow
def test_a_slow_reader_loses_samples_and_is_told_how_many():
    with agents.process("--hz", "10", *QUIET, read=False) as (viewer, child):
        fcntl.fcntl(child.stdout.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        told = array.array("i", [0])
        while not told[0]:  # it has begun, and a pipe of one page is full
            time.sleep(0.01)
            fcntl.ioctl(child.stdout.fileno(), termios.FIONREAD, told)
        time.sleep(3)  # thirty samples, of which a starved agent makes some
        viewer.start()
        event = viewer.wait_for(frames.Event, lambda e: e.e == "dropped")
        assert event.data["count"] >= 1
        viewer.wait(lambda: viewer.all(frames.Sample)[-1].m > event.m, "the stream goes on")
        sequence = [s.q for s in viewer.all(frames.Sample)]
        assert len(sequence) < sequence[-1]  # the gap is visible in the numbering too


def test_a_key_frame_repeats_the_definitions(monkeypatch):
    monkeypatch.setattr(frames, "KEY_SECONDS", 0.6)
    with agents.inside("--hz", "10", *QUIET) as viewer:
        viewer.wait(lambda: len(viewer.all(frames.Key)) >= 2, "key frames")
        viewer.wait(lambda: viewer.frames[-1].__class__ is frames.Sample, "sample")
        at = next(i for i, f in enumerate(viewer.frames) if isinstance(f, frames.Key))
        key = viewer.frames[at]
        assert isinstance(key, frames.Key)
        following = viewer.frames[at + 1 : at + 1 + key.n]
        assert all(isinstance(f, frames.Def) for f in following)
        sample = viewer.frames[at + 1 + key.n]
        assert isinstance(sample, frames.Sample)
        if "nvml" in viewer.reasons(0):
            assert "nvml" in [row[1] for row in sample.why]


def test_a_stray_print_does_not_break_the_stream(tmp_path):
    code = (
        "import os, sys, threading, time\n"
        f"sys.path.insert(0, {bundle.local_agent_zip()!r})\n"
        "from gpuscope.agent.main import main\n"
        "def stray():\n"
        # what is printed goes elsewhere
        "    while os.fstat(1).st_ino != os.fstat(2).st_ino: time.sleep(0.01)\n"
        "    print('stray', flush=True); os.write(1, b'raw')\n"
        "threading.Thread(target=stray).start()\n"
        "main(['--sockets', '/nonexistent'])\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    err = b""
    while b"raw" not in err:
        piece = os.read(child.stderr.fileno(), 4096)
        assert piece, "it ended before"
        err += piece
    out, _ = child.communicate(timeout=20)
    for line in out.splitlines():
        json.loads(line)
    assert b"stray" in err


def test_help_and_usage():
    def run(*words):
        return python("-m", "gpuscope.agent", *words)

    assert "standard input" in run("--help").stdout
    assert run("--hz", "0").returncode != 0
    assert "0.1 to 10" in run("--hz", "fast").stderr
