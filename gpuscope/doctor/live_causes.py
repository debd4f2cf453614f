"""Turn what makes a training slow into findings: one ranked list for the doctor and ``why``.

``model.time_causes`` has the figures. Here each cause gets its title, its evidence with the source,
and its fix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from ..model.device_trainings import is_measured
from ..model.input_cure import Waiting
from ..model.late_rank import LateRank, late_rank
from ..model.look import Look
from ..model.rank_times import evened_out
from ..model.ranks import name_of, subject_of
from ..model.stalls import find_stall
from ..model.time_cause import BARS, PAUSES, SETTINGS, Cause, Known
from ..model.time_causes import ranked
from ..model.time_ledger import Row, TimeLedger, recent
from ..model.time_sentence import step_left
from ..store.view import DeviceView, JobView, TrainerView
from ..text.process_name import short_place
from ..text.units import count_text, duration_text, percent_text, window_text
from ..wire.clean import clean
from ..wire.code_owner import is_own
from . import look_evidence
from .finding import Confidence, Effect, Evidence, Finding, Fix, Severity
from .live_input import OnDevice, cure_of, on_device
from .live_scene import MIN_STEPS, WORDINGS, Findings, LiveScene, living, place
from .live_states import FASTER

NEARLY = 0.005
"""A fix that wins so little less than the others' pace would brings a rank to that pace."""
MIN_LOOKS = 50
"""Ten seconds of samples; with fewer, a single pause could make up the share."""
TENSOR_CORES_SINCE = 8.0
"""Compute capability from which on tensor cores multiply float32 (as TF32) and bf16."""
FINDINGS: Mapping[str, tuple[str, Confidence]] = {
    "input": ("live.input_bound", "likely"),
    "compile": ("live.recompiles", "likely"),
    "checkpoint": ("live.checkpoint_pause", "likely"),
    "validation": ("live.validation_pause", "likely"),
    "logging": ("live.logging", "likely"),
    "collection": ("live.garbage_collection", "likely"),
    "other": ("live.other_code", "likely"),
    "release": ("live.releases_memory", "likely"),
    "profiler": ("live.profiler", "definite"),
    "read": ("look.reads", "definite"),
    "copies-out": ("look.copies_out", "definite"),
    "copies-in": ("look.copies_in", "definite"),
    "allocate": ("look.allocates", "definite"),
    "launch": ("look.launches", "likely"),
    "products-plain": ("look.products_plain", "definite"),
    "products-double": ("look.products_double", "definite"),
    "optimizer-on-host": ("live.optimizer_on_host", "definite"),
    **dict.fromkeys(SETTINGS, ("live.debug_setting", "definite")),
    "anomaly-detection": ("live.debug_setting.anomaly", "definite"),
}
BY_THE_CLOCK = {"read": "live.reads", "copies-in": "live.copies"}
"""The findings of causes where nobody has looked at the GPU."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A cause of slow steps with its finding."""

    cause: Cause
    finding: Finding

    @property
    def warns(self) -> bool:
        return self.finding.severity != "info"


def rows(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding for each cause in a job that is worth curing, none while the job hangs.

    If several ranks have the cause, the finding is about the one that loses most.
    """
    if find_stall(job.trainers) is not None:
        return  # its last minutes are of the hang, which is no habit of its steps
    best: dict[str, Finding] = {}
    late = late_rank(living(job), scene.history, scene.host)
    for trainer in living(job):
        for one in of_ledger(scene, trainer, recent(trainer), late):
            found = one.finding
            if is_of_late_rank(one):
                continue  # the finding on that rank tells it
            if found.cause not in best or found.rank > best[found.cause].rank:
                best[found.cause] = found
    yield from best.values()


def of_ledger(
    scene: LiveScene,
    trainer: TrainerView,
    ledger: TimeLedger,
    late: LateRank | None = None,
) -> list[Judged]:
    """Return what makes a trainer slow, what brings most first.

    Rows that a GPU works beside cost no more than it was idle, where that is known. ``late`` is the
    rank of its job that the others wait for: where that is this one, curing what it does longer
    than they wins no more than their wait. Where it is another one, a cure wins what that rank
    does of it too, and what it does not do is left out: this rank would only wait longer for it.
    """
    look = scene.look(trainer)
    mine = late if late is not None and late.trainer.key == trainer.key else None
    odd, most = (mine.odd, mine.share) if mine is not None else (None, 1.0)
    causes = evened_out(ranked(ledger, look, known(scene, trainer, ledger, look)), odd, most)
    wins = _on_all_ranks(scene, trainer, late)
    judged = (
        _judged(scene, trainer, ledger, look, cause, most)
        for cause in causes
        if (most := wins(cause)) >= BARS[cause.name].told
    )
    return sorted((one for one in judged if one is not None), key=lambda one: -one.cause.share)


def _on_all_ranks(
    scene: LiveScene, trainer: TrainerView, late: LateRank | None
) -> Callable[[Cause], float]:
    """Return what share of a step the cure of a cause on all ranks wins at most, where this waits.

    That is no more than what the late rank spends on it besides what it is late by.
    """
    if late is None or late.paced is not None or late.trainer.key == trainer.key:
        return lambda cause: 1.0
    left, odd, ledger = 1 - late.share, late.odd, recent(late.trainer)
    look = scene.look(late.trainer)
    theirs = {}
    for one in ranked(ledger, look, known(scene, late.trainer, ledger, look)):
        is_odd = odd is not None and one.clock is not None and one.clock.name == odd.row.name
        theirs[one.name] = one.share - (odd.excess_share if odd is not None and is_odd else 0.0)

    def most(cause: Cause) -> float:
        if look is None and (cause.row is not None or not ledger.sure):
            return left  # nobody has looked at that one
        return max(0.0, min(left, theirs.get(cause.name, 0.0)))

    return most


def _judged(
    scene: LiveScene,
    trainer: TrainerView,
    ledger: TimeLedger,
    look: Look | None,
    cause: Cause,
    most: float,
) -> Judged | None:
    """Return a cause with its finding, None for a wait for input while the GPU works on.

    Where no look has bounded it, such a wait costs no more than the GPU is idle.
    """
    device = None
    if cause.name == "input" and look is None:
        device = on_device(scene, trainer, cause.share)
        if device.waits is False and not is_measured(trainer):
            return None
        cause = replace(
            cause,
            share=min(cause.share, device.idle),
            low=min(cause.low, device.idle),
            high=min(cause.high, device.idle),
        )
    return _found(scene, trainer, ledger, look, cause, device, most)


def is_of_late_rank(one: Judged) -> bool:
    """Tell whether a cause is what the late rank of a job does while the other ranks wait.

    That is a wait for input or other code. Any other cause has a cure of its own.
    """
    return one.cause.name in ("input", "other") and one.cause.usual_share is not None


def known(
    scene: LiveScene,
    trainer: TrainerView,
    ledger: TimeLedger,
    look: Look | None,
) -> Known:
    """Return what is known of a trainer apart from its clock and the look at its device."""
    devices = scene.devices(trainer)
    return Known(
        facts=trainer.minutes[-1] if trainer.minutes else None,
        cost_seconds=_cost(scene, ledger, look),
        faster=_faster(devices[0] if devices else None),
        idle=_idle(scene, trainer) if look is None else None,
        median_step_seconds=trainer.number("step_seconds"),
        on_gpu=trainer.definition.cuda,
    )


def _cost(scene: LiveScene, ledger: TimeLedger, look: Look | None) -> float:
    """Return what the look has cost in the window of the clock."""
    if look is None:
        return 0.0
    age = look.age_seconds(scene.host.wall_seconds)
    if age is not None and age > ledger.seconds:
        return 0.0
    return max(look.lost_seconds or 0.0, look.stood_seconds)


def _idle(scene: LiveScene, trainer: TrainerView) -> float | None:
    """Return for what share of the time no kernel ran, None where that is not known."""
    devices, job = scene.devices(trainer), scene.host.job_of(trainer)
    if not trainer.definition.cuda or not devices:
        return None
    if job is None or scene.others(devices[0], job):
        return None
    load = scene.mean_of_job(trainer, devices[0], "utilization_percent")
    return None if load is None else 1 - load / 100


def _faster(device: DeviceView | None) -> float | None:
    """Return how many times as fast tensor cores multiply; without a data sheet no bound at all."""
    capability = device.definition.compute_capability if device is not None else None
    try:
        if capability and float(capability) < TENSOR_CORES_SINCE:
            return None
    except ValueError:
        return inf
    sheet = FASTER.get(capability or "")
    return inf if sheet is None else float(sheet[1])


def fix_of(one: Finding) -> Fix | None:
    """Return the first way out of a cause."""
    from . import table

    return next(iter(one.fixes or table.load()[one.pitfall].fixes_for(one.cause)), None)


# ── in words ──


def _found(
    scene: LiveScene,
    trainer: TrainerView,
    ledger: TimeLedger,
    look: Look | None,
    cause: Cause,
    device: OnDevice | None,
    most: float,
) -> Judged:
    name, confidence = FINDINGS[cause.name]
    if look is None:
        name = BY_THE_CLOCK.get(cause.name, name)
    if cause.name == "collection" and _is_called(cause):
        name += ".called"
    what = cause.words
    evidence = list(_evidence(scene, trainer, ledger, look, cause))
    if (
        cause.name == "launch"
        and look is not None
        and look_evidence.is_small_batch(scene, trainer, look, cause)
    ):
        name = "look.small_batch"
        what += ", for as many samples"
    step = ledger.step_seconds if ledger.sure else look.step_seconds if look else None
    window, share = window_text(round(ledger.seconds)), percent_text(cause.share)
    if cause.usual_share is not None:  # its row has the share of all of it
        window, share = f"{window} than on the other ranks", f"{share} more"
    figures = {
        "share": share,
        "window": window,
        "of": f"the last {window}",
        "who": subject_of(trainer, first=True),
        "setting": cause.words[:1].upper() + cause.words[1:],
    }
    severity: Severity = "warning" if cause.warns and name != "look.small_batch" else "info"
    fixes = _own_fixes(ledger, cause) or _framework_fixes(trainer, name) or None
    job = scene.host.job_of(trainer)
    if cause.name == "input" and job is not None:
        thread = cause.clock.share if cause.clock is not None else 0.0
        waiting = None
        if step:
            waiting = Waiting(step, step * cause.share, step * max(thread, cause.share))
        cure = cure_of(scene, trainer, cause.share, waiting)
        won = cure.won(1.0)
        evens = cause.usual_share is not None and won >= cause.share - NEARLY
        cause = replace(cause, cured_by="" if evens else cure.by, cured_share=won)
        fixes = cure.fixes
        severity = cure.severity if cause.usual_share is None else severity
        evidence += cure.evidence
        if device is not None and cause.usual_share is None:
            evidence += device.evidence
            severity = severity if device.waits else "info"
            confidence = "definite" if is_measured(trainer) and device.waits else confidence
    if most < 1:  # another rank is waited for, and has to be cured of it too
        by, won = f"{cause.cured_by or 'cured'} on all ranks", min(cause.cured_share, most)
        cause = replace(cause, cured_by=by, cured_share=won)
        severity = severity if cause.saves >= BARS[cause.name].warned else "info"
    if not _is_sure(ledger, cause):
        severity = "info"
    finding = WORDINGS.finding(
        name,
        figures,
        fixes,
        severity=severity,
        confidence=confidence,
        evidence=tuple(evidence),
        where=place(scene, trainer),
        rank=cause.share,
        effect=gain(
            cause.saves,
            (min(cause.low, cause.cured_share), min(cause.high, cause.cured_share)),
            step,
            _what_a_cure_wins(cause, what),
            cause.cured_by,
        ),
    )
    return Judged(cause, finding)


def _is_called(cause: Cause) -> bool:
    """Return whether the script itself calls for most of the collections."""
    clock = cause.clock
    return clock is not None and 2 * sum(spent for _, spent in clock.places) >= clock.seconds


def _is_sure(ledger: TimeLedger, cause: Cause) -> bool:
    """Return whether enough was seen of a cause for a warning."""
    timed = cause.clock is not None and cause.clock.timed
    enough = timed or ledger.looks >= MIN_LOOKS
    return cause.by == "look" or (enough and ledger.steps >= MIN_STEPS)


def is_calm(judged: Sequence[Judged], ledger: TimeLedger) -> bool:
    """Return whether there is nothing to warn of, and enough was seen to say so."""
    seen = ledger.looks >= MIN_LOOKS and ledger.steps >= MIN_STEPS
    return seen and not any(one.warns for one in judged)


def _own_fixes(ledger: TimeLedger, cause: Cause) -> list[Fix]:
    """Return the fixes of own code where its line is known: first to look at that line."""
    from . import table

    name = FINDINGS[cause.name][0]
    first = own_line(cause.clock, ledger)
    return [*first, *table.load()[WORDINGS.findings[name].pitfall].fixes_for(name)] if first else []


def own_line(row: Row | None, ledger: TimeLedger) -> list[Fix]:
    """Return the advice to look at the line of own code that takes most, where it is known."""
    if row is None or row.name != "other" or not row.places or not ledger.seconds:
        return []
    line, spent = row.places[0]
    part = percent_text(spent / ledger.seconds)
    figures = {"line": short_place(clean(line, 160)), "part": part}
    return WORDINGS.fixes(["own-line"], figures)


def _framework_fixes(trainer: TrainerView, name: str) -> list[Fix]:
    """Return the options of the framework that runs the loop, for the finding with this name."""
    from . import table

    framework = trainer.definition.framework or ""
    fixes = table.load()[WORDINGS.findings[name].pitfall].fixes_for(name, framework)
    return [fix for fix in fixes if fix.framework]


def _what_a_cure_wins(cause: Cause, what: str) -> str:
    if cause.usual_share is None or cause.usual_share < NEARLY:
        return f"all of {what}"
    return f"all of {what} beyond the {percent_text(cause.usual_share)} of the other ranks"


def at_line(line: str, spent: float, ledger: TimeLedger) -> Evidence:
    """Return how much of its time a training spends at a line."""
    text = f"{percent_text(spent / ledger.seconds)} of the time at {line}"
    return Evidence(text, "stack", in_ledger=True)


def _evidence(
    scene: LiveScene, trainer: TrainerView, ledger: TimeLedger, look: Look | None, cause: Cause
) -> Iterator[Evidence]:
    clock, row = cause.clock, cause.row
    if cause.name in SETTINGS:
        yield Evidence(f"{cause.words} is on in the trainer", "probe")
    if cause.name == "optimizer-on-host":
        text = "the optimizer's weights are in host memory, and CUDA is in use"
        yield Evidence(text, "probe")
    if look is not None and row is not None:
        yield look_evidence.told(scene, trainer, look, row)
        if cause.place:
            text = f"most of it at {clean(cause.place, 160)}"
            yield Evidence(text, "stack")
        yield from look_evidence.of_cause(scene, trainer, look, cause)
    if cause.late >= 0.01:
        text = f"{percent_text(cause.late)} of the time launches come late after it"
        yield Evidence(text, "GPU trace")
    if clock is not None and clock.seconds:
        yield Evidence(_share_text(trainer, ledger, cause), "probe", in_ledger=True)
        for line, spent in clock.places[:3]:
            if spent >= 0.01 * ledger.seconds:
                yield at_line(line, spent, ledger)
        if cause.name == "other" and cause.usual_share is None and cause.share > clock.share:
            more = percent_text(cause.share - clock.share)
            text = f"{more} more in syncs such as .item() and copies of the same functions"
            yield Evidence(text, "stack")
    median, step = trainer.number("step_seconds"), ledger.step_seconds
    if cause.name in PAUSES and clock is not None and cause.share != clock.share and median:
        text = f"half of the last steps took {duration_text(median)} or less"
        text += f", a step takes {duration_text(step)} on average" if step else ""
        yield Evidence(text, "probe")
    if (look is None and cause.name in BY_THE_CLOCK) or cause.name in ("logging", "other"):
        yield from _while_idle(scene, trainer, look)
    if cause.name == "compile":
        yield from _recompiled(trainer)


def _while_idle(scene: LiveScene, trainer: TrainerView, look: Look | None) -> Iterator[Evidence]:
    if look is not None:
        idle = percent_text(1 - look.busy_share)
        text = f"the GPU ran neither kernels nor copies for {idle} of the traced steps"
        yield Evidence(text, "GPU trace")
        return
    devices = scene.devices(trainer)
    load = scene.mean_of_job(trainer, devices[0], "utilization_percent") if devices else None
    if load is not None:
        card, idle = devices[0].definition.index, percent_text(1 - load / 100)
        text = f"GPU {card} ran no kernel for {idle} of the time"
        yield Evidence(text, "nvml")


def _recompiled(trainer: TrainerView) -> Iterator[Evidence]:
    last = trainer.minutes[-1] if trainer.minutes else {}
    count, guard = last.get("recompiles"), last.get("guard")
    if not isinstance(count, int):
        return
    at = str(last.get("compiled_at") or "")
    text = f"compiled again {count} times in the last minutes"
    text += f": {at}" if is_own(at.rpartition(":")[0]) else ""
    yield Evidence(text, "dynamo")
    if isinstance(guard, str) and guard:
        yield Evidence(f"the guard that failed last: {guard}", "dynamo")


def _share_text(trainer: TrainerView, ledger: TimeLedger, cause: Cause) -> str:
    clock = cause.clock
    assert clock is not None
    who = f"{name_of(trainer)}: " if trainer.definition.rank is not None else ""
    return (
        f"{who}{duration_text(clock.seconds)} of the last {window_text(round(ledger.seconds))} "
        f"({count_text(ledger.steps, 'step')}) went into {clock.words}: {percent_text(clock.share)}"
    )


def gain(
    share: float,
    between: tuple[float, float],
    step_seconds: float | None,
    what: str,
    by: str = "",
) -> Effect | None:
    """Return what winning back a share of the wall clock brings at most, with its interval.

    ``what`` is all that is won; a fix that wins only a part of that says ``by`` which means.
    """
    if not 0 < share <= 1:
        return None
    low, high = between
    least, most = percent_text(low), percent_text(high)
    sure = f"{least} to {most}" if least != most else ""
    then = step_left(step_seconds, share) if step_seconds else ""
    now = duration_text(step_seconds) if step_seconds else ""
    if then and by:
        less = f"{percent_text(share)} less" + (f", {sure}" if sure else "")
        best = then.removesuffix(" or more")
        text = f"{by} at best {best} a step instead of {now} on average ({less})"
    else:
        sure = f" ({sure})" if sure else ""
        text = f"saves at most {percent_text(share)} of the wall clock{sure}, which is {what}"
        text += f": a step then takes {then} instead of {now}, pauses included" if then else ""
    known_bounds = high > low
    return Effect(
        text=text,
        bound="at most",
        saved_share=round(share, 4),
        saved_share_low=round(low, 4) if known_bounds else None,
        saved_share_high=round(high, 4) if known_bounds else None,
    )
