"""Judge what keeps the training thread from its steps, by the rows of the time ledger.

Shares are of the wall clock: a median of step times does not see a pause in one step of ten. What a
cure brings at most is the row itself, within the interval that its number of looks allows; rows
never share a moment. Reading values from tensors, logging and other code are bounded further: the
device has its work to do meanwhile, and no more can be won than it was idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..model.ranks import name_of
from ..model.time_ledger import Row, TimeLedger, interval, of_trainer
from ..store.view import JobView, TrainerView
from ..text.units import duration_text, percent_text
from .finding import Effect, Evidence, Finding
from .live_scene import MIN_STEPS, WORDINGS, Findings, LiveScene, living, place

WINDOW_SECONDS = 300.0
"""The window to judge: pauses come every few minutes, and older ones may be over."""


@dataclass(frozen=True, slots=True)
class Bar:
    """From which share of the wall clock a row is a finding, and from which a warning."""

    told: float
    warned: float


PAUSES: Mapping[str, tuple[str, Bar]] = {
    "checkpoint": ("live.checkpoint_pause", Bar(0.05, 0.10)),
    "validation": ("live.validation_pause", Bar(0.20, 0.40)),
    "collection": ("live.garbage_collection", Bar(0.02, 0.05)),
}
"""The finding and the limits for each kind of pause.

A checkpoint that another thread writes costs only the copy, a few percent at most. Validation is
wanted, and up to a fifth of the time is common. The garbage collector finds little to free in a
training, because reference counts free the tensors.
"""
BESIDE: Mapping[str, tuple[str, Bar]] = {
    "read": ("live.reads", Bar(0.10, 0.30)),
    "logging": ("live.logging", Bar(0.05, 0.20)),
    "other": ("live.other_code", Bar(0.20, 0.50)),
}
"""What a device works beside, where it has something to do. Code of the script is a part of many
loops, as what makes a batch on the device: up to a fifth of the time it is not told of.
"""
RECOMPILES, MANY_RECOMPILES = Bar(0.05, 0.20), 4
SYNCS = Bar(0.0, 0.10)
LOW_SHARE = 0.5
"""Of its bar a row must reach so much by the lower end of its interval too."""
WAITING = ("input", "compile", "checkpoint", "validation", "collection")
"""Rows in which a device has nothing to do, whatever else the thread does."""
MIN_LOOKS = 50
"""Ten seconds of samples; with fewer, a single pause could make up the share."""


def pauses(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding for each kind of pause that takes much of the wall clock.

    Of several ranks, the one that pauses longest is reported, because the others wait for it.
    """
    ledgers = _ledgers(job)
    for name, (cause, bar) in PAUSES.items():
        found = [
            (row, one, one_ledger)
            for one, one_ledger in ledgers
            if (row := _row(one_ledger, name)) is not None
        ]
        if not found:
            continue
        row, trainer, ledger = max(found, key=lambda one: one[0].share)
        compiling = _row(ledger, "compile")
        if name == "collection" and compiling is not None and compiling.share > row.share:
            continue  # the compiler creates the objects that are collected
        if reaches(row.share, row.low, bar):
            yield _finding(scene, trainer, ledger, row, cause, bar, (row.low, row.high))


def beside_the_device(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding for what holds the training thread while the device is idle.

    That is reading values of tensors, logging, and other code of the script. Of several ranks it is
    told of the one that loses most.
    """
    ledgers = _ledgers(job)
    for name, (cause, bar) in BESIDE.items():
        best: tuple[float, TrainerView, TimeLedger, Row, list[Evidence]] | None = None
        for trainer, ledger in ledgers:
            row = _row(ledger, name)
            if row is None or (name == "other" and not row.places):
                continue
            bounded = _while_idle(scene, job, trainer, ledger, row)
            if bounded is not None and (best is None or bounded[0] > best[0]):
                best = bounded[0], trainer, ledger, row, bounded[1]
        if best is None:
            continue
        won, trainer, ledger, row, idle = best
        low, high = interval(won, ledger.looks)
        if reaches(won, low, bar):
            found = replace(row, share=won)
            one = _finding(scene, trainer, ledger, found, cause, bar, (low, high))
            shown = Evidence(text=_share_text(trainer, ledger, row), source="probe")
            yield replace(one, evidence=(shown, *idle, *one.evidence[1:]))


def _while_idle(
    scene: LiveScene, job: JobView, trainer: TrainerView, ledger: TimeLedger, row: Row
) -> tuple[float, list[Evidence]] | None:
    """Return what share of the clock a row costs at most, and how long the device was idle.

    None where that cannot be told. Without a device all of the row is lost, but for reads, which
    wait for nobody then.
    """
    if not trainer.definition.cuda:
        return None if row.name == "read" else (row.share, [])
    devices = scene.devices(trainer)
    if not devices or scene.others(devices[0], job):
        return None
    load = scene.mean(devices[0], "utilization_percent")
    if load is None:
        return None
    shares = {one.name: one.share for one in ledger.rows}
    idle, card = 1 - load / 100, devices[0].definition.index
    evidence = [
        Evidence(
            text=f"GPU {card} ran no kernel for {percent_text(idle)} of the time", source="nvml"
        )
    ]
    look = scene.look(trainer)
    if look is not None and 1 - look.busy_share < idle:
        # a copy is no kernel to the driver, and has a finding of its own
        idle = 1 - look.busy_share
        text = f"it ran neither kernels nor copies for {percent_text(idle)} of a look's steps"
        evidence.append(Evidence(text=text, source="look"))
    return won_while_idle(shares, idle, row.name), evidence


def recompiles(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding where a function is compiled again and again, with the guard that fails.

    A training is compiled in its first minutes, once more if tensor sizes turn out to vary, and
    once for evaluation. Only compilation beyond that is reported.
    """
    for trainer, ledger in _ledgers(job):
        row = _row(ledger, "compile")
        last = trainer.minutes[-1]
        count, guard = last.get("recompiles"), last.get("guard")
        if row is None or not isinstance(count, int) or count < MANY_RECOMPILES:
            continue
        if not reaches(row.share, row.low, RECOMPILES):
            continue
        one = _finding(
            scene, trainer, ledger, row, "live.recompiles", RECOMPILES, (row.low, row.high)
        )
        at = str(last.get("compiled_at") or "")
        text = f"compiled again {count} times in the last minutes"
        text += f": {at}" if at and "/torch/" not in at else ""
        evidence = [Evidence(text=text, source="dynamo")]
        if isinstance(guard, str) and guard:
            evidence.append(Evidence(text=f"the guard that failed last: {guard}", source="dynamo"))
        yield replace(one, evidence=(one.evidence[0], *evidence, *one.evidence[1:]))
        return


def syncs_in_each_micro_batch(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding where DistributedDataParallel reduces gradients several times a step."""
    for trainer, ledger in _ledgers(job):
        syncs = trainer.minutes[-1].get("gradient_syncs")
        if not isinstance(syncs, int) or syncs < 2:
            continue
        took, step, source = _communication(scene, trainer, ledger)
        share = won_by_one_sync(took, step, syncs)
        text = f"gradients are reduced {syncs} times a step"
        if took is not None and step:
            text += f"; {duration_text(took)} of the {duration_text(step)} of a step wait for it"
        yield WORDINGS.finding(
            "live.syncs_each_micro_batch",
            {"syncs": syncs},
            severity="warning" if share is not None and share >= SYNCS.warned else "info",
            confidence="likely",
            evidence=(Evidence(text=text, source=source),),
            where=place(scene, trainer),
            rank=share or 0.0,
            effect=None
            if share is None
            else gain(share, (share, share), step, "communication that one reduction would save"),
        )
        return


def _communication(
    scene: LiveScene, trainer: TrainerView, ledger: TimeLedger
) -> tuple[float | None, float | None, str]:
    """Return what of a step waits for reductions, the step, and who says so.

    A look at the device has seen what nothing hides; torch's own figure is of one step in a
    hundred.
    """
    look = scene.look(trainer)
    row = look.row("communication") if look is not None else None
    if look is not None and row is not None:
        return row.seconds / look.steps, look.step_seconds, "look"
    return trainer.number("communication_seconds"), ledger.step_seconds, "probe"


def won_by_one_sync(took: float | None, step: float | None, syncs: int) -> float | None:
    """Return what share of a step is saved at most by reducing once, not ``syncs`` times."""
    if took is None or not step:
        return None
    return min(took / step, 1.0) * (syncs - 1) / syncs


def won_while_idle(shares: Mapping[str, float], idle: float, name: str = "read") -> float:
    """Return what share of the wall clock a row costs at most, where a device is idle for a share.

    The idle time of the rows that wait for something else is theirs: curing both does not win it
    twice. Reads come before logging, and that before other code.
    """
    order = list(BESIDE)
    before = {*WAITING, *order[: order.index(name)]}
    left = idle - sum(shares.get(one, 0.0) for one in before)
    return max(0.0, min(shares.get(name, 0.0), left))


def reaches(share: float, low: float, bar: Bar) -> bool:
    """Return whether a share is worth telling, also by the lower end of its interval."""
    return share >= bar.told and low >= LOW_SHARE * bar.told


def _ledgers(job: JobView) -> list[tuple[TrainerView, TimeLedger]]:
    pairs = [(one, of_trainer(one, WINDOW_SECONDS)) for one in living(job) if one.minutes]
    return [
        (one, ledger)
        for one, ledger in pairs
        if ledger.looks >= MIN_LOOKS and ledger.steps >= MIN_STEPS
    ]


def _row(ledger: TimeLedger, name: str) -> Row | None:
    return next((row for row in ledger.rows if row.name == name), None)


def _share_text(trainer: TrainerView, ledger: TimeLedger, row: Row) -> str:
    who = f"{name_of(trainer)}: " if trainer.definition.rank is not None else ""
    return (
        f"{who}{duration_text(row.seconds)} of the last {duration_text(ledger.seconds)} "
        f"({ledger.steps} steps) went into {row.words}: {percent_text(row.share)}"
    )


def _finding(
    scene: LiveScene,
    trainer: TrainerView,
    ledger: TimeLedger,
    row: Row,
    cause: str,
    bar: Bar,
    between: tuple[float, float],
) -> Finding:
    evidence = [Evidence(text=_share_text(trainer, ledger, row), source="probe")]
    evidence += [
        Evidence(
            text=f"{percent_text(spent / ledger.seconds)} of the time at {line}", source="stack"
        )
        for line, spent in row.places[:3]
        if spent >= 0.01 * ledger.seconds
    ]
    return WORDINGS.finding(
        cause,
        {"share": percent_text(row.share)},
        severity="warning" if row.share >= bar.warned else "info",
        confidence="likely",
        evidence=tuple(evidence),
        where=place(scene, trainer),
        rank=row.share,
        effect=gain(row.share, between, ledger.step_seconds, f"all of {row.words}"),
    )


def gain(
    share: float, between: tuple[float, float], step_seconds: float | None, what: str
) -> Effect | None:
    """Return what winning back a share of the wall clock brings at most, with its interval."""
    if not 0 < share < 1:
        return None
    low, high = between
    sure = f" ({percent_text(low)} to {percent_text(high)})" if high > low else ""
    text = f"at most {percent_text(share)} of the wall clock{sure}, {what}"
    if step_seconds:
        text += (
            f": {duration_text(step_seconds * (1 - share))} a step or more instead of "
            f"{duration_text(step_seconds)}, pauses included"
        )
    known = high > low
    return Effect(
        text=text,
        bound="at most",
        saved_share=round(share, 4),
        saved_share_low=round(low, 4) if known else None,
        saved_share_high=round(high, 4) if known else None,
    )
