"""Make random requests to the allocator, the same on every machine.

The simulated allocator is compared on them with the real one. Standard library only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from gpuscope.predict.allocator import EMPTY_CACHE
from gpuscope.predict.trace import Owner, PhaseMark, Trace

KIB, MIB = 1 << 10, 1 << 20
Operation = tuple[str, int, int, int]
"""("alloc", block, bytes, stream 0 to 2) · ("free", block, 0, 0) · ("empty", 0, 0, 0)"""
SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:64,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[1:4,16:2,256:1,>:8]",
    "expandable_segments:True,roundup_power2_divisions:4",
    "garbage_collection_threshold:0.7",
    "large_segment_size_mb:64,max_non_split_rounding_mb:64",
    "expandable_segments:True,large_segment_size_mb:40,max_non_split_rounding_mb:40",
)


@dataclass(frozen=True)
class Workload:
    """A sequence of random requests.

    ``sizes``: small, mixed, large, growing (as with varying sequence lengths) or training (forward
    and backward).
    """

    seed: int
    sizes: str
    steps: int
    streams: int = 1
    empties: bool = False

    @property
    def name(self) -> str:
        more = ["streams"] * (self.streams > 1) + ["empty"] * bool(self.empties)
        return "-".join([self.sizes, str(self.seed), *more])


def workloads() -> list[Workload]:
    found = [
        Workload(seed, sizes, steps)
        for sizes, steps in (
            ("small", 3000),
            ("mixed", 2500),
            ("large", 1200),
            ("growing", 40),
            ("training", 30),
        )
        for seed in (1, 2)
    ]
    found += [Workload(3, "mixed", 1500, streams=3), Workload(4, "mixed", 1500, empties=True)]
    return found


def operations(work: Workload) -> Iterator[Operation]:
    chance = random.Random(work.seed * 1000 + len(work.sizes))
    if work.sizes == "training":
        yield from _training(chance, work.steps)
        return
    if work.sizes == "growing":
        yield from _growing(chance, work.steps)
        return
    live: list[int] = []
    block = 0
    for step in range(work.steps):
        # the amount varies: every other while there are more frees than requests
        if live and chance.random() < (0.35 if step // 200 % 2 == 0 else 0.62):
            yield "free", live.pop(chance.randrange(len(live))), 0, 0
            continue
        yield "alloc", block, _size(chance, work.sizes), chance.randrange(work.streams)
        live.append(block)
        block += 1
        if work.empties and step % 170 == 169:
            yield "empty", 0, 0, 0
    for one in live:
        yield "free", one, 0, 0


def as_trace(work: Workload) -> Trace:
    """Return the same requests for the simulated allocator."""
    trace = Trace(owner_table=[Owner("unknown")])
    for kind, block, size, stream in operations(work):
        if kind == "alloc":
            assert block == len(trace.sizes)
            trace.events.append(block)
            trace.sizes.append(size)
            trace.owners.append(0)
            if stream:
                trace.streams[block] = stream
        elif kind == "free":
            trace.events.append(~block)
        else:
            trace.marks.append(PhaseMark(len(trace.events), EMPTY_CACHE))
    return trace


def _size(chance: random.Random, kind: str) -> int:
    if kind == "small":
        return chance.choice(
            (1, 17, 512, 513, 4000, 100 * KIB, 512 * KIB, MIB - 1, MIB, chance.randrange(1, MIB))
        )
    if kind == "large":
        return chance.randrange(8 * MIB, 120 * MIB)
    draw = chance.random()
    if draw < 0.4:
        return chance.randrange(1, MIB + 1)
    if draw < 0.75:
        return chance.randrange(MIB + 1, 10 * MIB)
    if draw < 0.8:
        return chance.choice((10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 20 * MIB, 32 * MIB, MIB + 1))
    return chance.randrange(10 * MIB, 70 * MIB)


def _growing(chance: random.Random, steps: int) -> Iterator[Operation]:
    """Activations whose sizes change from step to step, freed in reverse order.

    That is what fragments a real training.
    """
    block = 0
    for _ in range(steps):
        length = chance.randrange(64, 1025)
        first = block
        for layer in range(12):
            for share in (4, 12, 16, 4, length // 8):
                yield "alloc", block, 8 * length * share * KIB // 4 + layer, 0
                block += 1
        for one in range(block - 1, first - 1, -1):
            yield "free", one, 0, 0


def _training(chance: random.Random, steps: int) -> Iterator[Operation]:
    """Weights and states that stay, activations of a fixed size, short-lived temporaries."""
    shapes = [chance.randrange(200 * KIB, 24 * MIB) for _ in range(24)]
    block = 0
    for size in shapes * 3:
        yield "alloc", block, size, 0
        block += 1
    for _ in range(steps):
        kept = []
        for size in shapes:
            yield "alloc", block, 2 * size, 0
            yield "alloc", block + 1, size // 3 + 1, 0
            yield "free", block + 1, 0, 0
            kept.append(block)
            block += 2
        gradients = []
        for size, one in zip(reversed(shapes), reversed(kept), strict=True):
            yield "alloc", block, size, 0
            yield "free", one, 0, 0
            gradients.append(block)
            block += 1
        for one in gradients:
            yield "free", one, 0, 0
