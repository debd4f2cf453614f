"""Name the ranks of a job, and compare how much memory they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum

from ..store.view import JobView, TrainerView
from ..text.process_name import short_script

IMBALANCED = 1.15
"""A job is called imbalanced if its fullest rank holds this many times the mean."""


def name_of(trainer: TrainerView) -> str:
    """``rank 3``, or ``pid 4711`` for a trainer without a rank."""
    rank = trainer.definition.rank
    return f"rank {rank}" if rank is not None else f"pid {trainer.definition.pid}"


def pid_of(job: JobView) -> int | None:
    """Return the process whose pid tells a job from another of its name.

    It is the first rank that runs, which stays while the worst of them is now one and now another.
    """
    pids = [one.definition.pid for one in running(job.trainers)]
    return next(iter(pids or [one.definition.pid for one in job.processes]), None)


def of_one_job(trainers: Iterable[TrainerView]) -> bool:
    """Tell whether these are ranks of one job. A trainer without a job is one by itself."""
    return len({one.definition.job or one.key for one in trainers}) == 1


def label_among(trainer: TrainerView, trainers: Sequence[TrainerView]) -> str:
    """Return what tells one of these trainers from the others: its rank, its script, or both.

    A script that several jobs run has the pid of its job, as :func:`pid_of` gives it.
    """
    ranked = trainer.definition.rank is not None
    if ranked and of_one_job(trainers):
        return name_of(trainer)
    name = short_script(trainer.definition.script)
    alike = [one for one in trainers if short_script(one.definition.script) == name]
    own = [one for one in alike if of_one_job((one, trainer))] or [trainer]
    rank = f" {name_of(trainer)}" if ranked and len(own) > 1 else ""
    if len(alike) < 2 or (ranked and len(own) == len(alike)):
        return f"{name}{rank}"
    first = min(own, key=lambda one: one.definition.rank or 0) if ranked else trainer
    return f"{name} ({first.definition.pid}){rank}"


def subject_of(trainer: TrainerView, first: bool = False) -> str:
    """``rank 3``, or the script of a trainer without a rank, as the subject of a sentence.

    People know their script, not its number, which stands where the place of a finding does. Of a
    job of several trainers without a rank only the number tells one from another: see
    :func:`name_of`. ``first`` is the first word of a sentence; a script is written as it is called.
    """
    definition = trainer.definition
    if definition.rank is None and definition.script:
        return short_script(definition.script)
    name = name_of(trainer)
    return name[:1].upper() + name[1:] if first else name


def names_of(trainers: Sequence[TrainerView]) -> str:
    """``rank 3``, ``ranks 0–2, 5``, ``pid 4711``."""
    ranks = sorted(t.definition.rank for t in trainers if t.definition.rank is not None)
    if len(ranks) < len(trainers) or len(trainers) == 1:
        return ", ".join(name_of(t) for t in trainers)
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return "ranks " + ", ".join(
        str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in spans
    )


def running(ranks: Sequence[TrainerView]) -> list[TrainerView]:
    """Return the ranks that run, or all of them where none does."""
    return [one for one in ranks if one.gone is None] or list(ranks)


def fullest(ranks: Iterable[TrainerView]) -> TrainerView:
    """Return the rank whose allocators hold most."""
    return max(ranks, key=lambda one: _held(one) or 0.0)


def _held(trainer: TrainerView) -> float | None:
    parts = [size for a in trainer.allocators if (size := a.number("allocated_bytes")) is not None]
    return sum(parts) if trainer.gone is None and parts else None


def imbalance(ranks: Iterable[TrainerView]) -> float | None:
    """Return the most that a rank has allocated over the mean: 1 if all hold as much."""
    sizes = [size for trainer in ranks if (size := _held(trainer)) is not None]
    mean = fsum(sizes) / len(sizes) if len(sizes) > 1 else 0.0
    return max(sizes) / mean if mean > 0 else None


def median(values: Iterable[float]) -> float:
    """Return the median as the standard library computes it.

    The library's module is loaded where ranks are compared. A verb that looks once and never comes
    here does without it.
    """
    from statistics import median

    return median(values)
