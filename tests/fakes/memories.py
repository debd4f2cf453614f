"""Made-up series of allocated bytes after each optimizer step.

They are of healthy trainings of many kinds, and of leaking ones.

Each generator takes a seeded ``Random`` and a number of steps and gives one size per step. They are
models of patterns, not recordings: what a training holds after a step, plus what its loop, its data
and its evaluation do to that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

MIB = 1 << 20
GIB = 1 << 30
Series = Callable[[Random, int], list[float]]


def _base(rng: Random) -> float:
    return rng.uniform(2, 60) * GIB


def _ar(rng: Random, n: int, sigma: float, rho: float) -> list[float]:
    """An AR(1) series with standard deviation ``sigma``."""
    x, out = rng.gauss(0, sigma), []
    for _ in range(n):
        x = rho * x + rng.gauss(0, sigma) * math.sqrt(1 - rho * rho)
        out.append(x)
    return out


def flat(rng: Random, n: int) -> list[float]:
    return [_base(rng)] * n


def warm_up(rng: Random, n: int) -> list[float]:
    """Gradients and state with the first steps, autotuning over a few more."""
    base, tune = _base(rng), rng.randint(2, 25)
    return [
        base * (0.3 if i == 0 else 1.0) + rng.uniform(0, 200) * MIB * (i < tune) for i in range(n)
    ]


def autotune_workspaces(rng: Random, n: int) -> list[float]:
    """Each new shape brings a workspace; ever fewer are new."""
    base, sizes, out, seen = _base(rng), rng.randint(10, 60), [], set()
    for _ in range(n):
        seen.add(min(int(rng.expovariate(1 / (sizes / 4))), sizes))
        out.append(base + len(seen) * 8 * MIB)
    return out


def white_noise(rng: Random, n: int) -> list[float]:
    base, sigma = _base(rng), rng.uniform(1, 500) * MIB
    return [base + rng.gauss(0, sigma) for _ in range(n)]


def sequence_lengths(rng: Random, n: int) -> list[float]:
    """The last batch is still held: a log-normal length each step, cut at the longest."""
    base, unit = _base(rng), rng.uniform(0.1, 2) * MIB
    return [base + unit * min(2048, rng.lognormvariate(5.5, 0.7)) for _ in range(n)]


def sorted_buckets(rng: Random, n: int) -> list[float]:
    """Batches of like length: short to long inside each of many buckets."""
    base, bucket, unit = _base(rng), rng.randint(15, 60), rng.uniform(0.5, 4) * MIB
    return [base + unit * (i % bucket) + rng.gauss(0, unit) for i in range(n)]


def autocorrelated(rng: Random, n: int) -> list[float]:
    base = _base(rng)
    return [base + x for x in _ar(rng, n, rng.uniform(5, 400) * MIB, rng.uniform(0.5, 0.97))]


def slow_wander(rng: Random, n: int) -> list[float]:
    base = _base(rng)
    return [base + x for x in _ar(rng, n, rng.uniform(5, 200) * MIB, 0.99)]


def slow_cache(rng: Random, n: int) -> list[float]:
    """A cache that fills to its limit."""
    base, limit, tau = _base(rng), rng.uniform(20, 800) * MIB, rng.uniform(10, 150)
    return [base + limit * (1 - math.exp(-i / tau)) for i in range(n)]


def bounded_cache(rng: Random, n: int) -> list[float]:
    """Entries of one size until the cache has its number."""
    base, entry, most = _base(rng), rng.uniform(0.1, 4) * MIB, rng.randint(10, 120)
    return [base + entry * min(i, most) for i in range(n)]


def evaluation_spikes(rng: Random, n: int) -> list[float]:
    base, every, size = _base(rng), rng.randint(20, 200), rng.uniform(0.1, 4) * GIB
    return [base + (size if i % every < 3 and i > 3 else 0.0) for i in range(n)]


def sawtooth(rng: Random, n: int) -> list[float]:
    """A metric keeps its inputs until it is read."""
    base, every, slope = _base(rng), rng.randint(10, 60), rng.uniform(0.5, 20) * MIB
    return [base + slope * (i % every) for i in range(n)]


def long_sawtooth(rng: Random, n: int) -> list[float]:
    base, every, slope = _base(rng), rng.randint(100, 300), rng.uniform(0.01, 1) * MIB
    return [base + slope * (i % every) + rng.gauss(0, 3 * slope) for i in range(n)]


def one_jump(rng: Random, n: int) -> list[float]:
    base, at, size = _base(rng), rng.randint(20, n), rng.uniform(0.01, 8) * GIB
    return [base + size * (i >= at) + rng.gauss(0, 1) * MIB for i in range(n)]


def two_jumps(rng: Random, n: int) -> list[float]:
    """A validation leaves its cache behind; later there is an average of the weights.

    The average is an exponential moving one.
    """
    base, a, b = _base(rng), rng.randint(20, n // 2), rng.randint(n // 2, n)
    sizes = rng.uniform(0.05, 2) * GIB, rng.uniform(0.05, 4) * GIB
    return [base + sizes[0] * (i >= a) + sizes[1] * (i >= b) for i in range(n)]


def validation_phases(rng: Random, n: int) -> list[float]:
    """Higher for some while after each validation, until the collector runs."""
    base, every, held, size = (
        _base(rng),
        rng.randint(80, 250),
        rng.randint(10, 70),
        rng.uniform(0.1, 2) * GIB,
    )
    return [
        base + size * (i >= every and i % every < held) + rng.gauss(0, 2) * MIB for i in range(n)
    ]


def accumulation(rng: Random, n: int) -> list[float]:
    """Gradients set to None every k-th step only."""
    base, k, size = _base(rng), rng.randint(2, 32), rng.uniform(0.1, 4) * GIB
    return [base + size * (i % k != 0) for i in range(n)]


def garbage(rng: Random, n: int) -> list[float]:
    """Reference cycles: held until Python's collector runs, at times of its own."""
    base, slope, out, held = _base(rng), rng.uniform(1, 30) * MIB, [], 0.0
    for _ in range(n):
        held = 0.0 if rng.random() < 0.04 else held + slope * rng.random()
        out.append(base + held)
    return out


def heavy_tails(rng: Random, n: int) -> list[float]:
    """Graphs, detections, point clouds: most batches small, a few huge."""
    base, unit = _base(rng), rng.uniform(1, 20) * MIB
    return [base + unit * min(500.0, rng.paretovariate(1.2)) for _ in range(n)]


def daily_mix(rng: Random, n: int) -> list[float]:
    """Data sets in turn: levels that come again."""
    base, levels = _base(rng), [rng.uniform(0, 1) * GIB for _ in range(rng.randint(2, 5))]
    every = rng.randint(5, 80)
    return [base + levels[i // every % len(levels)] + rng.gauss(0, 5) * MIB for i in range(n)]


def random_mix(rng: Random, n: int) -> list[float]:
    """The same, which is next by chance."""
    base, levels, out, level = (
        _base(rng),
        [rng.uniform(0, 1) * GIB for _ in range(rng.randint(2, 6))],
        [],
        0.0,
    )
    for i in range(n):
        if i == 0 or rng.random() < 0.03:
            level = rng.choice(levels)
        out.append(base + level)
    return out


def shrinking(rng: Random, n: int) -> list[float]:
    base, slope = _base(rng), rng.uniform(0.01, 1) * MIB
    return [base - slope * min(i, 1000) + rng.gauss(0, 2) * MIB for i in range(n)]


def episodes(rng: Random, n: int) -> list[float]:
    """Reinforcement learning: a roll-out grows to a length of its own, then is dropped."""
    base, out, held, end = _base(rng), [], 0, 0
    unit = rng.uniform(0.5, 8) * MIB
    for _ in range(n):
        if held >= end:
            held, end = 0, rng.randint(5, 80)
        held += 1
        out.append(base + unit * held)
    return out


def replay_buffer(rng: Random, n: int) -> list[float]:
    """Filled in the first steps, then old ones make place."""
    base, most = _base(rng), rng.randint(15, 60)
    size = rng.uniform(0.2, 3) * GIB / most
    return [base + size * min(i, most) + rng.gauss(0, 0.5) * MIB for i in range(n)]


def pruning(rng: Random, n: int) -> list[float]:
    """Densified and pruned in turn, as Gaussian splatting is: a random walk that is pulled back."""
    base, x, out = _base(rng), 0.0, []
    for i in range(n):
        x += rng.gauss(0, 10) * MIB - 0.02 * x
        if i % 100 == 99:
            x *= 0.3
        out.append(base + x)
    return out


HEALTHY: tuple[Series, ...] = (
    flat, warm_up, autotune_workspaces, white_noise, sequence_lengths, sorted_buckets,
    autocorrelated, slow_wander, slow_cache, bounded_cache, evaluation_spikes, sawtooth,
    long_sawtooth, one_jump, two_jumps, validation_phases, accumulation, garbage, heavy_tails,
    daily_mix, random_mix, shrinking, episodes, replay_buffer, pruning,
)  # fmt: skip


# ── leaks ──


def constant_leak(rng: Random, n: int) -> list[float]:
    base, slope = _base(rng), rng.uniform(1, 50) * MIB
    return [base + slope * i for i in range(n)]


def small_leak(rng: Random, n: int) -> list[float]:
    """A scalar kept each step: the least block of the allocator."""
    base = float(int(_base(rng)))
    return [base + 512.0 * i for i in range(n)]


def noisy_leak(rng: Random, n: int) -> list[float]:
    """The noise of one step is five times the leak of one."""
    base, slope = _base(rng), rng.uniform(1, 20) * MIB
    return [base + slope * i + rng.gauss(0, 5 * slope) for i in range(n)]


def stepwise_leak(rng: Random, n: int) -> list[float]:
    """Every eighth step."""
    base, size = _base(rng), rng.uniform(8, 100) * MIB
    return [base + size * (i // 8) for i in range(n)]


def leak_under_lengths(rng: Random, n: int) -> list[float]:
    slope = rng.uniform(4, 20) * MIB
    return [x + slope * i for i, x in enumerate(sequence_lengths(rng, n))]


def late_leak(rng: Random, n: int) -> list[float]:
    """Begins at step 300."""
    base, slope = _base(rng), rng.uniform(2, 20) * MIB
    return [base + slope * max(0, i - 300) + rng.gauss(0, slope) for i in range(n)]


def curriculum(rng: Random, n: int) -> list[float]:
    """Sequences a little longer every ten steps: growth, though no leak."""
    base, size = _base(rng), rng.uniform(10, 60) * MIB
    return [base + size * (i // 10) + rng.gauss(0, 0.2 * size) for i in range(n)]
