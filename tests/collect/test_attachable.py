"""Processes with torch in them are found, and each is known for what it is.

Only a few of an environment's variables leave it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gpuscope.agent import attachable as answers
from gpuscope.collect import attachable
from gpuscope.collect.attachable import LAUNCHER, TRAINER, WORKER
from tests.fakes.torchlike import MAP, likeness

SPAWN = (
    "import multiprocessing as m, sys, time\n{map}\n"
    "def work(n):\n    {map_in}\n    print('ready', flush=True)\n    time.sleep(60)\n"
    "if __name__ == '__main__':\n"
    "    c = m.get_context('spawn')\n    p = [c.Process(target=work, args=(i,)) for i in "
    "range(2)]\n"
    "    [x.start() for x in p]\n    print('ready', flush=True)\n    [x.join() for x in p]\n"
)
FORK = (
    "import os, time, sys\n{map}\nsys.stdout.flush()\npid = os.fork()\n"
    "print('ready', flush=True)\ntime.sleep(60)\n"
)


@contextmanager
def running(words: list[str], ready: int = 1, **env: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={"PATH": "/usr/bin", "WANDB_API_KEY": "secret-1", **env},
    )
    try:
        assert child.stdout is not None
        for _ in range(ready):
            assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        import os
        import signal

        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()


def roles(*pids: int) -> dict[int, attachable.TorchProcess]:
    found, _ = attachable.find()
    return {
        one.definition.pid: one
        for one in found
        if one.definition.pid in pids or one.definition.ppid in pids
    }


def test_ranks_are_known_by_their_environment_and_nothing_else_of_it_is_told(tmp_path):
    code = likeness(tmp_path, "import time; print('ready', flush=True); time.sleep(60)")
    env = {
        "RANK": "3",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29500",
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
    }
    with running(["-c", code], **env) as child:
        answer = answers.listing("")
        (row,) = [row for row in answer["processes"] if row["pid"] == child.pid]
        assert (row["rank"], row["world_size"], row["job"], row["slurm"]) == (
            3,
            8,
            "slurm:77.0",
            "77",
        )
        assert row["role"] == TRAINER
        assert {rung["name"] for rung in row["look"]["rungs"]} >= {"probe", "outside"}
        assert "secret-1" not in json.dumps(answer)
        assert set(roles(child.pid)[child.pid].environment) == set(env), (
            "the rest is dropped as soon as it is read"
        )


def test_a_process_without_torch_is_listed_only_where_it_is_asked_for():
    with running(["-c", "import time; print('ready', flush=True); time.sleep(60)"]) as child:
        assert child.pid not in {row["pid"] for row in answers.listing("")["processes"]}
        (row,) = [
            row for row in answers.listing(str(child.pid))["processes"] if row["pid"] == child.pid
        ]
        assert row["torch"] is False


def test_a_fork_without_a_gpu_is_a_helper_of_its_parent(tmp_path):
    with running(
        ["-c", FORK.format(map=MAP.format(path=str(tmp_path / "libtorch_cpu.so")))], 2
    ) as child:
        found = roles(child.pid)
        assert found[child.pid].role == TRAINER
        assert [one.role for pid, one in found.items() if pid != child.pid] == [WORKER]


def test_processes_that_multiprocessing_started_are_one_job_and_their_parent_launches(tmp_path):
    script = tmp_path / "spawn.py"
    mapping = MAP.format(path=str(tmp_path / "libtorch_cpu.so"))
    script.write_text(SPAWN.format(map=mapping, map_in=mapping.replace("\n", "\n    ")))
    with running([str(script)], 3) as child:
        found = roles(child.pid)
        assert found[child.pid].role == LAUNCHER
        ranks = [one for pid, one in found.items() if pid != child.pid and one.role == TRAINER]
        assert [one.sibling_of for one in ranks] == [child.pid, child.pid]


def test_a_launcher_is_known_by_its_program_and_not_by_an_argument_further_on(tmp_path):
    code = likeness(tmp_path, "import time; print('ready', flush=True); time.sleep(60)")
    script = tmp_path / "torchrun"
    script.write_text(code)
    with running([str(script), "train.py"]) as child:
        assert roles(child.pid)[child.pid].role == LAUNCHER
    with running(["-c", code, "--note", "my", "torchrun"]) as child:
        assert roles(child.pid)[child.pid].role == TRAINER


def test_what_a_viewer_asks_for_is_bounded():
    answer = answers.listing(",".join(["1"] * 5000) + ",abc,-4,99999999999999,../1")
    assert {row["pid"] for row in answer["processes"]} >= {1}


def test_an_answer_about_the_most_processes_fits_a_line_of_the_wire(monkeypatch):
    from gpuscope.attach import attach_options
    from gpuscope.wire import codec, frames

    with running(
        ["-c", "import time; print('ready', flush=True); time.sleep(60)", "\u202e" * 4000]
    ) as child:
        (one,) = [one for one in attachable.find([child.pid])[0] if one.definition.pid == child.pid]
        seen = attach_options.look(child.pid)
        monkeypatch.setattr(attachable, "find", lambda *_: ([one] * attachable.MAX_FOUND, ""))
        monkeypatch.setattr(attach_options, "look", lambda *_: seen)
        answer = answers.listing("")
        assert len(answer["processes"]) == attachable.MAX_FOUND
        assert len(codec.encode(frames.Result(1, answer))) < frames.MAX_LINE_BYTES
