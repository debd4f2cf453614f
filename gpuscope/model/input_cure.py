"""Judge whether anything can be done about a wait for input: one answer for all surfaces.

Loader workers need cores. On a CPU without a free core the loader and the training take turns:
where the script has as many workers already as the cores can run, more would not help.
"""

from __future__ import annotations

from typing import NamedTuple

from ..store.view import HistoryOf, HostView, TrainerView, no_history
from .loader_line import LoaderLine, loader_of

RECENT_SECONDS = 60.0
"""The load of the host is that of this time."""
MOST_WORKERS = 8
"""At most this many workers are advised per rank; more use memory and seldom help."""


class WorkerRoom(NamedTuple):
    """How many loader workers the CPU cores can run for one rank.

    ``cores`` are those that it may use, None where that is unknown; ``busy_percent`` is the load of
    the host, None where that is unknown. ``free`` are the cores that are left for its workers,
    and ``loader`` the call in its script, None where that is not known.
    """

    cores: float | None
    busy_percent: float | None
    free: float
    loader: LoaderLine | None

    @property
    def number(self) -> int:
        """The number of workers to advise."""
        return max(1, min(MOST_WORKERS, int(self.free)))

    @property
    def enough(self) -> bool:
        """Whether the script has as many workers already."""
        has = self.loader.workers if self.loader is not None else None
        return self.cores is not None and has is not None and has >= self.number


def worker_room(
    host: HostView, trainer: TrainerView, history: HistoryOf = no_history
) -> WorkerRoom:
    """Return how many loader workers the CPU cores can run for a rank."""
    cores, loader = usable_cores(host, trainer), loader_of(trainer)
    busy, total = _busy_percent(host, history), host.definition.cpu_count
    if cores is None:
        return WorkerRoom(None, busy, 0.0, loader)
    own = 0 if trainer.definition.cuda else 1  # a training on the CPU computes on one itself
    idle = total * (1 - busy / 100) if total and busy is not None else None
    return WorkerRoom(cores, busy, cores - own if idle is None else min(cores - own, idle), loader)


def is_hopeless(host: HostView, trainer: TrainerView, history: HistoryOf = no_history) -> bool:
    """Return whether nothing is sure to help against a wait for input."""
    if trainer.definition.cuda:
        return False
    room = worker_room(host, trainer, history)
    return room.enough and room.free < 1


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
