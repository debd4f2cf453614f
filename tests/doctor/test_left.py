"""``gpuscope doctor`` without a target tells of trainers that died here.

They are real processes with real black boxes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuscope.cli import dead_trainers as boxes_of
from gpuscope.cli.commands.attach.local import audit
from gpuscope.cli.commands.doctor import left as doctor_left
from gpuscope.collect import container
from gpuscope.doctor import report as reports
from gpuscope.doctor import table
from gpuscope.probe import blackbox, records
from gpuscope.probe.sampler import TRAINER_ID
from gpuscope.wire import frames
from tests.fakes.in_process import command
from tests.fakes.probe_client import PLACE_APART, environment
from tests.fakes.watched import WATCHED

ENDS = {
    "killed": ("os.kill(os.getpid(), 9)", -9),
    "crashed": ("os.kill(os.getpid(), 11)", -11),
    "known": ("raise AssertionError('Torch not compiled with CUDA enabled')", 1),
    "unknown": ("raise ValueError('my own \\x1b[1mcheck\\nsecond line')", 1),
    "well": ("sys.exit(1)", 1),
}
"""What a trainer does at its end, and the code that its parent sees."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    more = {
        "GPUSCOPE_BLACKBOX_DIR": str(tmp_path / "boxes"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(container, "own_pid_namespace", lambda *_: False)
    return more


def died(place, *ends):
    """The pids of trainers that ended so, one after the other.

    Nobody else on this machine finds their probes.
    """
    pids = []
    for end in ends:
        last_words, code = ENDS[end]
        program = PLACE_APART + WATCHED + last_words
        child = subprocess.Popen(
            [sys.executable, "-c", program], env=environment(**place), stderr=subprocess.PIPE
        )
        said = child.communicate(timeout=60)[1].decode()
        assert child.returncode == code, said
        left = [path.name for path in Path(place["GPUSCOPE_BLACKBOX_DIR"]).iterdir()]
        assert end == "well" or any(name.startswith(f"{child.pid}-") for name in left), (left, said)
        pids.append(child.pid)
    return pids


def test_each_is_named_with_its_end_and_none_sets_the_exit_code(place, tmp_path):
    unknown, known = died(place, "unknown", "known")
    report = doctor_left.examine(kernel_log=str(tmp_path / "none"))
    newest, other = report.ended
    assert newest.text.startswith(f"python -c (pid {known}), ")
    assert newest.command.startswith("gpuscope doctor ")
    assert re.search(r"ago, failed: AssertionError: Torch not compiled .* \[\S+\]$", newest.text)
    assert other.text.startswith(f"python -c (pid {unknown}), ")
    assert "s ago, failed: ValueError: my own \\x1b[1mcheck (at <string>:" in other.text
    assert {one.severity for one in report.findings} == {"info"}
    (told,) = {one.where for one in report.findings}
    assert f"pid {known}" in told
    settled = reports.finish(report, table.load())
    assert reports.exit_code(settled) == 0


def test_a_signal_that_somebody_saw_is_named_and_the_kernels_log_says_more(place, tmp_path):
    killed, asked = died(place, "killed", "killed")
    for path in Path(place["GPUSCOPE_BLACKBOX_DIR"]).iterdir():
        pid, start = map(int, path.name.partition(".")[0].split("-"))
        blackbox.note_exit(pid, start, 9 if pid == killed else 15)
    report = doctor_left.examine(kernel_log=str(tmp_path / "none"))
    (finding,), (ended,) = report.findings, report.ended
    assert finding.title == f"python -c (pid {killed}) was killed by SIGKILL"
    assert "ago, killed by SIGKILL" in ended.text
    assert f"{asked}" not in ended.text, "it was asked to end"
    log = tmp_path / "kmsg"
    log.write_text(f"3,1,9,-;Out of memory: Killed process {killed} (python3) total-vm:9999kB\n")
    (ended,) = doctor_left.examine(kernel_log=str(log)).ended
    assert ended.text.endswith(
        "out of memory: the kernel killed it because the host's memory ran out"
    )


def test_what_the_kernel_killed_and_what_crashed_is_told_by_its_log(place, tmp_path):
    killed, crashed = died(place, "killed", "crashed")
    (bare, _) = doctor_left.examine(kernel_log=str(tmp_path / "none")).findings
    assert (bare.confidence, bare.past) == ("prior", True)
    assert "ended without an error message: a signal, a crash or os._exit" in bare.title
    log = tmp_path / "kmsg"
    log.write_text(
        f"3,1,9,-;Out of memory: Killed process {killed} (python3) total-vm:9999999kB, "
        "anon-rss:8888888kB\n"
        f"4,2,9,-;python3[{crashed}]: segfault at 0 ip 00007f3 sp 00007ffc error 4 in "
        "libtorch_cpu.so\n"
    )
    report = doctor_left.examine(kernel_log=str(log))
    assert report.ended[1].text.endswith(
        " ago, out of memory: the kernel killed it because the host's memory ran out"
    )
    first, second = report.findings
    assert (
        first.title
        == f"python -c (pid {crashed}) was killed by a crash: the kernel logged a fault in its "
        "code or a library's"
    )
    assert first.severity == "info"
    assert "libtorch_cpu.so" in first.evidence[0].text
    assert second.title == f"python -c (pid {killed}) ran out of host memory: the kernel killed it"
    assert (second.cause, second.confidence) == ("end.host_memory", "definite")
    assert "anon-rss:8888888kB" in second.evidence[0].text


def test_the_pids_of_another_namespace_prove_nothing(place, tmp_path, monkeypatch):
    (killed,) = died(place, "killed")
    log = tmp_path / "kmsg"
    log.write_text(f"3,1,9,-;Out of memory: Killed process {killed} (python3)\n")
    monkeypatch.setattr(container, "own_pid_namespace", lambda *_: True)
    (one,) = doctor_left.examine(kernel_log=str(log)).findings
    assert one.confidence == "prior"


@pytest.mark.slow
def test_what_ended_by_itself_and_what_is_old_is_not_told(place, tmp_path):
    died(place, "well", "killed")
    assert len(doctor_left.examine(kernel_log=str(tmp_path / "none")).ended) == 1
    (box,) = (tmp_path / "boxes").glob("*.box")
    hours_ago = time.time() - 2 * 3600
    os.utime(box, (hours_ago, hours_ago))
    assert doctor_left.examine(kernel_log=str(tmp_path / "none")).ended == ()


def box(place, job, script="train.py", how=None, pid=4_000_000):
    """The black box of a trainer that is gone."""
    made = blackbox.BlackBox(
        lambda hz: frames.Hello(role="probe", cols={"t": ["step"]}, pid=pid, t=1.0, m=5)
    )
    trainer = frames.TrainerDef(pid=pid, start=1, script=script, job=job)
    definitions = {TRAINER_ID: frames.Def(TRAINER_ID, trainer=trainer)}
    made.sample(frames.Sample(1, 10**9, t=[[TRAINER_ID, 7]]), {}, definitions, {})
    if how is not None:
        made.ended(how)
    os.rename(made.path, os.path.join(place["GPUSCOPE_BLACKBOX_DIR"], f"{pid}-1.box"))


def raised(kind, message="", when=1.0):
    return {
        "how": "exception",
        "type": kind,
        "message": message,
        "stack": [["/home/a/train.py", 7, "f"]],
        "time": when,
    }


def told(**more):
    return [one.text for one in doctor_left.examine(kernel_log="/nowhere", **more).ended]


def test_the_jobs_that_are_not_listed_are_counted(place, monkeypatch):
    monkeypatch.setattr(records, "FREE_BYTES", 0)
    for number in range(1, 6):
        how = raised("ValueError", "no labels") if number < 5 else None
        box(place, f"job {number}", how=how, pid=4_000_000 + number)
        path = os.path.join(place["GPUSCOPE_BLACKBOX_DIR"], f"{4_000_000 + number}-1.box")
        os.utime(path, (time.time() - 60 * number,) * 2)
    *listed, last = told()
    assert [text.split(",")[0] for text in listed] == [
        f"train.py (pid 400000{number})" for number in (1, 2, 3)
    ]
    assert last == "2 more jobs: 1 failed, 1 ended without an error message"
    monkeypatch.setattr(doctor_left, "MOST", 4)
    assert told()[-1] == "1 more job: ended without an error message"
    box(place, "job 6", how=None, pid=4_000_006)
    path = os.path.join(place["GPUSCOPE_BLACKBOX_DIR"], "4000006-1.box")
    os.utime(path, (time.time() - 600,) * 2)
    assert told()[-1] == "2 more jobs: all ended without an error message"
    assert told(seconds=30.0) == [], "the last sentence of the report counts them"


def test_what_its_user_ended_is_left_out(place, monkeypatch):
    monkeypatch.setattr(records, "FREE_BYTES", 0)
    box(place, "a", how=raised("KeyboardInterrupt"), pid=4_000_001)
    box(
        place,
        "b",
        how=raised("lightning.fabric.utilities.exceptions.SIGTERMException"),
        pid=4_000_002,
    )
    box(place, "c", script="/lib/python3/site-packages/ipykernel_launcher.py", pid=4_000_003)
    box(place, "l", script="/lib/python3/site-packages/gpuscope/lab/worker.py", pid=4_000_006)
    box(place, "m", script="gpuscope lab", pid=4_000_007)
    box(place, "d", pid=4_000_004)
    assert [text.partition(",")[0] for text in told()] == ["train.py (pid 4000004)"]
    audit("signal TERM to pid 4000004 (start 1, ada) on box: python train.py: sent")
    assert told() == []
    assert boxes_of.boxes() == []
    assert boxes_of.line() == "", "ps says nothing of them either"
    box(
        place,
        "e",
        script="/lib/python3/site-packages/ipykernel_launcher.py",
        how=raised("ValueError"),
        pid=4_000_005,
    )
    assert [path.name for _, path in boxes_of.boxes()] == ["4000005-1.box"], (
        "an error ended it, not its user"
    )


def test_of_the_ranks_of_a_job_the_first_that_raised_stands_for_all(place, monkeypatch):
    monkeypatch.setattr(records, "FREE_BYTES", 0)
    ends = [
        None,
        raised("RuntimeError", "Connection closed by peer", 9.0),
        raised("ValueError", "bad row", 8.0),
        None,
    ]
    for rank, how in enumerate(ends):
        box(place, "job", how=how, pid=4_000_010 + rank)
    (text,) = told()
    assert text.startswith("train.py (pid 4000012), ")
    assert text.endswith("failed: ValueError: bad row (at /home/a/train.py:7 f)")


# ── in a job script ───────────────────────────────────────────────────────────────────────────────

OOM = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.25 GiB. GPU 0 has a total "
    b"capacity of 33.10 GiB of which 3.71 GiB is free. Including non-PyTorch memory, this process "
    b"has 29.30 GiB memory in use. Of the allocated memory 17.02 GiB is allocated by PyTorch, and "
    b"11.40 GiB is reserved by PyTorch but unallocated.\n"
)


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        (["-"], OOM, 2),
        (["--fail-on", "never", "-"], OOM, 0),
        (["--fail-on", "never", "-"], b"", 3),
        (["--fail-on", "sometimes", "-"], b"", 64),
    ],
)
def test_the_exit_code_of_the_program(words, text, code):
    done = command("doctor", *words, stdin=text)
    assert done.returncode == code, done.stdout + done.stderr


@pytest.mark.slow
def test_a_warning_is_1_and_only_where_warnings_count(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\nmodel, total = torch.nn.Linear(2, 2), 0\n"
        "for batch in batches:\n    loss = model(batch).sum()\n    loss.backward()\n"
        "    total += loss\n"
    )
    codes = []
    for fail_on in ("warning", "problem"):
        words = [
            sys.executable,
            "-m",
            "gpuscope",
            "doctor",
            "--fail-on",
            fail_on,
            str(tmp_path / "train.py"),
        ]
        codes.append(subprocess.run(words, capture_output=True, timeout=60).returncode)
    assert codes == [1, 0]
