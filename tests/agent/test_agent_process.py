"""The agent as a viewer meets it: a real process from the zip, no driver needed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gpuscope.agent import main as agent_main
from gpuscope.attach import bundle
from gpuscope.wire import frames
from tests.fakes import agents, pythons

QUIET = ("--sockets", "/nonexistent")


@pytest.mark.parametrize("minor", pythons.MINORS)
def test_speaks_under_every_python(minor):
    python = pythons.find(minor)
    if python is None:
        pytest.skip(f"no python3.{minor} on this machine")
    with agents.process("--nonce", "n-1", *QUIET, python=python) as (viewer, child):
        hello = viewer.wait_for(frames.Hello)
        assert (hello.role, hello.nonce, hello.pid, hello.hz) == ("agent", "n-1", child.pid, 2.0)
        assert hello.py.split(".")[1] == str(minor)
        assert hello.cols["g"] == list(frames.DEVICE_COLUMNS)
        host = viewer.wait(lambda: viewer.definition("host", lambda h: h.cpu_count)[1], "host")
        assert host.cpu_count == os.cpu_count()
        viewer.wait(lambda: [r for r in viewer.rows("h", 0) if r["cpu_percent"] is not None], "host readings")
        viewer.close_requests()
        bye = viewer.wait_end()
        assert bye is not None
        assert "standard input was closed" in bye.why
        assert child.wait(5) == 0


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
            0: "refused", 3: "refused", 4: "refused", 5: "gone", 6: "refused", 7: "gone",
        }  # fmt: skip


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
        assert "nothing was heard" in bye.why
    with agents.inside("--no-ping-timeout", *QUIET) as viewer:
        viewer.wait(lambda: len(viewer.all(frames.Sample)) > 4, "samples beyond the limit")


def test_a_slow_reader_loses_samples_and_is_told_how_many():
    with agents.process("--hz", "10", *QUIET, read=False) as (viewer, child):
        fcntl.fcntl(child.stdout.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        time.sleep(4)  # a pipe of 4 KiB takes some 20 samples
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
        "import os, sys, threading\n"
        f"sys.path.insert(0, {bundle.local_agent_zip()!r})\n"
        "from gpuscope.agent.main import main\n"
        "threading.Timer(0.3, lambda: (print('stray'), os.write(1, b'raw'), sys.stdout.flush())).start()\n"
        "main(['--sockets', '/nonexistent'])\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    time.sleep(1.0)
    out, err = child.communicate(timeout=20)
    for line in out.splitlines():
        json.loads(line)
    assert b"stray" in err
    assert b"raw" in err


def test_help_and_usage():
    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "gpuscope.agent", *words], capture_output=True, text=True, timeout=30
        )

    assert "standard input" in run("--help").stdout
    assert run("--hz", "0").returncode != 0
    assert "0.1 to 10" in run("--hz", "fast").stderr
