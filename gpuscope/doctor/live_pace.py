"""Report since when the steps of a job are slower, with what else changed at that moment."""

from __future__ import annotations

from ..model.ranks import name_of
from ..model.slowdown import Slowdown, of_trainers
from ..model.stalls import find_stall
from ..model.step_time import SPLIT_WORDS, warmed_up
from ..store.view import JobView
from ..text.units import duration_text
from ..wire.clean import clean
from . import effects
from .finding import Evidence
from .live_scene import WORDINGS, Findings, LiveScene, living, place

MUCH_SLOWER = 1.3
"""From this ratio on it is a warning where steps run on a GPU. On a CPU everything else that runs
there moves the step time too.
"""
MOST_RANKS = 64


def slower(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding where the steps take longer since a moment, of the rank that explains most.

    All ranks of a job become slower together. The one to look at is that whose own work takes
    longer, or whose GPU or host changed: the others only wait for it.
    """
    ranks = [trainer for trainer in living(job) if warmed_up(trainer)][:MOST_RANKS]
    if find_stall(living(job)) is not None:
        return
    found = [one for t in ranks if (one := of_trainers([t], scene.host, scene.history))]
    if not found:
        return
    worst = max(found, key=lambda one: one.change.ratio)
    told = max(found, key=lambda one: (len(_own(one)), one.change.ratio))
    change = worst.change
    steps = f"{duration_text(change.before)} → {duration_text(change.after)}"
    of = f" of {name_of(worst.trainer)}" if len(ranks) > 1 else ""
    evidence = [Evidence(f"median step{of}: {steps}", "probe")]
    evidence += [
        Evidence(f"at that time: {clean(one.text, 160)}", one.source) for one in told.coincidences
    ]
    if not told.coincidences:
        its = "its GPU, its host" if scene.devices(told.trainer) else "its host"
        text = f"no reading of {its} or its other processes changed at that time"
        evidence.append(Evidence(f"{text}: check the work itself, such as longer batches"))
    finding = WORDINGS.finding(
        "live.slower",
        {"times": worst.times},
        severity="warning"
        if change.ratio >= MUCH_SLOWER and scene.devices(worst.trainer)
        else "info",
        evidence=tuple(evidence),
        where=place(scene, told.trainer),
        verify=f"gpuscope why {told.trainer.definition.pid}",
        rank=1 - change.before / change.after,
    )
    yield effects.of_share(finding, finding.rank, "all of the time by which steps became longer")


def _own(one: Slowdown) -> tuple[str, ...]:
    """Return what changed for a rank, besides that it waits for others."""
    waits = SPLIT_WORDS["communication"]
    return tuple(text for text in one.then if not text.startswith(waits))
