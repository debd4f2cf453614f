"""Judge what can be done about a wait for input: one answer for all surfaces.

It follows from what loading does. A loader that computes needs a core for each worker. On a CPU
without a free core it and the training take turns: where the script has as many workers already as
the cores can run, more would not help. A loader that waits itself, for a disk or a network, needs
next to no core: more workers help it however busy the cores are.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from ..store.view import HistoryOf, HostView, TrainerView, no_history
from ..text.numbers import amount
from .loader_line import LoaderLine, loader_of
from .step_time import input_wait

RECENT_SECONDS = 60.0
"""The load of the host is that of this time."""
MOST_WORKERS = 8
"""At most this many workers are advised per rank; more use memory and seldom help."""
MOST_WAITING = 32
"""The same of workers that wait themselves, where as many as :data:`MOST_WORKERS` do not do."""
WAITS = 0.5
"""A loader that needs less of a core for each of its threads mostly waits."""
SLACK = 0.5
"""With less of a core free, what loading needs is more than what it gets."""


class Waiting(NamedTuple):
    """A step of ``step`` seconds, of which the training loses ``wait`` to its input.

    ``loading`` is for how long the thread that trains waits for a batch. It is more where a GPU
    works meanwhile.
    """

    step: float
    wait: float
    loading: float

    def of_one_thread(self, workers: int | None) -> float:
        """Return for how long one thread loads a batch, where there are so many workers.

        Workers that keep a training waiting are never idle, so each of them loads for as many steps
        as there are workers. Where their number is unknown, this is the least that it can be.
        """
        return max(self.loading, (workers or 0) * self.step)

    def best(self, workers: int, now: int | None) -> float:
        """Return the shortest possible step with ``workers`` instead of the ``now`` there are.

        One worker hides at most the shorter of loading and the rest of the step.
        """
        return min(self.step, max(self.step - self.wait, self.of_one_thread(now) / workers))

    def with_half_the_loading(self, now: int | None) -> float:
        """Return the step where loading a batch takes half as long, and nothing else changes."""
        rest, loading = self.step - self.wait, self.of_one_thread(now)
        return max(rest, loading / 2 / now) if now else rest + max(0.0, self.wait - loading / 2)


class WorkerRoom(NamedTuple):
    """What is known of a rank's loader, and how many loader workers the CPU cores can run for it.

    ``cores`` are those that it may use, None where that is unknown; ``busy_percent`` is the load of
    the host, None where that is unknown. ``free`` are the cores that are left for its workers,
    and ``loader`` the call in its script, None where that is not known. ``has`` is how many workers
    it has, and ``needs`` how many cores each of them needs, or without workers the training's
    process while it loads; None where the probe has not measured it.
    """

    cores: float | None
    busy_percent: float | None
    free: float
    loader: LoaderLine | None
    has: int | None = None
    needs: float | None = None
    waiting: Waiting | None = None

    @property
    def waits(self) -> bool:
        """Whether loading is known to wait more than it computes."""
        return self.needs is not None and self.needs < WAITS

    @property
    def number(self) -> int:
        """The number of workers to advise."""
        if self.waits:
            most = min(MOST_WAITING, max(MOST_WORKERS, 2 * (self.has or 0)))
            return min(most, self._hiding or most)
        return max(1, min(MOST_WORKERS, int(self.free / max(self.needs or 1.0, WAITS))))

    @property
    def _hiding(self) -> int | None:
        """How many workers load batches as fast as the training uses them, with one to spare.

        A power of two: both times vary from look to look, and the advice is not to vary with them.
        """
        if self.waiting is None or self.waiting.step <= self.waiting.wait:
            return None
        rest = self.waiting.step - self.waiting.wait
        needed = ceil(min(MOST_WAITING, self.waiting.of_one_thread(self.has) / rest)) + 1
        return 1 << (needed - 1).bit_length()

    @property
    def enough(self) -> bool:
        """Whether the script has as many workers already."""
        return self.cores is not None and self.has is not None and self.has >= self.number

    @property
    def is_full(self) -> bool:
        """Whether each worker would need a core, as is known, and none is free."""
        return self.needs is not None and not self.waits and self.free < 1


def worker_room(
    host: HostView,
    trainer: TrainerView,
    history: HistoryOf = no_history,
    waiting: Waiting | None = None,
) -> WorkerRoom:
    """Return what is known of a rank's loader, and how many workers the CPU cores can run.

    ``waiting`` is for how long it waits, as a finding says it; without it, its last steps tell.
    """
    cores, loader = usable_cores(host, trainer), loader_of(trainer)
    busy, total = _busy_percent(host, history), host.definition.cpu_count
    facts = trainer.minutes[-1] if trainer.minutes else {}
    counted, needs = facts.get("loader_workers"), amount(facts.get("loading_cores"))
    has = counted if isinstance(counted, int) else loader.workers if loader is not None else None
    waiting, free = waiting or _waiting(trainer), 0.0
    if cores is not None:
        own = 0 if trainer.definition.cuda else 1  # a training on the CPU computes on one itself
        free = cores - own
        if total and busy is not None:
            idle = total * (1 - busy / 100)
            if needs is not None and has == 0 and waiting is not None and idle >= SLACK:
                # workers take over what the training's process computes now
                idle += needs * waiting.loading / waiting.step
            free = min(free, idle)
    return WorkerRoom(cores, busy, free, loader, has, needs, waiting)


def _waiting(trainer: TrainerView) -> Waiting | None:
    wait, step = input_wait(trainer)
    if wait is None or not step:
        return None
    thread = trainer.number("loader_wait_seconds") or 0.0
    return Waiting(step, min(wait, step), min(max(wait, thread), step))


def is_hopeless(host: HostView, trainer: TrainerView, history: HistoryOf = no_history) -> bool:
    """Return whether nothing is sure to help against a wait for input."""
    if trainer.definition.cuda:
        return False
    room = worker_room(host, trainer, history)
    return room.enough and room.free < 1 and not room.waits


def usable_cores(host: HostView, trainer: TrainerView) -> float | None:
    """Return how many CPU cores one rank may use; None where that is unknown.

    Its CPU affinity and its cgroup limit the number. The ranks of a job share the cores where there
    are fewer cores than their limits add up to.
    """
    total = host.definition.cpu_count
    own = trainer.definition.cores or total
    if not own:
        return None
    jobs = (job.trainers for job in host.jobs if any(t.key == trainer.key for t in job.trainers))
    ranks = sum(t.gone is None for trainers in jobs for t in trainers)
    return own if own * max(1, ranks) <= (total or own) else own / ranks


def _busy_percent(host: HostView, history: HistoryOf) -> float | None:
    known = [v for v in history(host.id, "cpu_percent", RECENT_SECONDS).values if v is not None]
    return sum(known) / len(known) if known else host.number("cpu_percent")
