"""``gpuscope attach`` on the pid of a launcher means its ranks.

The launcher is a real torchrun.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.agent.attachable import listing
from tests.attach.test_inject import socket_of
from tests.fakes.probe_client import wait_for
from tests.fakes.program import program
from tests.fakes.ptrace import MAY_TRACE

pytestmark = [pytest.mark.slow, *MAY_TRACE]
RANKS = """
import multiprocessing, os, sys, time
import torch

def helper():
    time.sleep(600)

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    other = multiprocessing.get_context("fork").Process(target=helper, daemon=True)
    other.start()
    open(sys.argv[1] + os.environ["RANK"], "w").close()
    while True:
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """(torchrun's pid, pids of its two ranks in order)"""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(RANKS)
    words = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(folder / "train.py"),
    ]
    child = subprocess.Popen(
        [sys.executable, *words, str(folder / "ready")],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    ranks: list[int] = []
    try:
        wait_for(
            lambda: (folder / "ready0").exists() and (folder / "ready1").exists(),
            90,
            what="two ranks",
        )
        ranks = sorted(children_of(child.pid), key=lambda pid: environment_of(pid)["RANK"])
        yield child.pid, ranks
    finally:
        for pid in [child.pid, *ranks]:
            for other in children_of(pid):
                os.kill(other, signal.SIGKILL)
        child.kill()
        child.wait()


def children_of(pid: int) -> list[int]:
    try:
        names = os.listdir(f"/proc/{pid}/task")
        found = [Path(f"/proc/{pid}/task/{name}/children").read_text().split() for name in names]
    except OSError:
        return []
    return [int(word) for words in found for word in words]


def environment_of(pid: int) -> dict[str, str]:
    return dict(
        part.split("=", 1)
        for part in Path(f"/proc/{pid}/environ").read_text().split("\0")
        if "=" in part
    )


def listens(pid: int) -> bool:
    return socket_of(pid).exists()


def gpuscope(tmp_path: Path, *words: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    return program("attach", *words, timeout=90, env=env)


def test_a_launcher_is_listed_with_what_it_launched(job):
    launcher, ranks = job
    rows = {row["pid"]: row for row in listing("")["processes"]}
    assert rows[launcher]["role"] == "launcher"
    assert sorted(rows[launcher]["launches"]) == sorted(ranks), "and no helper of a rank"
    assert [rows[pid]["rank"] for pid in ranks] == [0, 1]


def test_its_ranks_are_named_asked_for_attached_and_left_together(job, tmp_path):
    launcher, ranks = job
    asked = gpuscope(tmp_path, launcher, "--inject")
    assert asked.returncode == 2, "nobody agreed"
    assert f"pid {launcher} (" in asked.stderr
    assert "is a launcher: it starts trainers but does not train" in asked.stderr
    assert "Attach gpuscope's probe to its 2 ranks, one after another?" in asked.stderr
    for rank, pid in enumerate(ranks):
        assert f"  rank {rank}: pid {pid} (" in asked.stderr
    for word in (
        "Method: ",
        "Overhead, of each: ",
        "Undo: ",
        f"gpuscope attach {launcher} --inject --this-pid",
    ):
        assert word in asked.stderr
    assert not any(listens(pid) for pid in ranks)

    done = gpuscope(tmp_path, launcher, "--inject", "--yes")
    assert done.returncode == 0, done.stderr
    for rank, pid in enumerate(ranks):
        assert f"rank {rank}, pid {pid}: the probe is attached (" in done.stdout
        assert listens(pid)
    assert not listens(launcher)
    assert "erminal" not in done.stdout + done.stderr, "nobody asked for a screen"

    again = gpuscope(tmp_path, launcher, "--inject", "--yes", "--json")
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert [(row["pid"], row["rank"], row["method"]) for row in document["attached"]] == [
        (pid, rank, "probe") for rank, pid in enumerate(ranks)
    ]
    assert (document["problems"], document["exit_code"]) == ([], 0)

    left = gpuscope(tmp_path, launcher, "--detach", "--yes")
    assert left.returncode == 0, left.stderr
    wait_for(lambda: not any(listens(pid) for pid in ranks), what="the end of both probes")
    lines = (tmp_path / "state" / "gpuscope" / "attach.log").read_text()
    assert all(lines.count(f"pid {pid}") >= 3 for pid in ranks)
    assert f"pid {launcher} " not in lines


def test_elsewhere_it_is_the_same(job, tmp_path):
    launcher, ranks = job
    done = gpuscope(tmp_path, launcher, "--via", "env", "--inject", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert "Attach gpuscope's probe to its 2 ranks" in done.stderr
    rows = json.loads(done.stdout)["attached"]
    assert [(row["pid"], row["rank"], row["method"] != "probe") for row in rows] == [
        (pid, rank, True) for rank, pid in enumerate(ranks)
    ]
    assert all(row["host"] and row["ready_seconds"] > 0 for row in rows)
    assert all(listens(pid) for pid in ranks)
    left = gpuscope(tmp_path, launcher, "--via", "env", "--detach", "--yes")
    assert left.returncode == 0, left.stderr
    assert not any(listens(pid) for pid in ranks)


def test_the_launcher_itself_only_by_its_own_option(job, tmp_path):
    launcher, ranks = job
    done = gpuscope(tmp_path, launcher, "--inject", "--yes", "--this-pid", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["attached"]
    assert (row["pid"], row["method"]) == (
        launcher,
        "ptrace" if sys.version_info < (3, 14) else "pep768",
    )
    assert row["ready_seconds"] > 0
    assert listens(launcher)
    assert not any(listens(pid) for pid in ranks)
    assert gpuscope(tmp_path, launcher, "--detach", "--yes", "--this-pid").returncode == 0


def test_a_launcher_without_ranks_yet_is_left_alone(tmp_path):
    from tests.fakes.torchlike import likeness

    script = tmp_path / "torchrun"
    script.write_text(
        likeness(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    )
    child = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        done = gpuscope(tmp_path, child.pid, "--inject", "--yes")
        assert done.returncode == 3
        assert "none of its ranks has torch in it yet" in done.stderr
        assert not listens(child.pid)
    finally:
        child.kill()
        child.communicate()
