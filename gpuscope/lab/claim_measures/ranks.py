"""Several processes for one measure, a GPU each over NCCL or a share of the cores each over gloo, that go through the
same claims in step. Rank 0 reports; any rank says why it failed."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from .bench import Bench, end_with_parent, measure_all, parser, sender, take_stdout, window

STORE_VARIABLE = "GPUSCOPE_CLAIM_STORE"
WAIT_SECONDS = 180.0
"""Longest that ranks wait for each other, for instance while rank 0 alone measures."""
WARM_STEPS = 2
"""Before every window: the others had the machine until now."""


class World:
    """The ranks of a measure. ``hold`` and ``share`` go over gloo: a rank that waits leaves its GPU alone."""

    def __init__(self, device: torch.device, rank: int, size: int, store: str):
        self.device, self.rank, self.size = device, rank, size
        backend, timeout = ("nccl" if device.type == "cuda" else "gloo"), timedelta(seconds=WAIT_SECONDS)
        distributed.init_process_group(
            backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout
        )
        self.control = distributed.new_group(backend="gloo", timeout=timeout)
        self.groups = {size: distributed.group.WORLD}
        if size > 2:
            self.groups[2] = distributed.new_group([0, 1], timeout=timeout)

    def hold(self) -> None:
        distributed.barrier(group=self.control)

    def share(self, value: float = 0.0) -> float:
        """Rank 0's ``value``, on every rank. A tensor: torch sends objects by way of numpy, which not everyone has."""
        box = torch.tensor([value], dtype=torch.float64)
        distributed.broadcast(box, src=0, group=self.control)
        return float(box)

    def least(self, value: float) -> float:
        """The smallest ``value`` of any rank, on every rank."""
        box = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(box, op=distributed.ReduceOp.MIN, group=self.control)
        return float(box)

    def turns(self, bench: Bench, most: int | None = None, share: float = 1.0) -> Iterator[int]:
        """:meth:`Bench.repeats`, counted by rank 0's clock on every rank."""
        if self.rank == 0:
            for index in bench.repeats(most, share):
                self.share(1)
                yield index
            self.share(0)
        else:
            index = 0
            while self.share():
                yield index
                index += 1

    def timed(self, step: Callable[[], object] | None, steps: int, warm: int = WARM_STEPS) -> float:
        """Seconds a step takes on rank 0, while every rank that has a ``step`` takes it and the others wait."""
        self.hold()
        for _ in range(warm if step else 0):
            assert step is not None
            step()
        took = window(step, steps, self.device) if step else 0.0
        self.hold()
        return self.share(took)

    def in_turn(
        self, bench: Bench, sides: Mapping[str, Callable[[], object] | None], seconds: float, most_steps: int = 100
    ) -> Iterator[dict[str, float]]:
        """As ``bench.in_turn``, with sides that some or all ranks take part in (None on those that do not)."""
        steps = {}
        for name, step in sides.items():
            took = self.timed(step, 2, warm=3)
            steps[name] = max(2, min(most_steps, round(seconds / max(took, 1e-9))))
        for index in self.turns(bench):
            names: Sequence[str] = list(sides) if index % 2 == 0 else list(sides)[::-1]
            yield {name: self.timed(sides[name], steps[name]) for name in names}


RankMeasure = Callable[[Bench, World], None]


def main(measures: Mapping[str, RankMeasure]) -> int:
    """The program of a topic whose claims need several processes: it starts the ranks as itself."""
    arguments = parser().parse_args()
    if "RANK" in os.environ:
        _be_rank(measures, arguments)
    return _start_ranks(arguments)


def _start_ranks(arguments: argparse.Namespace) -> int:
    """Starts them, and ends them all once one has failed. Exit code 0 where all ended well."""
    if arguments.device == "cuda":
        size = 4 if torch.cuda.device_count() >= 4 else 2
    else:
        size = 2
    stream = take_stdout()
    if arguments.stop_on_eof:
        threading.Thread(target=end_with_parent, name="parent", daemon=True).start()
    words = [word for word in sys.argv[1:] if word != "--stop-on-eof"]
    spec = sys.modules["__main__"].__spec__
    assert spec is not None
    with tempfile.TemporaryDirectory(prefix="gpuscope-claims-", ignore_cleanup_errors=True) as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", spec.name, *words],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(size),
                    STORE_VARIABLE: os.path.join(folder, "store"),
                },
            )
            for rank in range(size)
        ]
        try:
            return _watch(ranks, sender(stream))
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                process.wait()


def _watch(ranks: Sequence[subprocess.Popen[bytes]], send: Callable[[dict[str, Any]], None]) -> int:
    while True:
        codes = [process.poll() for process in ranks]
        for rank, code in enumerate(codes):
            if code:
                send({"event": "failed", "reason": f"rank {rank} ended with exit code {code}"})
                return 1
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.05)


def _be_rank(measures: Mapping[str, RankMeasure], arguments: argparse.Namespace) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    threading.Thread(target=_end_with, args=(os.getppid(),), name="parent", daemon=True).start()
    tell = sender(take_stdout())

    def send(event: dict[str, Any]) -> None:
        if event["event"] == "failed":
            tell({**event, "reason": f"rank {rank}: {event['reason']}"})
        elif rank == 0:
            tell(event)

    if arguments.device == "cuda":
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
    else:
        torch.set_num_threads(max(1, _cores() // size))
        device = torch.device("cpu")
    code = 1
    try:
        world = World(device, rank, size, os.environ[STORE_VARIABLE])
        bound = {name: (lambda bench, m=measure: m(bench, world)) for name, measure in measures.items()}
        code = measure_all(bound, arguments, device, send)
        if code == 0:
            world.hold()
            distributed.destroy_process_group()
    except Exception as error:
        send({"event": "failed", "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})
    finally:
        # gloo's threads may abort while the interpreter is taken apart; there is nothing left to say.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end_with(parent: int) -> None:
    """Runs in a thread: a rank does not outlive who started it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
