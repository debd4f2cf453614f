"""Judge input that is too slow, and count the loader workers that the CPU cores can run.

A share of a step that is measured on the device proves that the device waits for input. A training
thread that waits proves nothing: meanwhile the GPU may still work through kernels that were
launched before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..model.device_trainings import (
    STARVED,
    busy_meanwhile,
    is_measured,
    starving_warns,
    works_through,
)
from ..model.input_cure import is_hopeless, worker_room
from ..model.loader_line import LoaderLine
from ..model.ranks import name_of
from ..model.stalls import find_stall
from ..model.step_time import input_share, input_wait, input_window
from ..model.time_ledger import recent
from ..store.view import JobView, TrainerView
from ..text.units import count_text, duration_text, percent_text
from . import effects
from .finding import Abstained, Confidence, Evidence, Fix, Severity
from .live_scene import WORDINGS, Findings, LiveScene, living, place, warmed_up


def steady_ranks(job: JobView) -> list[TrainerView]:
    """Returns the ranks with steady times: they are warmed up, and their job is not stalled."""
    ranks = living(job)
    return (
        []
        if not ranks or find_stall(ranks) is not None
        else [trainer for trainer in ranks if warmed_up(trainer)]
    )


def waits_for_input(scene: LiveScene, job: JobView) -> Findings:
    """Yield a finding where the device waits for the loader, by the timings of the last steps.

    Where the clock of the training thread has enough samples, it has the word (``live_causes``).
    """
    return of_ranks(scene, steady_ranks(job))


def of_ranks(scene: LiveScene, ranks: Sequence[TrainerView]) -> Findings:
    """Yield the same of these ranks of a job, which may have ended."""
    found: list[tuple[_Wait, TrainerView]] = []
    for trainer in ranks:
        waiting = _waiting(scene, trainer) if not recent(trainer).sure else None
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
    cure = cure_of(scene, trainer, share, (step * (1 - wait.won), step) if step else None)
    who = name_of(trainer)
    one = WORDINGS.finding(
        "live.input_bound",
        {
            "who": who[:1].upper() + who[1:],
            "share": percent_text(share),
            "of": input_window(trainer),
        },
        cure.fixes,
        severity=cure.severity,
        confidence=wait.confidence,
        evidence=(*evidence, *cure.evidence),
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
        return _Wait(share, share, "definite", (_as_measured(trainer, share),))
    waited = f"{percent_text(share)} of {input_window(trainer)}"
    text = f"the training thread waits for the loader {waited}"
    waits = Evidence(text=text, source="probe")
    if not trainer.definition.cuda:
        return _Wait(share, share, "definite", (waits,))
    device = on_device(scene, trainer, share)
    if device.waits is None:
        return WORDINGS.abstained("input")
    if not device.waits:
        return None
    # A wait during which a kernel runs wins nothing.
    return _Wait(share, min(share, device.idle), "likely", (waits, *device.evidence))


def _as_measured(trainer: TrainerView, share: float) -> Evidence:
    waited = f"{percent_text(share)} of {input_window(trainer)}"
    who = "the GPU" if trainer.definition.cuda else "the training"
    text = f"{who} waits for the loader {waited}, as measured"
    return Evidence(text=text, source="probe")


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Whether a GPU waits too while the training thread does: None where that is not known."""

    waits: bool | None
    idle: float = 1.0
    evidence: tuple[Evidence, ...] = ()


def on_device(scene: LiveScene, trainer: TrainerView, share: float) -> OnDevice:
    """Return whether the GPU waits for input while the thread waits for a share of the time.

    It does not where it meanwhile executes kernels that were launched before. What the device
    measured is of its last steps only, and sees no wait that comes once an epoch.
    """
    measured = input_share(trainer) if is_measured(trainer) else None
    if measured is not None and trainer.definition.cuda:
        return OnDevice(measured >= share / 2, evidence=(_as_measured(trainer, measured),))
    if not trainer.definition.cuda:
        return OnDevice(waits=True)
    busy = busy_meanwhile(scene.host, trainer, scene.history)
    too_busy = busy is not None and works_through(busy.percent, share)
    if busy is None or (too_busy and not busy.by_sms):
        unknown = WORDINGS.abstained("input").missing
        return OnDevice(None, evidence=(Evidence(text=f"not known: {unknown}"),))
    what = "the SMs are active" if busy.by_sms else "any kernel runs"
    works = Evidence(text=f"meanwhile {what} {busy.percent:.0f} % of the time", source="nvml")
    return OnDevice(not too_busy, 1 - busy.percent / 100, (works,))


# ── what to do about it ──


@dataclass(frozen=True, slots=True)
class Cure:
    """How grave a wait for input is, its fixes, and what they rest on."""

    severity: Severity
    fixes: list[Fix]
    evidence: tuple[Evidence, ...]


def cure_of(
    scene: LiveScene,
    trainer: TrainerView,
    share: float,
    seconds: tuple[float, float] | None = None,
) -> Cure:
    """Return what to do where a trainer waits for its input for a share of its time.

    ``seconds`` are the shortest possible step time without waiting for input, and the present step
    time; the first fix shows them.
    """
    fixes, room = workers_fixes(scene, trainer, seconds)
    warns = starving_warns(scene.host, trainer, share, scene.history)
    return Cure("warning" if warns else "info", fixes, () if room is None else (room,))


def workers_fixes(
    scene: LiveScene, trainer: TrainerView, seconds: tuple[float, float] | None = None
) -> tuple[list[Fix], Evidence | None]:
    """Return fixes that set the number of workers by the CPU cores, and the reason.

    Cheaper preprocessing is all that is left where the script has as many workers already.
    """
    best, now = map(duration_text, seconds) if seconds is not None else (None, None)
    gain: dict[str, str | None] = {"best": best, "now": now}
    room = worker_room(scene.host, trainer, scene.history)
    cores, busy, loader = room.cores, room.busy_percent, room.loader
    total = scene.host.definition.cpu_count
    if cores is None:
        return _workers(None, trainer, loader, gain), None
    parts = [f"the host has {total} cores" if total else f"it may use {cores:.3g} cores"]
    if busy is not None:
        parts = [f"{percent_text(busy / 100)} of the host's {total} cores are busy"]
    if total and cores < total:
        parts.append(f"{name_of(trainer)} may use {cores:.3g} of them")
    text = ", and ".join(parts)
    augment = ", augment on the GPU" if trainer.definition.cuda else ""
    cheaper = {"augment": augment}
    if room.enough and loader is not None:
        has = f"{loader.place} has {count_text(loader.workers or 0, 'worker')} already, and {text}"
        hopeless = is_hopeless(scene.host, trainer, scene.history)
        has += ": more workers would not help" if hopeless else ""
        fixes = WORDINGS.fixes(["cheaper-preparation"], {**gain, **cheaper})
        return fixes, Evidence(text=has, source="host")
    fixes = _workers(room.number, trainer, loader, gain)
    if not total or busy is None:
        return fixes, Evidence(text=f"{text}; how busy they are is not known yet")
    if room.free >= 1:
        return fixes, Evidence(text=f"{text}: there is room for workers", source="host")
    text += ": each worker would have less than one core, so more of them help only where they "
    text += "wait for storage"
    fixes += WORDINGS.fixes(["cheaper-preparation"], {**cheaper, **dict.fromkeys(gain)})
    return fixes, Evidence(text=text, source="host")


def _workers(
    number: int | None, trainer: TrainerView, loader: LoaderLine | None, gain: dict[str, str | None]
) -> list[Fix]:
    """Return the fix with the script's own line, where that could be read."""
    pinned = trainer.definition.cuda
    figures = {"workers": number or "N", "pinned": ", pin_memory=True" if pinned else "", **gain}
    fixes = WORDINGS.fixes(["one-worker" if number == 1 else "workers"], figures)
    if loader is None or number is None:
        return fixes
    code = loader.with_workers(number, pinned)
    return [replace(one, code=code, before=loader.code, example=False) for one in fixes]
