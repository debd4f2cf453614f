"""Judges jobs that make no steps: which rank, line or collective holds them up, and who ended."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..model.job_ends import end_text
from ..model.ranks import name_of, names_of
from ..model.stalls import Place, Stall, find_stall, is_ending, is_stalled, waits_in_collective
from ..model.stalls import place as stands_at
from ..store.view import JobView, TrainerView
from ..text.units import duration_text
from ..wire.frames import Unknown
from .finding import Evidence, Finding
from .live_scene import WORDINGS, Findings, LiveScene, living, place

_LOADER = re.compile(
    r"__getitem__|__next__|__iter__|collate|dataload|dataset|_next_data|_try_get|fetch|sampler",
    re.I,
)

STALLED = 3.5
"""The rank of a hang: above that of a loss which is NaN, for it does not even make steps."""
_BACKWARD = "backward"
"""Within the name of the function of torch in which DDP waits for its collectives."""


def standstill(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding on a job that makes no steps, with the rank that holds it up and where."""
    if not living(job):
        return
    stall = find_stall(job.trainers)
    if stall is None:
        return
    if stall.busy:
        name = "hang.recorded" if scene.recorded else "hang"
        yield WORDINGS.abstained(name, stall=stall.text)
        return
    ranks = living(job)
    culprits = stall.behind or (ranks if len(ranks) == 1 else ())
    evidence = [_rank_evidence(trainer, told=stall.text) for trainer in (culprits or ranks)[:8]]
    if stall.behind and stall.waiting:
        places = _by_place(stall.waiting)[:3]
        evidence += [_rank_evidence(*alike, told=stall.text) for alike in places]
        evidence += _collectives_evidence(stall)
    yield _finding(scene, job, stall, tuple(culprits), evidence)


def _finding(
    scene: LiveScene,
    job: JobView,
    stall: Stall,
    culprits: tuple[TrainerView, ...],
    evidence: list[Evidence],
) -> Finding:
    first = culprits[0] if culprits else living(job)[0]
    stands = stands_at(first)
    at, function = stands.line, stands.innermost
    where = place(scene, first) + (f", {at}" if at else "")
    alone = len(living(job)) == 1 and (first.definition.world_size or 1) <= 1
    if not culprits:
        name = "stall.all_in_collective"
        evidence.append(
            Evidence(
                "all ranks launched the same number of collectives: none is behind, so the "
                "transport (NCCL, network) is suspect"
            )
        )
    elif _LOADER.search(f"{at} {stands.function} {function}") and not waits_in_collective(first):
        name = "stall.loader"
        evidence.append(
            Evidence(
                f"{function or at} is the input pipeline: the {'training' if alone else 'rank'} "
                "waits for data"
            )
        )
    elif not alone and at and not waits_in_collective(first) and _BACKWARD not in function:
        name = "stall.elsewhere"
        text = f"{name_of(first)} is in no collective: it waits at that line for something else"
        evidence.append(Evidence(text))
    elif not alone:
        name = "stall.ranks_differ"
    elif first.definition.cuda:
        name = "stall.alone.cuda"
        evidence.append(
            Evidence("with CUDA, that line may wait for a kernel that an earlier line launched")
        )
    else:
        name = "stall.alone.line" if at else "stall.alone"
    sure = bool(culprits) and bool(at)
    return WORDINGS.finding(
        name,
        {
            "pid": first.definition.pid,
            "stall": stall.text,
            "at": at,
            "collective": function or "a collective",
        },
        severity="problem",
        confidence="definite" if sure else "likely",
        evidence=tuple(evidence),
        where=where,
        rank=STALLED,
    )


def _by_place(ranks: Sequence[TrainerView]) -> list[list[TrainerView]]:
    """Returns the ranks, those together that are stuck at one place."""
    found: dict[Place, list[TrainerView]] = {}
    for trainer in ranks:
        found.setdefault(stands_at(trainer), []).append(trainer)
    return list(found.values())


def _rank_evidence(trainer: TrainerView, *alike: TrainerView, told: str = "") -> Evidence:
    """Returns when a rank stepped last and where it is stuck; ``alike`` are at the same place.

    A place that the title has ``told`` is not repeated.
    """
    stands = stands_at(trainer)
    age, usual = trainer.number("step_age_seconds"), trainer.number("step_seconds")
    parts = [
        f"last step {duration_text(age)} ago" if age is not None else "age of its last step unknown"
    ]
    if usual is not None:
        parts.append(f"usually one every {duration_text(usual)}")
    if stands.line and stands.text in told:
        pass
    elif stands.line:
        parts.append(f"main thread at {stands.text}")
    else:
        reading = trainer.reading("stall_at")
        parts.append(
            f"where it is stuck is unknown ({reading.text})" if isinstance(reading, Unknown) else ""
        )
    text = f"{names_of((trainer, *alike))}: {', '.join(filter(None, parts))}"
    return Evidence(text, "probe")


def _collectives_evidence(stall: Stall) -> list[Evidence]:
    """Returns how many collectives each side launched, where the ranks behind made fewer."""
    behind = [count for t in stall.behind if (count := t.number("collectives")) is not None]
    others = [count for t in stall.waiting if (count := t.number("collectives")) is not None]
    if not behind or not others or min(others) <= max(behind):
        return []
    text = (
        f"collectives launched: {names_of(stall.behind)}: {max(behind):,.0f}, "
        f"{names_of(stall.waiting)}: {min(others):,.0f}"
    )
    return [Evidence(text, "probe")]


def lost_ranks(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding on ranks that ended while others of their job wait."""
    gone = [trainer for trainer in job.trainers if trainer.gone is not None]
    here = living(job)
    if not gone or not here or is_ending(job.trainers):
        return
    if not all(is_stalled(trainer) for trainer in here):
        return
    evidence = [
        Evidence(f"{name_of(t)}: {end_text(t.gone)}", "agent")
        for t in gone[:8]
        if t.gone is not None
    ]
    evidence += [_rank_evidence(trainer) for trainer in here[:4]]
    pids = " ".join(str(t.definition.pid) for t in here[:16])
    yield WORDINGS.finding(
        "stall.rank_gone.one_left" if len(here) == 1 else "stall.rank_gone",
        {"gone": names_of(gone), "here": names_of(here), "pids": pids},
        evidence=tuple(evidence),
        where=place(scene, gone[0]),
        rank=STALLED,
    )
