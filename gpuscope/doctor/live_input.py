"""Judge input that is too slow, and count the loader workers that the CPU cores can run.

A share of a step that is measured on the device proves that the device waits for input. A training
thread that waits proves nothing: meanwhile the GPU may still work through kernels that were
launched before.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model.device_trainings import STARVED, busy_meanwhile, starving_warns, works_through
from ..model.ranks import name_of
from ..model.stalls import find_stall
from ..model.step_time import input_share, input_wait
from ..store.view import JobView, TrainerView
from ..text.units import duration_text, percent_text
from . import effects
from .finding import Abstained, Confidence, Evidence, Fix
from .live_scene import WORDINGS, Findings, LiveScene, living, place, warmed_up

MOST_WORKERS = 8
"""At most this many workers are advised per rank; more use memory and seldom help."""


def steady_ranks(job: JobView) -> list[TrainerView]:
    """Returns the ranks with steady times: they are warmed up, and their job is not stalled."""
    ranks = living(job)
    return (
        []
        if not ranks or find_stall(ranks) is not None
        else [trainer for trainer in ranks if warmed_up(trainer)]
    )


def waits_for_input(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding where the device waits for the loader."""
    found: list[tuple[_Wait, TrainerView]] = []
    for trainer in steady_ranks(job):
        waiting = _waiting(scene, trainer)
        if isinstance(waiting, Abstained):
            yield waiting
        elif waiting is not None:
            found.append((waiting, trainer))
    if not found:
        return
    wait, trainer = max(found, key=lambda one: one[0].share)
    share, evidence = wait.share, list(wait.evidence)
    if len(found) > 1:
        names = ", ".join(f"{name_of(of)} {percent_text(one.share)}" for one, of in found[:8])
        evidence.append(Evidence(text=f"input wait: {names}", source="probe"))
    _, step = input_wait(trainer)
    seconds = (step * (1 - wait.won), step) if step else None
    fixes, room = workers_fixes(scene, job, trainer, seconds)
    if room is not None:
        evidence.append(room)
    who = name_of(trainer)
    one = WORDINGS.finding(
        "live.input_bound",
        {"who": who[:1].upper() + who[1:], "share": percent_text(share)},
        fixes,
        severity="warning" if starving_warns(scene.host, trainer, share, scene.history) else "info",
        confidence=wait.confidence,
        evidence=tuple(evidence),
        where=place(scene, trainer),
        rank=share,
    )
    what = "the input wait" if wait.won == share else "the time in which no kernel runs"
    yield effects.of_share(one, wait.won, what)


@dataclass(frozen=True, slots=True)
class _Wait:
    """For what ``share`` of a step a trainer waits for input, and ``won``: what its cure brings."""

    share: float
    won: float
    confidence: Confidence
    evidence: tuple[Evidence, ...]


def _waiting(scene: LiveScene, trainer: TrainerView) -> _Wait | Abstained | None:
    """Return how the device waits for input.

    The result is None where the device does not wait, and an abstention if that is not known.
    """
    share = input_share(trainer)
    if share is None or share < STARVED:
        return None
    if trainer.number("input_seconds") is not None:
        text = f"the device waits for the loader {percent_text(share)} of a step, as measured"
        return _Wait(share, share, "definite", (Evidence(text=text, source="probe"),))
    text = f"the training thread waits for the loader {percent_text(share)} of a step"
    waits = Evidence(text=text, source="probe")
    if not trainer.definition.cuda:
        return _Wait(share, share, "definite", (waits,))
    busy = busy_meanwhile(scene.host, trainer, scene.history)
    too_busy = busy is not None and works_through(busy.percent, share)
    if busy is None or (too_busy and not busy.by_sms):
        return WORDINGS.abstained("input")
    if too_busy:
        return None  # the GPU meanwhile executes kernels that were launched before
    what = "the SMs are active" if busy.by_sms else "any kernel runs"
    works = Evidence(text=f"meanwhile {what} {busy.percent:.0f} % of the time", source="nvml")
    # A wait during which a kernel runs wins nothing.
    return _Wait(share, min(share, 1 - busy.percent / 100), "likely", (waits, works))


# ── how many workers ──


def workers_fixes(
    scene: LiveScene, job: JobView, trainer: TrainerView, seconds: tuple[float, float] | None = None
) -> tuple[list[Fix], Evidence | None]:
    """Return fixes that set the number of workers by the free CPU cores, and the reason.

    Where no cores are free, cheaper preprocessing comes first. ``seconds`` are the shortest
    possible step time without waiting for input, and the present step time; the first fix shows
    them.
    """
    best, now = map(duration_text, seconds) if seconds is not None else (None, None)
    gain: dict[str, str | None] = {"best": best, "now": now}
    cores, busy = usable_cores(scene, job, trainer), scene.mean(scene.host, "cpu_percent")
    total = scene.host.definition.cpu_count
    idle = total * (1 - busy / 100) if total and busy is not None else None
    if cores is None or idle is None:
        return _workers("N", trainer, gain), None
    room = min(cores, idle)
    number = max(1, min(MOST_WORKERS, int(room)))
    text = (
        f"{percent_text(busy / 100)} of the host's {total} cores are busy"
        if busy is not None
        else ""
    )
    if cores < (total or 0):
        text += f", and {name_of(trainer)} may use {cores:.3g} of them"
    if room < 1:
        text += (
            ": workers have less than one core to themselves, they help only where they wait "
            "for storage"
        )
        augment = ", augment on the GPU" if trainer.definition.cuda else ""
        fixes = WORDINGS.fixes(["cheaper-preparation"], {**gain, "augment": augment}) + _workers(
            str(number), trainer, dict.fromkeys(gain)
        )
        return fixes, Evidence(text=text, source="host")
    return _workers(str(number), trainer, gain), Evidence(
        text=f"{text}: there is room for workers", source="host"
    )


def usable_cores(scene: LiveScene, job: JobView, trainer: TrainerView) -> float | None:
    """Return how many CPU cores one rank may use; None where that is unknown.

    Its CPU affinity and its cgroup limit the number. The ranks of a job share the cores where there
    are fewer cores than their limits add up to.
    """
    total = scene.host.definition.cpu_count
    own = trainer.definition.cores or total
    if not own:
        return None
    ranks = max(1, len(living(job)))
    return own if own * ranks <= (total or own) else own / ranks


def _workers(number: str, trainer: TrainerView, gain: dict[str, str | None]) -> list[Fix]:
    pinned = ", pin_memory=True" if trainer.definition.cuda else ""
    figures = {"workers": number, "pinned": pinned, **gain}
    return WORDINGS.fixes(["one-worker" if number == "1" else "workers"], figures)
