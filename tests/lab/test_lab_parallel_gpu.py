"""The lab on several real GPUs, and beside somebody else's job.

Run with ``pytest -m gpu tests/lab``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuscope.lab import metrics
from gpuscope.lab.config import LabConfig
from tests.fakes.program import program
from tests.fakes.waiting import alive, until
from tests.lab.test_lab_elastic import Agent

torch = pytest.importorskip("torch")
COUNT = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = pytest.mark.gpu
two = pytest.mark.skipif(COUNT < 2, reason="needs two GPUs")
ROOT = Path(__file__).resolve().parents[2]


def lab(*words: str, shared: bool = False, **environ: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the document and the errors; ``shared`` where others may use the GPUs."""
    share = ["--share-gpus"] if shared else []
    env = {**os.environ, **environ}
    done = program("lab", "--json", "--no-ledger", *words, *share, env=env, timeout=300)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def well(*words: str) -> dict[str, Any]:
    """The document of a run that ends well, whoever else uses the GPUs."""
    code, document, errors = lab(*words, shared=True)
    assert code == 0, errors
    return document


@two
@pytest.mark.parametrize("amp", ["off", "fp16"])
def test_several_gpus_learn_as_one_does(amp: str) -> None:
    words = ["--model", "gpt-small", "--amp", amp, "--steps", "12", "--optimizer", "sgd"]
    one = well(*words, "--batch", "8")
    for parallel in ("dp", "ddp", "fsdp"):
        micro = "8" if parallel == "dp" else "4"  # DataParallel splits its batch
        several = well(*words, "--parallel", parallel, "--nproc", "2", "--batch", micro)
        assert several["samples_per_step"] == one["samples_per_step"] == 8
        assert several["loss_first"] == pytest.approx(one["loss_first"], rel=1e-2)
        assert several["loss_last"] == pytest.approx(one["loss_last"], rel=3e-2)
        assert several["world_size"] == (1 if parallel == "dp" else 2)
        if parallel != "dp":
            assert several["backend"] == "nccl"
            assert [rank["device"] for rank in several["ranks"]] == ["cuda:0", "cuda:1"]
            assert all(rank["peak_allocated_bytes"] > 0 for rank in several["ranks"])


@two
def test_fsdp_shards_what_ddp_holds_twice() -> None:
    words = ["--model", "gpt-medium", "--batch", "1", "--steps", "4", "--nproc", "2"]
    ddp, fsdp = (well(*words, "--parallel", parallel) for parallel in ("ddp", "fsdp"))
    assert fsdp["peak_allocated_bytes"] < 0.8 * ddp["peak_allocated_bytes"]


@two
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_compiled_model_trains_on_several_gpus(parallel: str) -> None:
    words = ["--model", "mlp-small", "--nproc", "2", "--compile", "default", "--accumulate", "2"]
    assert well(*words, "--parallel", parallel, "--steps", "8")["steps"] == 8


@two
def test_a_rank_killed_in_a_collective_ends_the_run() -> None:
    agent = Agent(
        sys.executable, LabConfig(model="gpt-small", device="cuda", parallel="ddp", nproc=2)
    )
    try:
        agent.until_step()
        ranks = agent.ranks()
        os.kill(ranks[1], signal.SIGKILL)
        code, last, errors = agent.end(60)  # NCCL alone would wait for minutes
        assert code == 2
        assert isinstance(last, metrics.RunFailure), errors
        assert f"Rank 1 (pid {ranks[1]}) ended with signal SIGKILL" in last.what
        until(lambda: not any(map(alive, ranks)), seconds=10)
    finally:
        agent.process.kill()
        agent.process.communicate()


@two
def test_stopping_leaves_a_summary_and_nobody_on_the_gpus() -> None:
    agent = Agent(
        sys.executable,
        LabConfig(model="gpt-small", device="cuda", parallel="fsdp", nproc=2, accumulate=2),
    )
    try:
        agent.until_step()
        ranks = agent.ranks()
        agent.process.send_signal(signal.SIGTERM)
        code, last, errors = agent.end(60)
        assert (code, last.kind) == (0, "ended"), errors
        assert len(last.summary["ranks"]) == 2
        assert not any(map(alive, ranks))
    finally:
        agent.process.kill()
        agent.process.communicate()


def test_more_ranks_than_gpus_are_refused_with_what_works() -> None:
    code, document, _ = lab("--parallel", "ddp", "--nproc", str(COUNT + 1), "--steps", "2")
    assert code == 2
    assert f"{COUNT + 1} processes on {COUNT} GPU" in document["error"]["what"]
    assert (
        f"--nproc {COUNT}" in document["error"]["next"]
        or "--parallel" not in document["error"]["next"]
    )


def test_the_tensor_share_is_that_of_the_run() -> None:
    words = ["--model", "gpt-small", "--amp", "bf16", "--batch", "32", "--steps", "60"]
    code, document, errors = lab(*words)
    assert code == 0, errors
    share = document["tensor_active_percent"]
    if share is None:
        reason = next(
            row["reason"] for row in document["unknown"] if row["path"] == "tensor_active_percent"
        )
        assert torch.cuda.get_device_capability() < (9, 0), reason
    else:
        assert 3 < share <= 100


HOLD = (
    "import sys, torch; x = torch.zeros(1 << 30, device='cuda'); print('ready', flush=True); "
    "sys.stdin.read()"
)


def test_a_gpu_in_use_is_refused_and_taken_by_force() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        code, document, _ = lab("--model", "mlp-tiny", "--steps", "2")
        assert code == 2, document
        first, *others = (
            os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(COUNT)))
        ).split(",")
        assert document["error"]["what"] == f"GPU {first} is in use by another job."
        assert f"GiB of GPU {first}" in document["error"]["why"]
        if COUNT > 1:
            assert document["error"]["next"].startswith(
                f"CUDA_VISIBLE_DEVICES={others[0]} gpuscope lab"
            )
            assert (
                lab("--model", "mlp-tiny", "--steps", "2", CUDA_VISIBLE_DEVICES=others[0])[0] == 0
            )
        assert lab("--model", "mlp-tiny", "--steps", "2", "--share-gpus")[0] == 0
    finally:
        holder.kill()
        holder.communicate()
