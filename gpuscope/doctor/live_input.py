"""Judge input that is too slow, and count the loader workers that the CPU cores can run.

A share of a step that is measured on the device proves that the device waits for input. A training
thread that waits proves nothing: meanwhile the GPU may still work through kernels that were
launched before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..model.device_trainings import (
    STARVED,
    busy_meanwhile,
    is_measured,
    starving_warns,
    works_through,
)
from ..model.input_cure import MOST_WORKERS, Waiting, WorkerRoom, is_hopeless, worker_room
from ..model.loader_line import LoaderLine
from ..model.ranks import name_of, subject_of
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
        evidence.append(Evidence(f"input wait: {names}", "probe"))
    waited, step = input_wait(trainer)
    lost = Waiting(step, step * wait.won, max(step * wait.won, waited or 0.0)) if step else None
    cure = cure_of(scene, trainer, share, lost)
    one = WORDINGS.finding(
        "live.input_bound",
        {
            "who": subject_of(trainer, first=True),
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
    yield effects.of_share(one, cure.won(wait.won), f"all of {what}", cure.by)


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
    waits = Evidence(text, "probe")
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
    return Evidence(text, "probe")


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
        return OnDevice(None, evidence=(Evidence(f"not known: {unknown}"),))
    what = "the SMs are active" if busy.by_sms else "any kernel runs"
    works = Evidence(f"meanwhile {what} {busy.percent:.0f} % of the time", "nvml")
    return OnDevice(not too_busy, 1 - busy.percent / 100, (works,))


# ── what to do about it ──


@dataclass(frozen=True, slots=True)
class Cure:
    """How grave a wait for input is, its fixes, and what they rest on."""

    severity: Severity
    fixes: list[Fix]
    evidence: tuple[Evidence, ...]
    saved: float | None = None
    by: str = ""

    def won(self, share: float) -> float:
        """Return what share of the time the first fix saves at most, of ``share`` that is lost."""
        return share if self.saved is None else min(share, self.saved)


def cure_of(
    scene: LiveScene, trainer: TrainerView, share: float, waiting: Waiting | None = None
) -> Cure:
    """Return what to do where a trainer waits for its input for a share of its time.

    ``waiting`` says how much of a step that is, None where it is unknown.
    """
    room = worker_room(scene.host, trainer, scene.history, waiting)
    fixes, reason = _fixes(scene, trainer, room, waiting)
    warns = starving_warns(scene.host, trainer, share, scene.history)
    saved, by = _saved(room, waiting)
    return Cure("warning" if warns else "info", fixes, reason, saved, by)


def workers_fixes(scene: LiveScene, trainer: TrainerView) -> list[Fix]:
    """Return fixes that set the number of workers by what loading does and by the CPU cores."""
    return _fixes(scene, trainer, worker_room(scene.host, trainer, scene.history), None)[0]


def _cheaper_first(room: WorkerRoom, waiting: Waiting | None) -> bool:
    """Return whether cheaper preprocessing brings more than workers, as far as is known."""
    if (room.enough and room.loader is not None) or room.is_full:
        return True
    if room.needs is None or room.waits or waiting is None:
        return False
    return waiting.best(room.number, room.has) > waiting.with_half_the_loading(room.has)


def _saved(room: WorkerRoom, waiting: Waiting | None) -> tuple[float | None, str]:
    """Return what share of a step the first fix saves, and what it does; None where unknown."""
    if waiting is None:
        return None, ""
    if _cheaper_first(room, waiting):
        saved = 1 - waiting.with_half_the_loading(room.has) / waiting.step
        return saved, "with half the loading time"
    number = room.number if room.cores is not None or room.waits else MOST_WORKERS
    saved = 1 - waiting.best(number, room.has) / waiting.step
    return saved, f"with {count_text(number, 'worker')}"


def _fixes(
    scene: LiveScene, trainer: TrainerView, room: WorkerRoom, waiting: Waiting | None
) -> tuple[list[Fix], tuple[Evidence, ...]]:
    """Return the fixes and the reasons for them.

    Cheaper preprocessing comes first where more workers are not sure to help.
    """
    augment = ", augment on the GPU" if trainer.definition.cuda else ""
    cheaper: dict[str, str | None] = {"augment": augment, "half": None, "now": None}
    number = room.number if room.cores is not None or room.waits else None
    gain: dict[str, str | None] = {"best": None, "now": None}
    if waiting is not None:
        now = duration_text(waiting.step)
        half = duration_text(waiting.with_half_the_loading(room.has))
        cheaper |= {"half": half, "now": now}
        best = duration_text(waiting.best(number or MOST_WORKERS, room.has))
        gain = {"best": best, "now": now}
    reasons = [*_of_loading(room), *_of_cores(scene, trainer, room)]
    preparation = WORDINGS.fixes(["cheaper-preparation"], cheaper)
    if room.enough and room.loader is not None:
        return preparation, tuple(reasons)
    workers = _workers(number, trainer, room.loader, dict.fromkeys(gain) if room.is_full else gain)
    if _cheaper_first(room, waiting):
        return [*preparation, *workers], tuple(reasons)
    unsure = room.cores is not None and room.needs is None and room.free < 1
    return [*workers, *(preparation if unsure else [])], tuple(reasons)


def _of_loading(room: WorkerRoom) -> Iterator[Evidence]:
    """Yield what loading does, where the probe has measured it."""
    if room.needs is None:
        return
    who = "each worker" if room.has else "loading"
    does = f"{who} needs {percent_text(room.needs)} of a core"
    does += " while it loads" if room.has else ""
    means = (
        "it mostly waits itself (disk, network), so more workers help even without a free core"
        if room.waits
        else "it computes, so each worker needs a core"
    )
    yield Evidence(f"{does}: {means}", "probe")


def _of_cores(scene: LiveScene, trainer: TrainerView, room: WorkerRoom) -> Iterator[Evidence]:
    """Yield how many workers the cores can run."""
    cores, busy, loader = room.cores, room.busy_percent, room.loader
    total = scene.host.definition.cpu_count
    if cores is None:
        return
    parts = [f"the host has {total} cores" if total else f"it may use {cores:.3g} cores"]
    if busy is not None:
        parts = [f"the host's {total} cores are {percent_text(busy / 100)} busy"]
    if total and cores < total:
        parts.append(f"{subject_of(trainer)} may use {cores:.3g} of them")
    text = ", and ".join(parts)
    if room.enough and loader is not None:
        text = f"{loader.place} has {count_text(room.has or 0, 'worker')} already, and {text}"
        hopeless = is_hopeless(scene.host, trainer, scene.history)
        text += ": more workers would not help" if hopeless else ""
    elif not total or busy is None:
        yield Evidence(f"{text}; how busy they are is not known yet")
        return
    elif room.waits and room.number > cores:
        text += "; torch's warning about more workers than cores does not apply: this loader waits"
    elif room.free >= 1:
        text += ": there is room for workers"
    elif room.is_full:
        text += ": a worker would take its core from the training and from others"
    elif not room.waits:
        text += ": each worker would have less than one core, so more of them help only if "
        text += "loading waits (disk, network) instead of computing"
    yield Evidence(text, "host")


def _workers(
    number: int | None, trainer: TrainerView, loader: LoaderLine | None, gain: dict[str, str | None]
) -> list[Fix]:
    """Return the fix with the script's own line, where that could be read."""
    pinned = trainer.definition.cuda
    figures = {"workers": number or "N", "pinned": ", pin_memory=True" if pinned else "", **gain}
    row = "one-worker" if number == 1 else "workers"
    if trainer.definition.framework == "transformers":
        row = "workers-of-transformers"
    fixes = WORDINGS.fixes([row], figures)
    if loader is None or number is None:
        return fixes
    code = loader.with_workers(number, pinned)
    return [replace(one, code=code, before=loader.code, example=False) for one in fixes]
