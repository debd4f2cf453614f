"""This module joins jobs whose ranks run on several hosts, by the job's key.

It says which host keeps the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ...model.late_rank import late_rank
from ...model.ranks import name_of
from ...model.stalls import find_stall
from ...model.stragglers import host_paced
from ...store.view import HostView, TrainerView
from .summary import Grade, Word

Member = tuple[HostView, TrainerView]


def across(hosts: Sequence[HostView]) -> dict[str, list[Word]]:
    """Return what the ranks elsewhere say of those on each host, by the key of the host.

    Only what is live counts.
    """
    by_job: dict[str, list[Member]] = defaultdict(list)
    for host in hosts:
        if host.link.state in ("live", "replay"):
            for trainer in host.trainers:
                if (
                    trainer.gone is None
                    and trainer.definition.job
                    and trainer.definition.rank is not None
                ):
                    by_job[trainer.definition.job].append((host, trainer))
    words: dict[str, list[Word]] = defaultdict(list)
    for members in by_job.values():
        ranks = [trainer.definition.rank for _, trainer in members]
        if len({host.key for host, _ in members}) > 1 and len(set(ranks)) == len(ranks):
            for key, word in _of_job(
                sorted(members, key=lambda member: member[1].definition.rank or 0)
            ):
                words[key].append(word)
    return dict(words)


def _of_job(members: Sequence[Member]) -> list[tuple[str, Word]]:
    trainers = [trainer for _, trainer in members]
    home = {id(trainer): host for host, trainer in members}
    stall = find_stall(trainers)
    first = trainers[0]
    job = home[id(first)].job_of(first)
    title = job.title if job is not None else ""

    def word(grade: Grade, text: str) -> Word:
        return Word(grade, text, first.definition.job or "", title)

    if stall is None:
        # by the readings of now: those of before of hundreds of ranks would take too long
        late = late_rank(trainers)
        if late is None:
            return []
        there = home[id(late.trainer)]
        late = replace(late, paced=host_paced(there, late.trainer))
        grade = Grade.WARNING if late.warns else Grade.FINE
        return [(there.key, word(grade, f"straggler: {late.brief}"))]
    if not stall.behind:
        return []
    culprits = {home[id(trainer)].key: home[id(trainer)].name for trainer in stall.behind}
    grade = Grade.FINE if stall.busy else Grade.BROKEN
    out: list[tuple[str, Word]] = [
        (
            key,
            word(
                grade, f"keeps {len(set(_keys(members))) - len(culprits)} other hosts: {stall.text}"
            ),
        )
        for key in culprits
    ]
    behind = stall.behind[0]
    waits = f"waits for {name_of(behind)} on {home[id(behind)].name}"
    waiting = dict.fromkeys(key for key in _keys(members) if key not in culprits)
    return out + [
        (key, word(Grade.FINE if stall.busy else Grade.STALLED, waits)) for key in waiting
    ]


def _keys(members: Sequence[Member]) -> list[str]:
    return [host.key for host, _ in members]
