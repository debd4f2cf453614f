"""Compare the simulated engine of DeepSpeed with the real one, in two processes on a CPU.

``python -m bench.predict.deepspeed_cpu [CASE…]`` needs deepspeed and gloo. For each case of
:data:`ZERO` it prints the largest sum of live tensors in each phase, of all and of those on each of
the engine's own streams, as it was on the larger of two ranks and as it was traced. A CPU has no
streams, so the engine gets some that only say on which of them it works.
``tests/predict/test_deepspeed.py`` has the figures.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from gpuscope.predict import deepspeed as files
from gpuscope.predict.request import Request
from gpuscope.predict.tracing.zero import GATHERING, REDUCING

WIDTH, WORDS, BATCH, STEPS, RANKS = 256, 3000, 4, 3, 2
CASE = "GPUSCOPE_DEEPSPEED_CASE"
ZERO: dict[str, dict[str, Any]] = {
    "stage 1": {"stage": 1, "overlap_comm": False},
    "stage 1, overlapped": {"stage": 1, "overlap_comm": True},
    "stage 2": {"stage": 2},
    "stage 2, overlapped": {"stage": 2, "overlap_comm": True},
    "stage 2, one bucket": {"stage": 2, "reduce_bucket_size": 6_000_000},
    "stage 2, float32": {"stage": 2},
    "stage 2, accumulated": {"stage": 2},
    "stage 2, not contiguous": {"stage": 2, "contiguous_gradients": False},
    "stage 3": {"stage": 3},
    "stage 3, float32": {"stage": 3},
    "stage 3, nothing kept": {
        "stage": 3, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0,
        "stage3_param_persistence_threshold": 0,
    },
    "stage 3, little kept": {
        "stage": 3, "stage3_max_reuse_distance": 400_000, "stage3_prefetch_bucket_size": 300_000,
        "stage3_max_live_parameters": 900_000, "stage3_param_persistence_threshold": 1000,
    },
    "stage 3, accumulated": {"stage": 3, "stage3_max_reuse_distance": 0},
}  # fmt: skip


def config(name: str) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": 2 if "accumulated" in name else 1,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": "float32" not in name},
        "zero_optimization": {
            "reduce_bucket_size": 1_000_000, "allgather_bucket_size": 1_000_000, **ZERO[name],
        },
    }  # fmt: skip


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.grow, self.shrink = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shrink(torch.relu(self.grow(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(WIDTH, 500)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.words(tokens)))


def loss_of(model: nn.Module, device: Any) -> torch.Tensor:
    return model(torch.randint(WORDS, (BATCH, 32), device=device)).float().square().mean()


def optimizer_of(model: nn.Module) -> Any:
    return torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)


def factory(batch: int, device: Any) -> Any:
    model = Net().to(device)
    return model, optimizer_of(model), lambda: loss_of(model, device)


Row = tuple[str, int, int, int]
"""A phase, and the most that was live in it: in all, of what was gathered and of what was reduced
on a stream of its own.
"""


def traced(name: str) -> list[Row]:
    from gpuscope.predict.tracing import steps

    zero = files.zero(config(name), RANKS)
    request = Request(
        "bench.predict.deepspeed_cpu:factory", BATCH, accumulate=zero.accumulate or 1,
        deepspeed=zero.text(), ranks=RANKS, steps=STEPS,
    )  # fmt: skip
    trace = steps.trace(request, emulate=False).trace
    found: list[list[Any]] = []
    marks = list(trace.marks)
    live = {0: 0, GATHERING: 0, REDUCING: 0}
    for at, event in enumerate(trace.events):
        while marks and marks[0].at <= at:
            found.append([marks.pop(0).name, *_now(live)])
        block = event if event >= 0 else ~event
        live[trace.streams.get(block, 0)] += trace.sizes[block] * (1 if event >= 0 else -1)
        if found:
            found[-1][1:] = map(max, found[-1][1:], _now(live))
    return [tuple(row) for row in found if row[0] in ("forward", "backward", "optimizer")]


def _now(live: dict[int, int]) -> tuple[int, int, int]:
    return sum(live.values()), live[GATHERING], live[REDUCING]


class _Stream:
    """A stream of which nothing is known but which of the engine's it is."""

    running = 0

    def __init__(self, number: int):
        self.number = number

    def synchronize(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = record = synchronize

    def query(self) -> bool:
        return True

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        kept, _Stream.running = _Stream.running, self.number
        try:
            yield
        finally:
            _Stream.running = kept


def _pretend_streams() -> None:
    """Give the engine's CPU streams: stage 3 asks for the one that gathers first."""
    kind: Any = type(importlib.import_module("deepspeed.accelerator").get_accelerator())
    own = _Stream(0)

    def made(*_: Any, **__: Any) -> _Stream:
        caller = sys._getframe(1).f_code.co_filename
        return _Stream(GATHERING if caller.endswith("parameter_offload.py") else REDUCING)

    kind.Stream = property(lambda _: made)
    kind.Event = property(lambda _: lambda *_, **__: own)
    kind.stream = lambda _, stream: stream.entered()
    kind.current_stream = kind.default_stream = lambda *_: own
    for name in (
        "is_synchronized_device",
        "resolves_data_dependency",
        "handles_memory_backpressure",
    ):
        setattr(kind, name, lambda _: False)
    torch.Tensor.record_stream = lambda *_: None


def _rank(names: list[str], rank: int, path: str, answers: Any) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555", "DS_ACCELERATOR": "cpu",
    }  # fmt: skip
    deepspeed: Any = importlib.import_module("deepspeed")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=RANKS
    )
    deepspeed.DeepSpeedEngine._broadcast_model = lambda _: None
    collectives: Any = importlib.import_module("deepspeed.runtime.comm.coalesced_collectives")
    collectives._torch_reduce_scatter_fn = lambda *_, **__: None  # gloo copies, NCCL does not
    _pretend_streams()
    for name in names:
        answers.put((name, rank, _measured(name, deepspeed)))


def _measured(name: str, deepspeed: Any) -> list[Row]:
    from tests.predict.ddp_truth import Live

    class Streams(Live):
        """Counts also by the stream on which a tensor was made."""

        def __init__(self) -> None:
            super().__init__()
            self.of: dict[int, int] = {}
            self.live = {0: 0, GATHERING: 0, REDUCING: 0}

        def _made(self, key: int, size: int) -> None:
            self.of[key] = _Stream.running
            self._add(_Stream.running, size)

        def _freed(self, key: int, size: int) -> None:
            super()._freed(key, size)
            self._add(self.of.pop(key), -size)

        def _add(self, stream: int, size: int) -> None:
            self.live[stream] += size
            if found:
                found[-1][1:] = map(max, found[-1][1:], _now(self.live))

    found: list[list[Any]] = []
    with Streams() as live:
        model = Net()
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer_of(model), config=config(name)
        )
        for _ in range(STEPS):
            for _ in range(engine.gradient_accumulation_steps()):
                found.append(["forward", *_now(live.live)])
                loss = loss_of(engine, "cpu")
                found.append(["backward", *_now(live.live)])
                engine.backward(loss)
                if engine.is_gradient_accumulation_boundary():
                    found.append(["optimizer", *_now(live.live)])
                engine.step()
    return [tuple(row) for row in found]


def real(names: list[str]) -> dict[str, list[Row]]:
    """Return the peak of each phase, on the rank that has most."""
    context = torch.multiprocessing.get_context("spawn")
    answers = context.Queue()
    found: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(names, rank, f"{folder}/store", answers))
            for rank in range(RANKS)
        ]
        for one in ranks:
            one.start()
        for _ in range(RANKS * len(names)):
            name, _, rows = answers.get(timeout=500)
            other = found.setdefault(name, rows)
            found[name] = [
                (first[0], *map(max, first[1:], second[1:]))
                for first, second in zip(rows, other, strict=True)
            ]
            print("  real  ", name, found[name], flush=True)
        for one in ranks:
            one.kill()
    return found


def main() -> int:
    names = sys.argv[1:] or list(ZERO)
    measured = real(names)
    for name in names:
        mine = traced(name)
        rows = zip(mine, measured[name], strict=True)
        worst = max(
            abs(size - true)
            for (_, *sizes), (_, *trues) in rows
            for size, true in zip(sizes, trues, strict=True)
        )
        print(f"{name}: differs by at most {worst:,} bytes")
        print("  traced", mine)
        print("  real  ", measured[name], flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
