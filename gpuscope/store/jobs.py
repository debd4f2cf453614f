"""Groups trainers and processes into jobs.

Trainers with the same job key are one job. A trainer without a key is a job by itself, and so is
each process that holds device memory and has no probe. A trainer whose steps stop is not
necessarily dead: this module only gives ages and does not judge.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from ..text.process_name import short_command, short_script
from .view import JobView, ProcView, TrainerView

_LOOPBACK = re.compile(r"(?:.*@)?(?:localhost|127\.\d+\.\d+\.\d+|\[?::1\]?|0\.0\.0\.0):\d+$", re.I)


def group(processes: Sequence[ProcView], trainers: Sequence[TrainerView]) -> tuple[JobView, ...]:
    """Return the jobs that run, those with a probe first, then by their lowest process id.

    The order does not depend on when they were found. Jobs whose trainers have all ended come last,
    with their last state, the newest first.
    """
    by_id = {process.id: process for process in processes}
    by_job: dict[str, list[TrainerView]] = {}
    inside, pids = set(), {trainer.definition.pid for trainer in trainers}
    for trainer in trainers:
        by_job.setdefault(trainer.definition.job or trainer.key, []).append(trainer)
        inside.add(trainer.process)
    running: list[JobView] = []
    ended: list[JobView] = []
    for key, members in by_job.items():
        job = _of_trainers(key, members, by_id)
        (ended if all(t.gone for t in job.trainers) else running).append(job)
    outside = [
        # the job key is any text that a job has chosen
        _of_process(p, p.key if p.key not in by_job else f"process {p.key}")
        for p in processes
        if p.gone is None and p.uses and p.id not in inside and not _is_taken_down(p, pids)
    ]
    running.sort(key=_lowest_pid)
    outside.sort(key=_lowest_pid)
    ended.sort(key=_last_end, reverse=True)
    return (*running, *outside, *ended)


def _lowest_pid(job: JobView) -> int:
    return min(one.definition.pid for one in (job.trainers or job.processes) if one.gone is None)


def _last_end(job: JobView) -> float:
    """Return when the last rank of a job ended, on the monotonic clock of its host."""
    members = (*job.trainers, *job.processes)
    return max(one.gone.monotonic_seconds for one in members if one.gone is not None)


def _is_taken_down(process: ProcView, pids: Collection[int]) -> bool:
    """Tell whether a process is what the driver still lists of a trainer that has just ended.

    The kernel knows nothing of it any more. ``pids`` are those of the trainers.
    """
    return process.definition.start is None and process.definition.pid in pids


def is_local_key(key: str) -> bool:
    """Tell whether a job key is valid on its own host only.

    It is if its ranks meet on the loopback address. Ranks on several hosts that share any other key
    belong to one job.
    """
    return _LOOPBACK.match(key) is not None


def _of_trainers(key: str, members: list[TrainerView], by_id: dict[int, ProcView]) -> JobView:
    ranks = _current(members)
    processes = tuple(
        by_id[t.process] for t in ranks if t.process is not None and t.process in by_id
    )
    script = ranks[0].definition.script
    title = (
        short_script(script)
        if script
        else (_title(processes[0]) if processes else f"pid {ranks[0].definition.pid}")
    )
    user = processes[0].definition.user if processes else None
    mine = any(p.definition.mine for p in processes)
    return JobView(key, title, user, mine, ranks, processes)


def _of_process(process: ProcView, key: str) -> JobView:
    definition = process.definition
    return JobView(key, _title(process), definition.user, definition.mine, (), (process,))


def _current(members: list[TrainerView]) -> tuple[TrainerView, ...]:
    """Return one trainer per rank, sorted by rank.

    After an elastic restart only the newest trainer of a rank counts.
    """
    best: dict[object, TrainerView] = {}
    for trainer in members:
        rank = trainer.definition.rank
        slot: object = trainer.key if rank is None else rank
        other = best.get(slot)
        if other is None or _precedence(trainer) > _precedence(other):
            best[slot] = trainer
    return tuple(sorted(best.values(), key=_rank_order))


def _precedence(trainer: TrainerView) -> tuple[bool, float, int]:
    return trainer.gone is None, trainer.gone.monotonic_seconds if trainer.gone else 0.0, trainer.id


def _rank_order(trainer: TrainerView) -> tuple[bool, int, int]:
    rank = trainer.definition.rank
    return rank is None, rank or 0, trainer.definition.pid


def _title(process: ProcView) -> str:
    definition = process.definition
    command = definition.command or definition.name
    return short_command(command) if command else f"pid {definition.pid}"
