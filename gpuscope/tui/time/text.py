"""What the tab about time says in words: the answer on top, empty states, details of a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...model.late_rank import LateRank
from ...model.look import Look, LookRow, cost
from ...model.pace import Pace
from ...model.ranks import name_of
from ...model.slowdown import Slowdown
from ...model.standstill import Standstill, stands_still
from ...model.step_parts import covered_text
from ...model.step_time import unnamed_share
from ...model.time_cause import Cause
from ...model.time_ledger import FEW_LOOKS, Row, TimeLedger
from ...model.time_sentence import PASSES, sentence
from ...store.view import HostView, TrainerView
from ...text.process_name import short_script
from ...text.ranges import interval_text
from ...text.styled import Line
from ...text.units import brief_duration_text, count_text, duration_text, percent_text
from ...text.width import cells
from ...wire.clean import clean
from ..shell.keymap import key_of

if TYPE_CHECKING:
    from ...doctor.live_causes import Judged

TIME = frozenset((
    "live.input_bound", "live.copies", "live.communication", "live.launch_bound",
    "live.tensor_idle", "live.checkpoint_pause", "live.validation_pause",
    "live.garbage_collection", "live.garbage_collection.called", "live.reads", "live.recompiles",
    "live.syncs_each_micro_batch",
    "live.model_on_cpu", "live.data_parallel", "ranks.straggler", "ranks.slow_input",
    "ranks.host_paced", "ranks.shared_device", "live.shared_device",
    "look.products_plain", "look.launches", "look.reads", "look.copies_out", "look.copies_in",
    "look.allocates", "look.small_batch", "live.logging", "live.other_code", "live.profiler",
    "look.products_double", "live.debug_setting", "live.slower", "stall.all_in_collective",
    "stall.loader", "stall.ranks_differ", "stall.alone", "live.optimizer_on_host",
))  # fmt: skip
"""Causes of the doctor that are about a training's time."""
OF_RANKS = frozenset((
    "ranks.straggler", "ranks.slow_input", "ranks.host_paced", "ranks.shared_device",
))  # fmt: skip
"""Causes of the doctor that say of a rank that the others wait for it."""
LEDGER = (
    "Where the stack of the training thread was sampled, this tab divides its wall clock, pauses "
    "included, into rows that add up to it, with lines of code and what each fix saves at most."
)
NEARLY_ALL = 0.99
"""If more of a step than this is in no part, the parts that are known are not worth a figure."""
PLACE_CELLS = 160
MOST_TO_GAIN, AND_THEN = "most to gain: ", "then: "
"""What stands before two sentences that each say what could be gained."""
LEAST_IDLE = 0.10
"""A gap that takes less of the GPU's time is not told on top."""
CURABLE = frozenset(
    (
        "input",
        "copy",
        "compile",
        "checkpoint",
        "validation",
        "logging",
        "collection",
        "release",
        "other",
    )
)
"""Rows of the clock that something can be done about, where they take much."""
ON_GPU: Mapping[str, tuple[str, ...]] = {
    "input": ("idle-input",),
    "communication": ("communication",),
    "read": ("idle-sync",),
    "copy": ("copies-in", "copies-out", "idle-copy"),
    "compile": ("idle-compile",),
    "checkpoint": ("idle-checkpoint",),
    "validation": ("idle-validation",),
    "logging": ("idle-logging",),
    "collection": ("idle-collection",),
    "release": ("idle-allocate",),
    "other": ("idle-other",),
}
"""The rows of a look that belong to a row of the clock."""


def who(trainer: TrainerView) -> str:
    """Return whose time it is: ``train.py rank 1 (pid 4711)``."""
    definition = trainer.definition
    rank = f" rank {definition.rank}" if definition.rank is not None else ""
    return f"{short_script(definition.script)}{rank} (pid {definition.pid})"


def coverage_text(ledger: TimeLedger, room: int = 1024, stands: bool = False) -> str:
    """Return how much of the past the figures are of, in at most so many cells; "" if none fits."""
    step = ledger.step_seconds
    each = f", mean {duration_text(step)}" if step is not None else ""
    steps = f"{count_text(ledger.steps, 'step')}{each}"
    window = f"{covered_text(ledger, stands)}: {steps}"
    of = f"{window} · {ledger.looks:,} samples"
    long = max((one.seconds for one in ledger.without), default=None)
    without = f", without a step of {duration_text(long)}" if long is not None else ""
    words = (f"{of}{without}", f"{window}{without}", of, window, steps)
    return next((one for one in words if cells(one) <= room), "")


def answer(
    ledger: TimeLedger,
    trainer: TrainerView,
    late: LateRank | None,
    slower: Slowdown | None,
    useful_work: str = "",
    causes: tuple[Cause, ...] = (),
    look: Look | None = None,
    brief: bool = False,
    found: Line | None = None,
    calm: bool = False,
) -> Iterable[Line]:
    """Return what there is to say on top, one sentence a line, what brings most first.

    ``late`` is the rank of its job that the others wait for: what else takes the time of another
    one than that is no gain. ``useful_work`` says what of the step's time the arithmetic of the
    model needs, "" while that is not known. ``causes`` are what makes it slow, what brings most
    first. With ``brief`` it does not repeat the table. ``found`` is the worst that the doctor
    found, which is said where the clock has no cause. It is ``calm`` where the doctor warns of no
    cause.
    """
    told: list[tuple[float, str, str]] = []
    mine = late is not None and late.trainer.key == trainer.key
    own = tuple(one for one in causes if not mine or one.usual_share is None)
    if own or late is None:
        calm = calm and bool(own) and late is None
        token = "title" if own and not calm and (late is None or mine) else "text"
        token = token if own or ledger.sure else "muted"
        said = sentence(ledger, own, brief, calm, gains=late is None or mine)
        told.append((own[0].share if own and (late is None or mine) else 0.0, said, token))
    if late is not None:
        told.append((late.share, late.sentence, "warn" if late.warns else "text"))
    (_, text, token), *others = sorted(told, key=lambda one: -one[0])
    if found and not own and late is None and ledger.sure:
        yield found
    else:
        yield [(MOST_TO_GAIN if others and not brief else "", "muted"), (text, token)]
    then = AND_THEN if late is None or mine else f"of {name_of(trainer)} itself: "
    for _, text, _ in others:
        shown = text if brief and then == AND_THEN else f"{text[:1].lower()}{text[1:]}"
        yield [("" if brief and then == AND_THEN else then, "muted"), (shown, "text")]
    yield from slower_lines(slower)
    if look is not None and not causes:
        yield from _idle(look)
    if useful_work:
        yield [("useful work: ", "muted"), (useful_work, "text")]


def late_lines(late: LateRank | None) -> Iterable[Line]:
    """Yield which rank the others wait for, and what that costs."""
    if late is not None:
        yield [(late.sentence, "warn" if late.warns else "text")]


def slower_lines(slower: Slowdown | None) -> Iterable[Line]:
    """Yield since when the steps are slower."""
    if slower is not None:
        yield [(f"{clean(slower.text, 300)}.", "text")]


def _idle(look: Look) -> Iterable[Line]:
    """Yield why the GPU is idle, where that takes much of the time."""
    gaps = [row for row in look.rows if row.kind == "idle" and row.share >= LEAST_IDLE]
    if gaps:
        worst = max(gaps, key=lambda row: row.share)
        why = worst.words.removeprefix("idle: ")
        text = f"GPU busy {percent_text(look.busy_share)}; longest idle: {why}, "
        yield [(f"{text}{percent_text(worst.share)}.", "text")]


# ── where there is nothing to show ──


def no_trainer(host: HostView, text: str, first: str = "") -> list[Line]:
    """Return what is missing where no trainer has a probe; ``first``: when one will have."""
    if text:
        return [[(f"no trainer contains {text!r}   {key_of('back')}: all", "muted")]]
    if host.link.state == "replay":
        when = f"yet: {first}" if first else "at this moment of the recording"
        return [[(f"No trainer with a probe runs {when}.", "text")]]
    bare = [job for job in host.jobs if not job.trainers and job.processes]
    lines: list[Line] = []
    for job in bare[:3]:
        pid = job.processes[0].definition.pid
        lines.append([(f"{clean(job.title, 60)} (pid {pid}) runs without a probe.", "text")])
    if not lines:
        lines.append([("No trainer with a probe is here.", "text")])
    lines.append([("Only a probe inside the training sees where its time goes.", "muted")])
    return lines


def pace_text(pace: Pace, room: int) -> str:
    """Return how fast the steps go in at most ``room`` cells; "" while none ends or none fits."""
    facts = (f"   step {pace.steps_text}, {pace.text}", f"   {pace.text}")
    known = facts if pace.text and not pace.stopped else ()
    return next((one for one in known if len(one) <= room), "")


def stopped_lines(still: Standstill | None) -> list[Line]:
    """Return since when a trainer that still runs has ended no step, and why; else none."""
    if still is None:
        return []
    head: Line = [(f"{still.since}: ", "bad" if still.stalled else "warn")]
    return [[*head, (f"{still.why}.", "text")], [(still.before, "muted")]]


def no_minutes(
    host: HostView, trainer: TrainerView, brief: bool = True, ledger: TimeLedger | None = None
) -> list[Line]:
    """Return in a line why the wall clock of this trainer is not divided, and what to do.

    There is none where the parts of a step are known, which add up to it.

    ``ledger`` is what there is of it so far, of too few samples to be shown.
    """
    how = ""
    if not trainer.number("step"):
        text = "No optimizer step was seen yet."
    elif stands_still(trainer) and trainer.minutes:
        return []  # the table of the hang says it
    elif ledger is not None and ledger.rows:
        wait = ledger.seconds_until_sure
        when = f", in about {duration_text(max(round(wait), 1))}" if wait else ""
        text = f"{count_text(ledger.looks, 'sample')} of its stack so far: "
        text += f"the table appears after {FEW_LOOKS}{when}."
    elif host.link.state == "replay":
        text = _unnamed(trainer, " in this recording: it has no samples of its stack.")
    elif trainer.gone is not None:
        text = _unnamed(trainer, ": it ended before the first 10 s of steps.")
        how = "Next run: gpuscope run train.py"
    else:
        text = "Where its time goes is shown once its probe has sampled 10 s of steps."
    return [[(text if brief or not how else f"{text} {how}", "muted")]] if text else []


def _unnamed(trainer: TrainerView, why: str) -> str:
    """Return how much of a step is in no part that is known, and why; "" where the parts are."""
    share = unnamed_share(trainer)
    if not share:
        return ""
    if share < NEARLY_ALL:
        return f"{percent_text(share)} of each step is not broken down{why}"
    known = "Only the wait for data is known" if share < 1 else "No part of a step is known"
    return f"{known}{why}"


# ── details ──


def look_lines() -> list[Line]:
    """Return what a trace of the GPU and a count of its work would add, with their keys."""
    trace = (
        "traces the GPU over some steps: kernels by class, exposed communication, and "
        "why the GPU is idle"
    )
    return [
        [(f"{key_of('look')}  ", "accent"), (trace, "text")],
        [("   It costs the training up to about 0.15 s, once; it asks first.", "muted")],
        [],
        *work_lines("how much of this GPU's peak it uses (MFU), and how fast a step could be"),
    ]


def work_lines(shows: str = "the share of the peak that it reaches (MFU)") -> list[Line]:
    """Return what a count of a step's work ``shows``, with its key."""
    return [
        [(f"{key_of('work')}  ", "accent"), (f"counts the FLOPs of a step: {shows}", "text")],
        [("   One step takes longer, once; it asks first.", "muted")],
    ]


def row_detail(
    row: Row,
    ledger: TimeLedger,
    look: Look | None,
    judged: Sequence[Judged] | None = (),
    live: bool = True,
) -> Iterable[Line]:
    """Return what is known of a row of the clock: its cure, its lines of code, its kernels.

    ``judged`` is None while no step ends: then there is nothing to gain from a faster one. A
    trainer that is not ``live`` cannot be asked for its stacks.
    """
    step = ledger.step_seconds
    yield [("Takes    ", "muted"), (_of_a_step(step, row.share), "title")]
    if row.looks:
        between = interval_text(percent_text(row.low), percent_text(row.high), " to ")
        text = f"{between} with 95 % confidence: {row.looks:,} of {ledger.looks:,} samples"
        if not ledger.sure:
            text = f"too few samples yet: {ledger.looks:,}"
        yield [("Interval ", "muted"), (text, "text")]
    else:
        yield [("Source   ", "muted"), ("timed" if row.timed else "in none of the samples", "text")]
    if row.inside is not None:
        part = "inside the steps" if row.inside else "between the steps"
        yield [("Where    ", "muted"), (part, "text")]
    if len(row.places) == 1:
        yield [("Line     ", "muted"), (clean(row.places[0][0], PLACE_CELLS), "text")]
    elif not row.places:
        yield [("Line     ", "muted"), ("no line of code is known for it", "muted")]
    causes = [(one.cause.clock, one) for one in judged or ()]
    found = [one for clock, one in causes if clock and clock.name == row.name]
    for one in found[:1]:
        yield from _cure(one, step)
    if not found and row.name in CURABLE and judged is not None:
        yield [("Fix      ", "muted"), ("none: a fix would gain too little", "faint")]
    if len(row.places) > 1:
        yield []
        yield [("Its lines of code", "title")]
        for place, seconds in row.places[:12]:
            share = percent_text(seconds / ledger.seconds)
            yield [(f"{share:>8}  ", "muted"), (clean(place, PLACE_CELLS), "text")]
    if look is not None:
        yield from _on_gpu(row, look)
    if live:
        where = f"{key_of('stacks')}: where all its threads are now"
        yield from ([], [("Stacks   ", "muted"), (where, "text")])


def in_brief(lines: Iterable[Line]) -> list[Line]:
    """Return of the lines about a row of the clock what it does not show itself.

    What to do comes first, then what that gains, then the line of code.
    """
    found = {line[0][0].strip(): line for line in lines if line}
    return [found[part] for part in ("Fix", "Gain", "Line") if part in found]


def _cure(one: Judged, step: float | None) -> Iterable[Line]:
    from ...doctor.live_causes import fix_of

    cause, fix = one.cause, fix_of(one.finding)
    share = percent_text(cause.saves)
    won, now = f"{share} at most", duration_text(step) if step else ""
    left = duration_text(step * (1 - cause.saves)) if step else ""
    if step and cause.usual_share is not None:
        others = duration_text(step * cause.usual_share)
        won = f"up to {duration_text(step * cause.saves)} ({share}) of a step: the other ranks "
        won += f"spend {others} on it too"
    elif step:
        won += f": a step would take {left} or more"
        if cause.cured_by:
            won = f"{cause.cured_by} at best {left} a step instead of {now} ({share} less)"
    elif cause.cured_by:
        won += f", {cause.cured_by}"
    yield [("Gain     ", "muted"), (won, "text")]
    if fix is not None:
        yield [("Fix      ", "muted"), (fix.title, "text")]
        for line in (fix.code or fix.environment or fix.command).splitlines()[:2]:
            yield [("         ", "muted"), (line, "text")]


def _on_gpu(row: Row, look: Look) -> Iterable[Line]:
    if row.name in PASSES:
        rows = [one for one in look.rows if one.kind == "kernels" or one.name == "idle-launch"]
    else:
        rows = [one for one in look.rows if one.name in ON_GPU.get(row.name, ())]
    yield []
    if not rows:
        yield [("The GPU trace has nothing about this row.", "muted")]
        return
    of = "all passes together, because the GPU runs them later" if row.name in PASSES else "a step"
    yield [("On the GPU", "title"), (f", {of}", "muted")]
    for one in rows[:8]:
        each = duration_text(one.seconds / look.steps)
        yield [(f"{each:>8}  ", "muted"), (one.words, "text")]


def _of_a_step(step: float | None, share: float) -> str:
    """Return how much of a step a share is, such as ``80.3 ms of 81.5 ms per step (99 %)``."""
    if not step:
        return f"{percent_text(share)} of the clock"
    return (
        f"{duration_text(step * share)} of {duration_text(step)} per step ({percent_text(share)})"
    )


def gpu_detail(row: LookRow, look: Look) -> Iterable[Line]:
    """Return what a look knows of one of its rows."""
    yield [("Takes    ", "muted"), (_of_a_step(look.step_seconds, row.share), "title")]
    if row.low is not None and row.high is not None:
        between = interval_text(percent_text(row.low), percent_text(row.high), " to ")
        between += " with 95 % confidence"
        yield [("Interval ", "muted"), (f"{between}, as its steps differ", "text")]
    if row.count:
        count = f"{row.count:,} {'gaps' if row.kind == 'idle' else 'kernels and copies'}"
        yield [("Counted  ", "muted"), (f"{count} in {look.steps} steps", "text")]
    if row.place:
        yield [("Line     ", "muted"), (clean(row.place, PLACE_CELLS), "text")]
    if row.kernels:
        yield []
        yield [("Longest kernels, a step", "title")]
        for name, seconds in row.kernels:
            yield [
                (f"{brief_duration_text(seconds / look.steps):>8}  ", "muted"),
                (clean(name, PLACE_CELLS), "text"),
            ]
    from ...doctor.look_evidence import cure_of

    cure = cure_of(row.name)
    if cure:
        yield []
        yield [("Fix      ", "muted"), (cure, "text")]
    yield []
    yield [("Overhead ", "muted"), (cost(look), "faint")]
