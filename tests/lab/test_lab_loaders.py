"""Micro-batches have the same samples whichever way they come.

Each rank has its own, in another order in every epoch.
"""

from __future__ import annotations

import os
import signal
import time
from itertools import islice

import pytest

torch = pytest.importorskip("torch")

from gpuscope.lab import loaders, models  # noqa: E402
from gpuscope.lab.config import LabConfig  # noqa: E402
from gpuscope.lab.loaders import SyntheticBatches, open_source  # noqa: E402
from tests.fakes.waiting import alive, until  # noqa: E402

CPU = torch.device("cpu")
POOL = 40


def numbered(pool: int = POOL) -> models.Samples:
    """Inputs and targets that tell which sample they are."""
    return torch.arange(pool).float()[:, None], torch.arange(pool)


def batches(
    count: int, batch: int, rank: int = 0, size: int = 1, **toggles: object
) -> list[list[int]]:
    config = LabConfig(**toggles)  # type: ignore[arg-type]
    source = open_source(config, numbered(), batch, CPU, rank, size)
    try:
        found = [source.next() for _ in range(count)]
    finally:
        source.close()
    assert all(torch.equal(inputs[:, 0].long(), targets) for inputs, targets in found)
    return [targets.tolist() for _, targets in found]


def flat(parts: list[list[int]]) -> list[int]:
    return [number for part in parts for number in part]


@pytest.mark.parametrize(
    "toggles", [{}, {"loader": "workers", "workers": 0}, {"loader": "workers", "workers": 2}]
)
def test_every_loader_hands_out_the_pool_in_order_and_from_its_start_again(
    toggles: dict[str, object],
) -> None:
    assert batches(6, 16, **toggles) == [
        [place % POOL for place in range(start, start + 16)] for start in range(0, 96, 16)
    ]


def test_a_batch_may_be_larger_than_the_pool() -> None:
    for toggles in ({}, {"loader": "workers", "workers": 0}):
        assert batches(1, 100, **toggles) == [[place % POOL for place in range(100)]]


def test_synthetic_ranks_take_slices_of_one_global_batch() -> None:
    whole = batches(5, 6)
    first, second = (batches(5, 3, rank, 2) for rank in range(2))
    assert [one + other for one, other in zip(first, second, strict=True)] == whole


def test_ranks_of_a_dataloader_see_disjoint_shards_in_another_order_each_epoch() -> None:
    """Two epochs of two ranks, four batches of five samples each."""
    shards = [flat(batches(8, 5, rank, 2, loader="workers", workers=0)) for rank in range(2)]
    epochs = [[shard[start : start + POOL // 2] for shard in shards] for start in (0, POOL // 2)]
    for one, other in epochs:
        assert not set(one) & set(other)
        assert sorted(one + other) == list(range(POOL))
    assert epochs[0][0] != epochs[1][0]
    assert set(epochs[0][0]) != set(epochs[1][0])
    assert shards[0] == flat(batches(8, 5, 0, 2, loader="workers", workers=0))


def test_without_set_epoch_every_epoch_would_have_the_same_order() -> None:
    """What :class:`loaders.Endless` is for: the sampler by itself repeats."""
    inner = loaders.make_sampler(torch.utils.data.TensorDataset(*numbered()), 0, 0, 2)._sampler
    assert list(inner) == list(inner)
    endless = iter(loaders.make_sampler(torch.utils.data.TensorDataset(*numbered()), 0, 0, 2))
    assert list(islice(endless, 20)) != list(islice(endless, 20))


def test_the_slow_loader_takes_its_time_over_each_batch() -> None:
    begin = time.perf_counter()
    batches(3, 4, loader="slow", workers=0)
    assert time.perf_counter() - begin >= 3 * loaders.SLOW_SECONDS


def test_options_reach_the_dataloader(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}
    real = loaders.DataLoader

    def note(*args: object, **options: object) -> object:
        asked.update(options)
        return real(*args, **options)

    monkeypatch.setattr(loaders, "DataLoader", note)
    batches(1, 4, loader="workers", workers=1, prefetch=3)
    assert (asked["num_workers"], asked["prefetch_factor"], asked["persistent_workers"]) == (
        1,
        3,
        True,
    )
    batches(1, 4, loader="workers")
    assert asked["num_workers"] == loaders.WORKERS
    assert asked["pin_memory"] is False


def test_the_loader_s_processes_end_with_it_and_not_by_ctrl_c() -> None:
    source = open_source(LabConfig(loader="workers", workers=1), numbered(), 4, CPU, 0, 1)
    source.next()
    (process,) = source._batches._workers  # type: ignore[attr-defined]
    os.kill(process.pid, signal.SIGINT)
    source.next()
    source.close()
    until(lambda: not alive(process.pid), seconds=20)


def test_a_position_is_never_beyond_the_pool() -> None:
    source = SyntheticBatches(numbered(7), 3, rank=1, size=2)
    assert [source.next()[1].tolist() for _ in range(3)] == [[3, 4, 5], [2, 3, 4], [1, 2, 3]]
