"""What ``gpuscope doctor`` without a target says of trainers that died here: real processes, real black boxes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from gpuscope.collect import container
from gpuscope.doctor import report as reports
from gpuscope.doctor import table
from gpuscope.verbs import doctor_left
from tests.fakes.probe_client import environment
from tests.fakes.watched import WATCHED

ENDS = {
    "killed": "os.kill(os.getpid(), 9)",
    "crashed": "os.kill(os.getpid(), 11)",
    "known": "raise AssertionError('Torch not compiled with CUDA enabled')",
    "unknown": "raise ValueError('my own \\x1b[1mcheck\\nsecond line')",
    "well": "sys.exit(1)",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    more = {"GPUSCOPE_BLACKBOX_DIR": str(tmp_path / "boxes"), "XDG_STATE_HOME": str(tmp_path / "state")}
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(container, "own_pid_namespace", lambda *_: False)
    return more


def died(place, *ends):
    """The pids of trainers that ended so, one after the other."""
    pids = []
    for end in ends:
        child = subprocess.Popen([sys.executable, "-c", WATCHED + ENDS[end]], env=environment(**place), stderr=-3)
        assert child.wait(60) in (-9, -11, 1)
        pids.append(child.pid)
    return pids


def test_each_is_named_with_its_end_and_none_sets_the_exit_code(place, tmp_path):
    unknown, known = died(place, "unknown", "known")
    report = doctor_left.examine(kernel_log=str(tmp_path / "none"))
    newest, other = report.examined
    assert newest.startswith(f"pid {known}, which died ")
    assert other.startswith(f"pid {unknown}, which died ")
    assert other.endswith("(ValueError: my own \\x1b[1mcheck)")
    assert {one.severity for one in report.findings} == {"info"}
    (told,) = {one.where for one in report.findings}
    assert f"pid {known}" in told
    settled = reports.settled(report, table.load())
    assert reports.exit_code(settled) == 0


def test_what_the_kernel_killed_and_what_crashed_is_told_by_its_log(place, tmp_path):
    killed, crashed = died(place, "killed", "crashed")
    (bare, _) = doctor_left.examine(kernel_log=str(tmp_path / "none")).findings
    assert (bare.confidence, "ended without a word" in bare.title) == ("prior", True)
    log = tmp_path / "kmsg"
    log.write_text(
        f"3,1,9,-;Out of memory: Killed process {killed} (python3) total-vm:9999999kB, anon-rss:8888888kB\n"
        f"4,2,9,-;python3[{crashed}]: segfault at 0 ip 00007f3 sp 00007ffc error 4 in libtorch_cpu.so\n"
    )
    first, second = doctor_left.examine(kernel_log=str(log)).findings
    assert (first.title, first.severity) == (f"pid {crashed} crashed: the kernel noted a fault in its own or a "
                                             "library's code", "info")  # fmt: skip
    assert "libtorch_cpu.so" in first.evidence[0].text
    assert (second.cause, second.confidence) == ("end.host_memory", "definite")
    assert "anon-rss:8888888kB" in second.evidence[0].text


def test_the_pids_of_another_namespace_prove_nothing(place, tmp_path, monkeypatch):
    (killed,) = died(place, "killed")
    log = tmp_path / "kmsg"
    log.write_text(f"3,1,9,-;Out of memory: Killed process {killed} (python3)\n")
    monkeypatch.setattr(container, "own_pid_namespace", lambda *_: True)
    (one,) = doctor_left.examine(kernel_log=str(log)).findings
    assert one.confidence == "prior"


def test_what_ended_by_itself_and_what_is_old_is_not_told(place, tmp_path):
    died(place, "well", "killed")
    assert len(doctor_left.examine(kernel_log=str(tmp_path / "none")).examined) == 1
    (box,) = (tmp_path / "boxes").glob("*.box")
    hours_ago = time.time() - 2 * 3600
    os.utime(box, (hours_ago, hours_ago))
    assert doctor_left.examine(kernel_log=str(tmp_path / "none")).examined == ()


# ── in a job script ─────────────────────────────────────────────────────────────────────────────────────────────────

OOM = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.25 GiB. GPU 0 has a total capacity of 33.10 GiB "
    b"of which 3.71 GiB is free. Including non-PyTorch memory, this process has 29.30 GiB memory in use. Of the "
    b"allocated memory 17.02 GiB is allocated by PyTorch, and 11.40 GiB is reserved by PyTorch but unallocated.\n"
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
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope", "doctor", *words], input=text, capture_output=True, timeout=60
    )
    assert done.returncode == code, done.stdout + done.stderr


def test_a_warning_is_1_and_only_where_warnings_count(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader\nmodel = torch.nn.DataParallel(torch.nn.Linear(2, 2))\n"
        "scaler = torch.cuda.amp.GradScaler()\n"
    )
    codes = []
    for fail_on in ("warning", "problem"):
        words = [sys.executable, "-m", "gpuscope", "doctor", "--fail-on", fail_on, str(tmp_path / "train.py")]
        codes.append(subprocess.run(words, capture_output=True, timeout=60).returncode)
    assert codes == [1, 0]
