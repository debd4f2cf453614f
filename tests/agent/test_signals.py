"""Signals that a viewer asks for: real processes, and none is hit that was not meant."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.agent import signals
from gpuscope.process.procfs import start_ticks
from gpuscope.wire import frames
from tests.fakes import agents
from tests.fakes.program import python
from tests.fakes.waiting import until

QUIET = ("--sockets", "/nonexistent")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def args(pid: int, start: object, name: str = "TERM") -> dict[str, object]:
    return {"pid": pid, "start": start, "signal": name}


def code_of(told: dict[str, object]) -> str:
    with pytest.raises(signals.CannotSignal) as error:
        signals.send(told)
    return error.value.code


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stream:
        return stream.read().rsplit(")", 1)[1].split()[0]


def test_a_process_stops_goes_on_and_ends(child: subprocess.Popen[bytes]) -> None:
    start = start_ticks(child.pid)
    for name, wanted in (("STOP", "T"), ("CONT", "S")):
        signals.send(args(child.pid, start, name))
        until(lambda wanted=wanted: state(child.pid) == wanted, 5)
    signals.send(args(child.pid, start))
    assert child.wait(5) == -signal.SIGTERM
    assert code_of(args(child.pid, start)) == "gone"


def test_the_agent_sends_it_and_writes_a_line(
    capfd: pytest.CaptureFixture[str], child: subprocess.Popen[bytes]
) -> None:
    start = start_ticks(child.pid)
    with agents.inside(*QUIET) as viewer:
        hello = viewer.wait_for(frames.Hello)
        assert "signal" in hello.requests
        viewer.send(
            frames.Request("signal", 7, {"pid": child.pid, "start": start, "signal": "INT"})
        )
        result = viewer.wait_for(frames.Result, lambda r: r.id == 7)
        assert result.value == {"pid": child.pid, "signal": "INT"}
        assert child.wait(5) == -signal.SIGINT
        viewer.send(
            frames.Request("signal", 8, {"pid": child.pid, "start": start, "signal": "rm -rf /"})
        )
        assert viewer.wait_for(frames.Error, lambda e: e.id == 8).code == "refused"
    told = capfd.readouterr().err
    assert f"signal 'INT' to pid {child.pid} start {start} by uid {os.getuid()}: sent" in told
    assert "refused" in told


REUSE = r"""
import os, subprocess, sys, time
from gpuscope.agent import signals
from gpuscope.process.procfs import start_ticks

first = subprocess.Popen(["sleep", "60"])
pid, start = first.pid, start_ticks(first.pid)
first.kill()
first.wait()
time.sleep(0.05)  # at least one clock tick
with open("/proc/sys/kernel/ns_last_pid", "w") as stream:
    stream.write(str(pid - 1))
second = subprocess.Popen(["sleep", "60"])
assert second.pid == pid, (second.pid, pid)
try:
    signals.send({"pid": pid, "start": start, "signal": "KILL"})
    print("HIT")
except signals.CannotSignal as error:
    print(error.code, error.what)
time.sleep(0.1)
print("alive" if second.poll() is None else "dead")
second.kill()
"""


def test_a_pid_that_was_given_to_another_process_meanwhile_is_not_hit() -> None:
    """In a pid namespace of its own, where the next number can be chosen."""
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    inside = inside if os.geteuid() else ["unshare", "--pid", "--fork", "--mount-proc"]
    try:
        can = subprocess.run([*inside, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        can = False
    if not can:
        pytest.skip("no pid namespace can be made here")
    done = subprocess.run(
        [*inside, sys.executable, "-c", REUSE], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert "gone" in done.stdout
    assert "now belongs to another process" in done.stdout
    assert "alive" in done.stdout
    assert "HIT" not in done.stdout


def test_another_start_time_is_another_process(child: subprocess.Popen[bytes]) -> None:
    start = start_ticks(child.pid)
    assert start is not None
    for wrong in (start - 1, start + 1):
        assert code_of(args(child.pid, wrong, "KILL")) == "gone"
    time.sleep(0.05)
    assert child.poll() is None


def test_who_is_never_signalled() -> None:
    assert code_of(args(1, start_ticks(1))) == "refused"
    assert code_of(args(os.getpid(), start_ticks(os.getpid()))) == "refused"
    assert code_of(args(os.getppid(), start_ticks(os.getppid()))) == "refused"


def test_a_kernel_thread_is_refused() -> None:
    threads = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stream:
                    fields = stream.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[6]) & 0x00200000:
                threads.append(int(name))
    if not threads:
        pytest.skip("no kernel thread is seen here")
    assert code_of(args(threads[-1], start_ticks(threads[-1]))) == "refused"


def test_other_users_processes_are_refused_without_privilege(
    child: subprocess.Popen[bytes],
) -> None:
    if os.geteuid() != 0:
        foreign = next(
            (
                int(p)
                for p in os.listdir("/proc")
                if p.isdigit() and os.stat(f"/proc/{p}").st_uid == 0
            ),
            None,
        )
        if foreign in (None, 1):
            pytest.skip("no other user's process is seen here")
        assert code_of(args(foreign, start_ticks(foreign))) == "refused"
        return
    script = (
        "import os, sys; os.setgid(65534); os.setuid(65534)\n"
        "from gpuscope.agent import signals\n"
        f"try: signals.send({{'pid': {child.pid}, 'start': {start_ticks(child.pid)}, 'signal': "
        f"'KILL'}})\n"
        "except signals.CannotSignal as error: print(error.code, error.what)\n"
    )
    done = python("-c", "import gpuscope.agent.signals\n" + script)
    assert "refused" in done.stdout, done.stderr
    assert "belongs to another user" in done.stdout
    assert child.poll() is None


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"pid": 0, "start": 1},
        {"pid": -1, "start": 1},
        {"pid": True, "start": 1},
        {"pid": "7", "start": 1},
        {"pid": 7},
        {"pid": 1 << 70, "start": 1},
        {"pid": 7, "start": 1, "signal": 9},
    ],
)
def test_what_is_no_request_is_refused(told: dict[str, object]) -> None:
    assert code_of({"signal": "TERM", **told}) == "refused"


def test_the_calls_of_older_pythons_do_the_same(
    monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes]
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.delattr(signal, "pidfd_send_signal", raising=False)
    signals.send(args(child.pid, start_ticks(child.pid), "KILL"))
    assert child.wait(5) == -signal.SIGKILL
    assert code_of(args(4194300, 5)) == "gone"


def test_a_kernel_without_pidfds_signals_nobody(
    monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes]
) -> None:
    def missing(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    assert code_of(args(child.pid, start_ticks(child.pid), "KILL")) == "unsupported"
    assert child.poll() is None


def test_the_environment_of_a_process_is_an_allow_list() -> None:
    env = {
        **os.environ,
        "RANK": "3",
        "NCCL_DEBUG": "INFO",
        "MY_PASSWORD": "hush",
        "SLURM_JOB_ID": "4711",
        "PYTORCH_API_KEY": "hush",
    }
    process = subprocess.Popen(["sleep", "60"], env=env)
    try:
        until(lambda: b"RANK=3" in Path(f"/proc/{process.pid}/environ").read_bytes(), 5)
        with agents.process(*QUIET) as (viewer, _):
            start = start_ticks(process.pid)
            viewer.send(frames.Request("environment", 1, {"pid": process.pid, "start": start}))
            viewer.send(frames.Request("environment", 2, {"pid": process.pid, "start": 1}))
            value = viewer.wait_for(frames.Result, lambda r: r.id == 1).value
            assert {"RANK": "3", "NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "4711"}.items() <= value[
                "environment"
            ].items()
            assert "hush" not in str(value)
            assert value["others"] >= 2
            assert viewer.wait_for(frames.Error, lambda e: e.id == 2).code == "gone"
    finally:
        process.kill()
        process.wait()
