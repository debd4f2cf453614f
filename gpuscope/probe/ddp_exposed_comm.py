"""Communication that nothing overlaps, per step, from DistributedDataParallel's own measurements.

DDP times its backward pass in its first 10 iterations and in every 100th after that, on CUDA with
events of the training's stream. ``backward_comm_time`` lasts from the first gradient bucket's
collective to the end of the last one. ``backward_compute_comm_overlap_time`` lasts from the same
beginning to the end of backward's computation. Both are in nanoseconds
(torch/csrc/distributed/c10d/logger.cpp). Their difference is what the step waits for. They are
available at the beginning of the next forward pass.

Of steps that take a third of a second every 100th is one in 30 s, and a rank that becomes slower
would be seen minutes later. So DDP is asked to measure one about as often as we read: it waits then
for the backward pass before, which has mostly ended when the next forward pass begins.

On a CPU a measurement waits for nothing, so there nearly every step is measured. What a step takes
without its wait is the rank's own work. Ranks on a CPU share its cores with others, which delay one
step and not the next, so the ranks are compared by their quickest steps: those are delayed least.

The figures are read seldom, and in the thread that steps: then no backward pass holds the lock that
protects them.
"""

from __future__ import annotations

import sys
from collections import deque
from statistics import median
from time import perf_counter
from typing import Any, Callable, Deque, List, Optional, Sequence, Tuple, Union

from ..wire.frames import NOT_INITIALISED, NOT_SUPPORTED, Unknown
from . import collectives
from .on_import import debug

EVERY_SECONDS, ON_CPU_SECONDS = 2.0, 0.5
"""Between two readings. On a CPU nothing waits for a measurement, and its ranks differ more."""
COST_SHARE, ON_CPU_COST_SHARE = 2000, 1000
"""After a reading, this many times its duration passes before the next one."""
QUICK_EVERY_SECONDS = 0.04
"""Between two measurements on a CPU, where steps are not longer than that."""
QUICK_WINDOW_SECONDS, QUICK_SHARE, QUICK_ENOUGH = 8.0, 3, 12
"""Own work is the mean of the quickest of so many of the steps of these seconds, if enough of them
were measured.
"""
WINDOW_SECONDS = 16.0
"""The reading is the median of the measurements of this many seconds."""
WARM_UP = 3
"""The first iterations are not used: connections are made in the first collectives, and the rank
that compiles or loads its kernels last delays the others.
"""
ENOUGH = 3
"""How many iterations must be measured before anything is reported: two ranks are compared by this
figure, and one iteration proves nothing.
"""
DDP_RATE = 100
"""How many iterations pass between two that DDP measures, unless we ask for more."""
COUNTED = 500
"""After this many iterations of DDP it is known how many of them make a step."""
_NO_SAMPLE = Unknown(NOT_INITIALISED, "DistributedDataParallel has not measured an iteration yet")
_NO_DDP = Unknown(
    NOT_SUPPORTED,
    "collectives outside DistributedDataParallel run on their own streams: take a profile to see "
    "the exposed part",
)
_NO_TIMES = Unknown(NOT_SUPPORTED, "this DistributedDataParallel records no times")
_NO_OWN = Unknown(
    NOT_SUPPORTED,
    "the wait of each step is measured where DistributedDataParallel trains on the CPU and each "
    "step is one of its iterations",
)


class Exposed:
    """The communication that a DDP step waits for.

    ``reading`` is in seconds per step, the median of the iterations that were read. It is 0 without
    a process group, because then no rank waits for another.
    """

    def __init__(self) -> None:
        self._recent: Deque[float] = deque(maxlen=int(WINDOW_SECONDS / EVERY_SECONDS))
        self._next = self._next_quick = 0.0
        self._iteration = -1
        # (when, seconds of a step without its wait)
        self._own: Deque[Tuple[float, float]] = deque(maxlen=512)
        self._ahead: Optional[int] = None  # by how many iterations DDP is ahead of our steps
        self._rate = DDP_RATE
        self._rated: Optional[Tuple[int, float]] = None  # (our step, when) at the last rate
        # (iteration of DDP, our step) at the first reading
        self._first: Optional[Tuple[int, int]] = None
        self._collectives: Optional[int] = None
        self.syncs: Optional[int] = None
        """How often a step reduces its gradients; None until that is known."""
        self._per_step = 1
        self._state = _NO_DDP

    def after_step(
        self, parallel: List[Any], total: int, now: float, durations: Sequence[float] = ()
    ) -> None:
        """Read the measurements after a step. ``parallel`` holds weak references of DDP modules.

        ``total`` is the number of steps so far, ``durations`` are how long the last ones took.
        """
        if now < min(self._next, self._next_quick) or not parallel:
            return
        module = parallel[-1]()
        if module is None:
            return
        begin = perf_counter()
        on_cpu = getattr(module, "device_type", "") == "cpu"
        every = ON_CPU_SECONDS if on_cpu else EVERY_SECONDS
        window = int(WINDOW_SECONDS / every)
        if self._recent.maxlen != window:
            self._recent = deque(self._recent, maxlen=window)
        try:
            data = module.logger._get_ddp_logging_data()
            if on_cpu and len(durations) > 1:
                self._look_at_own(data.ints_map, total, now, durations[-2])
            if now >= self._next:
                self._look(
                    data.ints_map, total, lambda: _collectives_of_sync(module, data.strs_map)
                )
                self._adapt_rate(module, total, now, QUICK_EVERY_SECONDS if on_cpu else every)
                self._next = now + max(every, (perf_counter() - begin) * COST_SHARE)
        except Exception:
            self._state = _NO_TIMES
            self._next = now + every
        pause = max(QUICK_EVERY_SECONDS / 2, (perf_counter() - begin) * ON_CPU_COST_SHARE)
        self._next_quick = now + pause if on_cpu else self._next

    def reading(self) -> Union[float, Unknown]:
        if not distributed():
            return 0.0
        if len(self._recent) >= ENOUGH:
            return self._per_step * median(self._recent)
        if self._recent:
            text = (
                f"{len(self._recent)} of DistributedDataParallel's own measurements so far; "
                f"{ENOUGH} are needed"
            )
            return Unknown(NOT_INITIALISED, text)
        return self._state

    def own(self, now: float) -> Union[float, Unknown]:
        """Return the seconds of a step without its wait, the mean of the quickest of late."""
        found = sorted(own for at, own in list(self._own) if at > now - QUICK_WINDOW_SECONDS)
        if len(found) < QUICK_ENOUGH:
            return _NO_OWN
        quickest = found[: len(found) // QUICK_SHARE]
        return sum(quickest) / len(quickest)

    def _look_at_own(self, figures: Any, total: int, now: float, step: float) -> None:
        """Note how long the step before the last, which took ``step`` seconds, did not wait.

        That is the step that DDP tells of, if it is as far ahead of our steps as ever: it tells of
        an older one where it has not measured the last, and several of its iterations may be one
        step of ours.
        """
        iteration = int(figures.get("iteration", 0))
        ahead, usual = iteration - total, self._ahead
        self._ahead = ahead if usual is None else max(ahead, usual)
        both = figures.get("backward_comm_time"), figures.get("backward_compute_comm_overlap_time")
        if ahead != usual or iteration <= WARM_UP or both[0] is None or both[1] is None:
            return
        own = step - max(0, both[0] - both[1]) * 1e-9
        if own > 0 and both[0] > 0:
            self._own.append((now, own))

    def _adapt_rate(self, module: Any, total: int, now: float, every: float) -> None:
        """Have DDP measure as often as it is read, by the pace of the steps since the last time."""
        before, self._rated = self._rated, (total, now)
        change = getattr(module, "_set_ddp_runtime_logging_sample_rate", None)
        if before is None or total <= before[0] or now <= before[1] or change is None:
            return
        iterations = self._per_step * (total - before[0]) / (now - before[1]) * every
        rate = min(max(int(iterations), 1), DDP_RATE)
        if not self._rate / 2 < rate < self._rate * 2:
            change(rate)
            self._rate = rate

    def restore(self, parallel: List[Any]) -> None:
        """Have DDP measure as seldom as by itself."""
        module = parallel[-1]() if parallel and self._rate != DDP_RATE else None
        try:
            if module is not None:
                module._set_ddp_runtime_logging_sample_rate(DDP_RATE)
        except Exception as error:
            debug("DDP keeps measuring often", error)

    def _look(self, figures: Any, total: int, each: Callable[[], Tuple[int, int]]) -> None:
        iteration = int(figures.get("iteration", 0))
        if iteration == self._iteration:
            return
        self._iteration = iteration
        both = figures.get("backward_comm_time"), figures.get("backward_compute_comm_overlap_time")
        if both[0] is None or both[1] is None or both[0] <= 0:
            self._state = _NO_SAMPLE
            return
        if iteration > WARM_UP:
            self._recent.append(max(0, both[0] - both[1]) * 1e-9)
        if self._first is None:
            self._first = (iteration, total)
            self._collectives = _collectives()
        elif iteration - self._first[0] >= COUNTED and total > self._first[1]:
            # Accumulation without no_sync() reduces in every micro-batch, so several iterations of
            # DDP are one step.
            self._per_step = max(
                1, int((iteration - self._first[0]) / (total - self._first[1]) + 0.5)
            )
            self._count_syncs(total - self._first[1], each)

    def _count_syncs(self, steps: int, each: Callable[[], Tuple[int, int]]) -> None:
        """Count how often a step reduces, by forward passes and by collectives.

        The smaller is right.

        Two forward passes before one backward pass are two iterations of DDP, but reduce once.
        """
        now, before = _collectives(), self._collectives
        if now is None or before is None:
            return
        buckets, for_buffers = each()
        launched = (now - before) / steps - for_buffers * self._per_step
        self.syncs = max(1, min(self._per_step, int(launched / max(1, buckets) + 0.5)))


def _collectives() -> Optional[int]:
    found = collectives.count()
    return found if isinstance(found, int) else None


def _collectives_of_sync(module: Any, texts: Any) -> Tuple[int, int]:
    """Return how many collectives reduce the gradients once, and how many a forward begins with."""
    sizes = str(texts.get("rebuilt_bucket_sizes") or texts.get("bucket_sizes") or "")
    buffers = bool(module.broadcast_buffers and list(module.modules_buffers))
    return 1 + sizes.count(","), int(buffers)


def distributed() -> bool:
    """Whether this process is in a process group with others. It only looks at local state."""
    dist: Any = sys.modules.get("torch.distributed")
    try:
        return bool(
            dist is not None
            and dist.is_available()
            and dist.is_initialized()
            and dist.get_world_size() > 1
        )
    except Exception:
        return False  # half imported, or being torn down
