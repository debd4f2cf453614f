"""Decide what killed a job first, from all suspects, or say what would decide it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...process import flight_settings
from ..finding import Abstained, Confidence, Evidence
from ..wordings import Wordings
from . import absent, apart, ends, partners, suspects, waiting
from .model import Job, Suspect, Verdict
from .scene import Scene, names, short

WORDINGS = Wordings("dead")
MOST_SUSPECTS = 5
EXPLAINS = 0.75
"""A suspect of at least this weight explains why others waited or were ended."""
_OF_ALL = ("dead.time-limit", "dead.stopped")
"""Causes that end all ranks, and say nothing of whether one of them hung before."""
CLOSE = 0.08
"""Suspects whose weights are this close speak against each other's certainty."""


def judge(job: Job) -> Verdict:
    """Return the suspects of a job, the likeliest first, and what would decide between them."""
    scene = Scene(job)
    found = [*suspects.find(scene), *ends.find(scene)]
    explained = any(one.weight >= EXPLAINS and one.cause not in _OF_ALL for one in found)
    found += [*apart.find(scene), *partners.find(scene)]
    found += absent.find(scene, explained)
    found = _merged(found)
    found.sort(key=lambda one: (-one.weight, one.time or float("inf"), one.ranks))
    if not found:
        well = _ended_well(scene)
        if well is not None:
            return Verdict(suspects=(well,))
        found = _unexplained(scene)
    if found:
        found[0] = _without_false_certainty(found)
    return Verdict(suspects=tuple(found[:MOST_SUSPECTS]), abstained=_abstained(scene, found))


def _unexplained(scene: Scene) -> list[Suspect]:
    """Return that ranks waited for others, if they did: nothing says for whom."""
    places = waiting.waiting_places(scene)
    evidence = [found for _, (_, _, found) in sorted(places.items())]
    for number in sorted(scene.waiting - set(places)):
        effect = next(scene.get(number).effects(), None)
        if effect is not None:
            text = f"{names([number])}: {short(effect.text)}"
            evidence.append(Evidence(text, effect.source))
    who = names(scene.waiting | set(places))
    if not evidence:
        return []
    hung = Suspect(
        cause="dead.unexplained-hang",
        ranks=(),
        confidence="likely",
        weight=0.3,
        evidence=tuple(evidence[:6]),
        figures={"who": who.capitalize()},
    )
    return [hung]


def _merged(found: Sequence[Suspect]) -> list[Suspect]:
    """Return each cause and rank once: several sources that agree make it weigh more."""
    kept: list[Suspect] = []
    for one in sorted(found, key=lambda suspect: -suspect.weight):
        same = next((k for k, other in enumerate(kept) if _agree(other, one)), None)
        if same is None:
            kept.append(one)
            continue
        first = kept[same]
        evidence = dict.fromkeys((*first.evidence, *one.evidence))
        kept[same] = replace(
            first,
            weight=min(0.97, first.weight + 0.05),
            evidence=tuple(evidence),
            where=first.where or one.where,
            time=first.time if first.time is not None else one.time,
        )
    return kept


def _agree(first: Suspect, other: Suspect) -> bool:
    if first.cause != other.cause:
        return False
    return not first.ranks or not other.ranks or first.ranks[0] in other.ranks


def _without_false_certainty(found: Sequence[Suspect]) -> Suspect:
    """Return the first suspect; it is definite only where no other comes near it."""
    first = found[0]
    rivals = [
        one
        for one in found[1:]
        if first.weight - one.weight < CLOSE
        and not (set(one.ranks) and set(one.ranks) <= set(first.ranks))
    ]
    return (
        replace(first, confidence="likely") if rivals and first.confidence == "definite" else first
    )


def _ended_well(scene: Scene) -> Suspect | None:
    """Return that nothing failed, where the ranks say that they are done."""
    done = [number for number, rank in scene.ranks.items() if rank.finished]
    failed = [n for n, rank in scene.ranks.items() if rank.exit is not None and rank.exit.code != 0]
    if failed or scene.waiting or scene.own_failures or scene.loose.failures:
        return None
    steps = {rank.step for rank in scene.ranks.values()}
    if not done and scene.loose.finished and not scene.moments_of_trouble:
        text = f"the log ends with: {short(scene.loose.last_line, 120)}"
        return _finished(text, scene.loose.finished)
    if not done:
        launched = scene.loose.has_log and not scene.loose.moments and not scene.job.moments
        if not launched or len(steps) != 1 or None in steps or len(scene.ranks) < scene.world:
            return None
        done = list(scene.ranks)
        first = scene.get(done[0])
        text = f"{names(done)} all ended after step {first.step}, and nothing says that one failed"
        return _finished(text, first.step_source)
    rank = scene.get(done[0])
    text = f"{names(done)} of {scene.world} said that they were done: {rank.last_line}"
    return _finished(text, rank.finished, 0.9, "definite" if len(done) == scene.world else "likely")


def _finished(
    text: str, source: str, weight: float = 0.5, confidence: Confidence = "likely"
) -> Suspect:
    return Suspect(
        cause="dead.finished",
        ranks=(),
        confidence=confidence,
        weight=weight,
        evidence=(Evidence(text, source),),
    )


def _was_seen_to_end(scene: Scene, suspect: Suspect) -> bool:
    return any(scene.get(number).exit is not None for number in suspect.ranks)


def _abstained(scene: Scene, found: Sequence[Suspect]) -> tuple[Abstained, ...]:
    """Return what would decide a case that these files do not decide."""
    out = []
    sure = bool(found) and found[0].confidence == "definite"
    hang = any(
        one.cause.rpartition(".")[2]
        in (
            "code-hang",
            "collective-order",
            "collective-size",
            "collective-group",
            "unexplained-hang",
            "uneven-steps",
        )
        or (one.cause == "dead.killed" and not _was_seen_to_end(scene, one))
        for one in found[:2]
    )
    if not found:
        out.append(WORDINGS.abstained("nothing"))
    if (
        (hang or not found)
        and scene.waiting
        and not sure
        and not any(r.has_flight for r in scene.ranks.values())
    ):
        out.append(WORDINGS.abstained("no-flight", settings=flight_settings.sentence()))
    if hang and not sure and not any(rank.stacks for rank in scene.ranks.values()):
        out.append(WORDINGS.abstained("no-stacks"))
    launched = scene.listed or scene.moments("closing", "forced", "agent-signal")
    if not launched and len(scene.ranks) > 1 and not sure:
        out.append(WORDINGS.abstained("no-exit-codes"))
    return tuple(out)
