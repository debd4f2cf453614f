"""What a dead job left on another host, or with Slurm: fetched through ssh, and judged here."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from gpuscope.attach import left_files
from gpuscope.attach.targets import SLURM, Target
from gpuscope.cli.commands.doctor import left_elsewhere, targets

ERROR = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/train.py", line 12, in main\n'
    "ValueError: bad sample\n"
)
LOST = ERROR.replace("ValueError: bad sample", "RuntimeError: Connection closed by peer")


@pytest.fixture
def ssh(tmp_path):
    """A command that takes ssh's words and runs the other side's command here."""
    script = tmp_path / "ssh"
    script.write_text(
        "#!/bin/sh\necho a banner of the login\n"
        'while [ "$1" != "--" ]; do shift; done\nshift 2\nexec sh -c "$1"\n'
    )
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def words(ssh):
    return argparse.Namespace(ssh_command=ssh, remote_python=sys.executable, via="", torch=False)


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "it's a job 77"
    folder.mkdir()
    for rank, text in enumerate((LOST, ERROR, LOST)):
        (folder / f"rank_{rank}.log").write_text("step 1 loss 0.5\n" + text)
    return folder


def test_the_files_of_another_host_are_judged_here(job, words):
    report = targets.examine([f"me@node:{job}"], False, 5.0, words)
    assert [one.cause for one in report.findings][:1] == ["dead.exception"]
    assert report.exhibits[0].document["suspects"][0]["ranks"] == [1]
    assert not any("less +" in fix.command for one in report.findings for fix in one.fixes)


def test_a_log_of_several_ranks_and_the_kernels_are_judged_together(tmp_path):
    log, kernel = tmp_path / "job.log", tmp_path / "dmesg.txt"
    log.write_text("".join(f"[rank{n}]: {row}\n" for n in (0, 1) for row in LOST.splitlines()))
    kernel.write_text("[1.2] NVRM: Xid (PCI:0000:cd:00): 79, pid=7, GPU has fallen off the bus.\n")
    report = targets.examine([str(log), str(kernel)], False, 5.0)
    assert report.findings[0].cause == "dead.device-error"
    alone = targets.examine([str(log)], False, 5.0)
    assert alone.exhibits[0].document["world"] == 2


def test_a_place_that_is_not_there_is_said(tmp_path, words):
    report = targets.examine([f"me@node:{tmp_path}/gone"], False, 5.0, words)
    assert "there are no files at that place" in report.problems[0]


@pytest.mark.parametrize("text", ["me@node:/logs", "node:~/logs", "node:./logs"])
def test_a_place_on_another_host_is_told_from_a_process_and_a_file(text):
    assert left_elsewhere.is_place(text)
    for other in ("node:77", "me@node", "slurm:77", "k8s:a/b", "/logs/a:b/c", "C:log"):
        assert not left_elsewhere.is_place(other)


SACCT = """\
JobID|State|ExitCode|NodeList|End|Start|MaxRSS|ReqMem|Timelimit
77|TIMEOUT|0:0|node[01-02]|2026-11-26T15:00:12|2026-11-26T14:00:01||64G|01:00:00
77.batch|CANCELLED|0:15|node01|2026-11-26T15:00:14|2026-11-26T14:00:01|2816K||
77.extern|COMPLETED|0:0|node[01-02]|2026-11-26T15:00:12|2026-11-26T14:00:01|0||
77.0|FAILED|0:15|node[01-02]|2026-11-26T15:00:14|2026-11-26T14:00:03|21044K||
"""
SCONTROL = """\
JobId=77 JobName=train
   UserId=me(1000) GroupId=me(1000) MCS_label=N/A
   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)
   Command={folder}/train.sh
   WorkDir={folder}
   StdErr={folder}/slurm-77.out
   StdIn=/dev/null
   StdOut={folder}/slurm-77.out

"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Makes commands of Slurm that answer as its manual pages and its users show it."""

    def make(knows_the_job):
        tools, folder = tmp_path / "bin", tmp_path / "my runs"
        tools.mkdir()
        folder.mkdir()
        (tmp_path / "sacct.txt").write_text(SACCT)
        (tmp_path / "scontrol.txt").write_text(SCONTROL.format(folder=folder))
        forgot = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"
        scripts = {
            "squeue": forgot,
            "scontrol": f"cat {tmp_path}/scontrol.txt" if knows_the_job else forgot,
            "sacct": f"case $* in *WorkDir*) echo '{folder}';; *) cat {tmp_path}/sacct.txt;; esac",
        }
        for name, script in scripts.items():
            (tools / name).write_text(f"#!/bin/sh\n{script}\n")
            (tools / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
        (folder / "slurm-77.out").write_text("step 4 loss 0.5\n")
        (folder / "rank_0.log").write_text("of another job\n" + ERROR)
        (folder / "slurm-177.out").write_text("of another job too\n" + ERROR)
        (folder / "job 77").mkdir()
        for rank, text in enumerate((LOST, ERROR, LOST)):
            (folder / "job 77" / f"rank_{rank}.log").write_text("step 1 loss 0.5\n" + text)

    return make


@pytest.mark.parametrize("knows_the_job", [True, False])
def test_a_job_of_slurm_that_has_ended_is_judged_by_its_logs_and_by_sacct(
    words, slurm, knows_the_job
):
    slurm(knows_the_job)
    report = targets.examine(["slurm:77"], False, 5.0, words)
    causes = [one.cause for one in report.findings]
    assert "dead.time-limit" in causes
    assert "dead.exception" in causes, "files of the folder with the job's number are taken"
    assert "of another job" not in str(report)


def sent(*paths, job="-"):
    """The names and contents that the script sends of these paths."""
    done = subprocess.run(
        [sys.executable, "-", "MARK", job, *map(str, paths)],
        input=Path(left_files.__file__).read_bytes(),
        capture_output=True,
        check=True,
    )
    packed = done.stdout.partition(b"\nMARK\n")[2]
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r|gz") as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}


def test_of_a_long_log_what_matters_is_sent(tmp_path):
    line = b"2026-11-26 14:00:00 INFO step 1 loss 0.5\n"
    (tmp_path / "long.log").write_bytes(
        b"begin\n" + line * 60_000 + ERROR.encode() + line * 60_000 + b"end\n"
    )
    (tmp_path / "model.pt").write_bytes(b"\0" * 100)
    files = sent(tmp_path)
    assert list(files) == ["long.log"]
    text = files["long.log"]
    assert text.startswith(b"begin\n")
    assert text.endswith(b"end\n")
    assert b"ValueError: bad sample" in text
    assert len(text) < 1_000_000


def test_a_tar_cannot_write_outside_of_its_folder(tmp_path):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w|gz") as tar:
        for name in ("../evil", "/abs", "a/../../b"):
            entry = tarfile.TarInfo(name)
            entry.size = 2
            tar.addfile(entry, io.BytesIO(b"hi"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    folder = tmp_path / "in"
    folder.mkdir()
    assert left_elsewhere.unpack(data.getvalue(), folder) == 3
    found = sorted(str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file())
    assert found == ["in/a/b", "in/abs", "in/evil"]


def test_without_slurm_it_is_said_where_to_ask(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    alone = argparse.Namespace(ssh_command="", remote_python="", via=None, torch=False)
    report = left_elsewhere.examine_slurm(Target(SLURM, "slurm:4242", job="4242"), alone)
    assert report.problems == (
        "slurm:4242: Slurm's sacct is not on this host. "
        "Next: gpuscope doctor slurm:4242@LOGIN-NODE, or gpuscope doctor LOGS",
    )
