"""Two ranks train what one process trains with twice the batch: real processes over gloo."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpuscope.lab.config import LabConfig
from tests.fakes.forked_scripts import free_port
from tests.fakes.forking import Forked, script

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def two() -> dict[str, Any]:
    """What two ranks of ``ranks.py`` have found."""
    environ = {
        **os.environ,
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    code = script("tests.lab.ranks")
    ranks = [
        Forked(code, {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=ROOT)
        for rank in range(2)
    ]
    try:
        told = [rank.communicate(timeout=100) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], [errors for _, errors in told]
    return dict(json.loads(told[0][0]))


def alone(**toggles: Any) -> list[float]:
    """What one process learns from twice the micro-batch."""
    from gpuscope.lab import parallel
    from tests.lab import ranks

    return ranks.trained(parallel.join(LabConfig(device="cpu")), batch=16, **toggles)


def assert_close(a: list[float], b: list[float], tolerance: float) -> None:
    assert len(a) == len(b) > 1000
    assert max(abs(x - y) for x, y in zip(a, b, strict=True)) < tolerance


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_learn_what_one_process_learns_from_twice_the_batch(
    two: dict[str, Any], parallel: str
) -> None:
    whole = alone(accumulate=2)
    assert_close(two[parallel], whole, 1e-6)
    # another batch is another result: the tolerance tells them apart
    with pytest.raises(AssertionError):
        assert_close(alone(accumulate=1), whole, 1e-6)


@pytest.mark.slow
def test_fsdp_learns_under_fp16_with_a_scaler(two: dict[str, Any]) -> None:
    assert_close(two["fsdp fp16"], alone(amp="fp16"), 2e-4)


@pytest.mark.slow
def test_accumulation_reduces_gradients_once_a_step(two: dict[str, Any]) -> None:
    for kind in ("ddp", "fsdp"):
        once, accumulated = two[f"{kind} reductions"]
        assert once == accumulated >= 4, kind


@pytest.mark.slow
def test_each_rank_has_its_own_samples_and_every_epoch_its_own_order(two: dict[str, Any]) -> None:
    first, second = ([rank[epoch] for rank in two["epochs"]] for epoch in (0, 1))
    for epoch in (first, second):
        assert sorted(epoch[0] + epoch[1]) == list(range(10))
    assert first != second


@pytest.mark.slow
def test_a_flag_of_one_rank_is_heard_by_all_at_the_same_call(two: dict[str, Any]) -> None:
    stop = [False, False, True, False]
    assert two["flags"] == [[[heard, False] for heard in stop]] * 2
    assert two["mean"] == 0.5


def test_alone_nothing_is_exchanged() -> None:
    from gpuscope.lab import parallel

    world = parallel.join(LabConfig(device="cpu", parallel="ddp"))
    assert (world.rank, world.size, world.backend, str(world.device)) == (0, 1, "", "cpu")
    assert parallel.agree(True, world)
    assert parallel.gather({"a": 1}, world) == [{"a": 1}]
    model = torch.nn.Linear(2, 2)
    for kind in ("none", "dp", "ddp", "fsdp"):
        assert parallel.wrap(model, LabConfig(device="cpu", parallel=kind), world) is model
    with pytest.raises(SystemExit) as left:
        parallel.leave(world, 2)
    assert left.value.code == 2


def test_the_blocks_of_a_model_are_its_largest_list_of_layers() -> None:
    from gpuscope.lab import models, parallel

    gpt = models.build("gpt-tiny", torch.device("cpu"), 0).model
    assert parallel.blocks(gpt) == list(gpt.blocks)
    nested = torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    )
    assert parallel.blocks(nested) == [nested[0][0], nested[0][2]]
    assert parallel.blocks(torch.nn.Linear(2, 2)) == []
