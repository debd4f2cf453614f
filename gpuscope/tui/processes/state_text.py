"""This module says in a few words what a process does now, and how its memory is made up.

It knows no widget and asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.device_state import IDLE_PERCENT, NEARLY_FULL, DeviceState
from ...model.device_trainings import told_input
from ...model.lost_loss import LostLoss
from ...model.memory_room import MemoryRoom, alarm
from ...model.pace import pace_of
from ...model.stalls import is_stalled, place, waits_in_collective
from ...store.view import DeviceView, ProcView, TrainerView, UseView
from ...text.styled import Line
from ...text.units import brief_age_text, brief_duration_text, percent_text, short_age_text
from ..theme import UNICODE, Glyphs
from ..widgets.bars import Bar
from .idle import Idle


def state_words(
    process: ProcView,
    uses: Sequence[UseView],
    trainer: TrainerView | None,
    idle: Idle,
    glyphs: Glyphs = UNICODE,
    stalled: str = "",
    broken: tuple[int, DeviceState] | None = None,
    paced: bool = False,
    ends: MemoryRoom | None = None,
    starved: float = 0.0,
    lost: LostLoss | None = None,
    step: float | None = None,
) -> Line:
    """Return a glyph with a word, and why: by its probe, else by its log, else by its load.

    ``stalled`` is how grave it is that its job hangs: "bad" for a rank that holds up the others,
    "warn" for one that waits, "" where the job does not hang. ``broken`` is the index and the state
    of a device that it uses and that no program can rely on, which comes before all else.
    ``paced``: how long its step takes is told elsewhere. ``ends`` is its memory where that runs
    out soon, ``starved`` the share of a step that it waits for input where that is a warning,
    ``lost`` its loss where that stays NaN or infinite. ``step`` is the one to tell of it, where
    that is not the one of its own reading.
    """
    if broken is not None:
        index, state = broken
        step = trainer.number("step") if trainer is not None and step is None else step
        last = f" last step {step:,.0f}" if step is not None else ""
        return [(f"{glyphs.bad} GPU {index} {state.word}", "bad"), (last, "muted")]
    hangs = trainer is not None and is_stalled(trainer)
    if lost is not None and not hangs:
        return [(f"{glyphs.bad} {lost.word}", "bad"), (f" {lost.place}", "muted")]
    if trainer is not None:
        if ends is not None and ends.runs_out is not None and not is_stalled(trainer):
            kind, left = alarm(ends) or "warn", ends.runs_out.time_text or ends.runs_out.steps_text
            return [(f"{getattr(glyphs, kind)} filling", kind), (f" {left} left", "muted")]
        if starved and not is_stalled(trainer) and not stalled:
            of_step = f" {percent_text(starved)} of {told_input(trainer, brief=True)[1]}"
            return [(f"{glyphs.warn} input-bound", "warn"), (of_step, "muted")]
        return _training(trainer, idle, glyphs, stalled, paced, step)
    logged = process.number("log_step")
    if idle:
        return [(f"{glyphs.idle} idle", "idle")]
    if logged is not None:
        return [(f"{glyphs.ok} step {logged:,.0f}", "ok"), (" by its log", "muted")]
    shares = [share for use in uses if (share := use.number("sm_percent")) is not None]
    if any(share >= IDLE_PERCENT for share in shares):
        return [(f"{glyphs.ok} runs kernels", "ok"), (" · no probe", "muted")]
    return [("no probe", "muted")]


def _training(
    trainer: TrainerView,
    idle: Idle,
    glyphs: Glyphs,
    stalled: str,
    paced: bool,
    step: float | None,
) -> Line:
    age = trainer.number("step_age_seconds")
    step = trainer.number("step") if step is None else step
    if is_stalled(trainer):
        at, inner = place(trainer).text, place(trainer).innermost
        old = f" {short_age_text(age)}" if age is not None else ""
        if stalled == "bad":
            old = f" {brief_age_text(age)}" if age is not None and age >= 60 else old
            return [(f"{glyphs.bad} stalled{old}", "bad"), (f" {at}" if at else "", "muted")]
        if waits_in_collective(trainer):
            return [(f"{glyphs.warn} waits{old}", "warn"), (f" in {inner}", "muted")]
        word = "waits" if stalled else "no step"
        return [(f"{glyphs.warn} {word}{old}", "warn"), (f" at {at}" if at else "", "muted")]
    if step is None:
        word = "no step yet" if not idle else "no step yet, idle"
        return [(f"{glyphs.idle} {word}", "idle")]
    if trainer.reading("phase") == "eval":
        return [(f"{glyphs.ok} evaluates", "ok"), (f" step {step:,.0f}", "muted")]
    pace = pace_of([trainer])
    if pace.stopped and age is not None:
        return [(f"{glyphs.warn} no step {short_age_text(age)}", "warn")]
    told = paced or pace.seconds is None
    each = "" if told else f" median {brief_duration_text(pace.seconds or 0.0)}"
    return [(f"{glyphs.ok} step {step:,.0f}", "ok"), (each, "muted")]


def memory_bar(
    uses: Sequence[UseView], devices: Sequence[DeviceView], trainer: TrainerView | None
) -> Bar | None:
    """Return what it holds on a track as long as the memory of the GPUs that it uses.

    None where the driver does not say what it holds, or how much there is.
    """
    sizes = [use.number("used_bytes") for use in uses]
    totals = [device.definition.total_bytes for device in devices]
    if not sizes or not totals or None in sizes or not all(totals):
        return None
    held, whole = sum(size or 0.0 for size in sizes), float(sum(total or 0 for total in totals))
    allocated = reserved = 0.0
    mine = {device.id for device in devices}
    for one in trainer.allocators if trainer is not None else ():
        if one.gpu in mine:
            allocated += one.number("allocated_bytes") or 0.0
            reserved += one.number("reserved_bytes") or 0.0
    rest = max(held - max(reserved, allocated), 0.0)
    parts = (
        (allocated, "allocated"),
        (max(reserved - allocated, 0.0), "cached"),
        (rest, "outside" if reserved else "other"),
    )
    return Bar(parts, whole, warn_beyond=NEARLY_FULL)
