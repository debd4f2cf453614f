"""This module says what can be done to a trainer on request.

Each act has its effect, its price, and what its answer says. Texts are lines of pieces. A
result comes from another process: nothing in it is taken for granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...model import look, useful_work
from ...model.job_ends import has_ended, is_out_of_sight
from ...model.ranks import name_of
from ...model.stalls import is_overdue
from ...store.view import HostView, ProcView, TrainerView
from ...text.numbers import number
from ...text.process_name import short_script
from ...text.styled import Line
from ...text.units import GIB, age_text, bytes_text, count_text, duration_text, percent_text
from ...wire.frames import Scalar
from ..shell.keymap import key_of
from .process_trends import trainer_in

if TYPE_CHECKING:
    from ..widgets.program import Program


HISTORY_ENTRIES = 100_000
TRIAL_STEPS = 20
STEPS = (1, 2, 5, 10, 20, 50)
"""Steps to choose from, for a profile."""
DEFAULT_STEPS = 5
MAX_TRACE_BYTES = GIB
MAX_SNAPSHOT_BYTES = 4 * GIB
NO_CUDA = "does not use CUDA yet, and torch keeps allocator statistics only for CUDA"


@dataclass(frozen=True, slots=True)
class TrainerAction:
    """One thing that a trainer can be asked to do.

    ``keeps`` says that the answer comes with a file of this kind (``result_files.FOLDERS``), of
    at most ``max_bytes``. ``cuda`` acts are only for trainers that use CUDA.
    """

    name: str
    title: str
    effect: str
    price: str
    verb: str
    keeps: str = ""
    cuda: bool = False
    max_bytes: int = MAX_SNAPSHOT_BYTES
    no_cuda: str = NO_CUDA

    def why_not(self, trainer: TrainerView) -> str:
        """Return why this trainer cannot be asked, "" when it can."""
        if trainer.gone is not None:
            return f"pid {trainer.definition.pid} {has_ended(trainer.gone)}"
        return (
            f"pid {trainer.definition.pid} {self.no_cuda}"
            if self.cuda and not trainer.definition.cuda
            else ""
        )


ACTS = {
    act.name: act
    for act in (
        TrainerAction(
            "snapshot",
            "Take an allocator snapshot",
            "torch dumps every segment and block of its allocator; the file is copied here and "
            "also opens in _memory_viz. Nothing in the trainer is changed.",
            "the trainer pauses once for about 0.1–1 s (longer with a long history).",
            "take it",
            "snapshot",
            cuda=True,
        ),
        TrainerAction(
            "history",
            "Record allocation history",
            f"torch records the Python stack of each allocation, the last {HISTORY_ENTRIES:,}: "
            "later snapshots show which line allocated what.",
            f"measured first: {TRIAL_STEPS} steps without and {TRIAL_STEPS} with it, then it is "
            f"turned off, and you decide.",
            "measure the overhead",
            cuda=True,
        ),
        TrainerAction(
            "look",
            "Trace the GPU",
            "a CUDA trace of a few steps, without files: kernels by class, exposed communication "
            "and copies, and why the GPU was idle.",
            f"{look.PRICE}; the real cost is shown afterwards.",
            "trace",
            cuda=True,
            no_cuda="does not use CUDA yet: there is no GPU to trace",
        ),
        TrainerAction(
            "work",
            "Count the work of a step",
            "every operator of one step is recorded with its shapes, in the training's own thread; "
            "results stay bit-identical. Not possible under torch.compile and CUDA graphs.",
            "one step takes longer, once: by about 0.1 s for 5,000 operators; the real cost is "
            "shown afterwards.",
            "count",
        ),
        TrainerAction(
            "profile",
            "Profile some steps",
            "torch.profiler runs in the trainer, from the probe's thread; the Chrome trace is "
            "copied here. Refused while another profiler runs.",
            "steps are slower while it runs; its end synchronizes the GPU once, and the program "
            "waits while the trace is put together: about 5 s for a million operations.",
            "profile",
            "profile",
            max_bytes=MAX_TRACE_BYTES,
        ),
    )
}


def deadline_of(name: str, trainer: TrainerView, steps: int) -> float:
    """Return how long to wait for all of an answer, seconds: slow steps take their time."""
    pace = trainer.number("step_seconds") or 1.0
    waits = {
        "snapshot": 300.0,
        "history": 60.0 + 6 * TRIAL_STEPS * pace,
        "profile": 180.0 + 30 * steps * pace,
        "look": 90.0 + 30 * pace,
        "work": 60.0 + 30 * pace,
    }
    return min(3600.0, waits[name])


def args_of(name: str, steps: int, trial: bool = True) -> dict[str, Scalar]:
    """Arguments of the request, without the trainer."""
    if name == "history":
        return {"entries": HISTORY_ENTRIES, "trial_steps": TRIAL_STEPS if trial else 0}
    return {"steps": steps} if name == "profile" else {}


def question_of(act: TrainerAction, trainer: TrainerView, steps: int) -> Iterable[Line]:
    """Return who, what happens, what it costs."""
    yield [("Trainer  ", "muted"), *who(trainer)]
    if act.name == "profile":
        pace = trainer.number("step_seconds")
        about = f", about {duration_text(steps * pace)} at its usual step time" if pace else ""
        yield [("Steps    ", "muted"), (f"{steps}", "title"), (about, "muted")]
        if is_overdue(trainer):
            age = age_text(trainer.number("step_age_seconds") or 0.0)
            yield [
                ("Now      ", "muted"),
                (f"no step for {age}; a profile would wait for one", "warn"),
            ]
    yield [("Effect   ", "muted"), (act.effect, "text")]
    yield [("Overhead ", "muted"), (act.price, "text")]
    if act.name == "snapshot":
        yield [
            ("Stacks   ", "muted"),
            ("only if history was on before. ", "text"),
            (key_of("history", "ActDialog"), "accent"),
            (": turn it on first (its overhead is measured and shown)", "muted"),
        ]


def who(trainer: TrainerView) -> Line:
    """Return who a trainer is, as ``rank 3, pid 48216, train.py``."""
    definition = trainer.definition
    rank = f"{name_of(trainer)}, " if definition.rank is not None else ""
    script = f", {short_script(definition.script)}" if definition.script else ""
    return [(f"{rank}pid {definition.pid}", "title"), (script, "text")]


# ── what came ──


def _seconds(value: Mapping[str, Any], key: str) -> str:
    found = number(value.get(key))
    return duration_text(found) if found is not None else "–"


def snapshot_came(value: Mapping[str, Any]) -> Iterable[Line]:
    """Return what a snapshot's result says."""
    entries, size = number(value.get("entries")), number(value.get("bytes"))
    if size is not None:
        yield [("Size     ", "muted"), (bytes_text(size), "text")]
    if entries is not None:
        pause, pickled = _seconds(value, "snapshot_seconds"), _seconds(value, "pickle_seconds")
        yield [
            ("Took     ", "muted"),
            (f"{pause} in the allocator, {pickled} to write it", "text"),
        ]
        yield [("History  ", "muted"), (f"{entries:,.0f} events", "text")]
    if value.get("history") is False:
        yield [
            ("Stacks   ", "muted"),
            ("none: history was off, so there are sizes without stacks. ", "warn"),
            (key_of("history", "ActDialog"), "accent"),
            (": turn it on", "muted"),
        ]


def history_price(value: Mapping[str, Any]) -> Iterable[Line]:
    """Return the measured price of recording history."""
    cost, low = number(value.get("cost_percent")), number(value.get("cost_low_percent"))
    high, steps = number(value.get("cost_high_percent")), number(value.get("steps"))
    if cost is None:
        yield [
            ("Overhead ", "muted"),
            ("not measured: the trainer made no steps to compare", "warn"),
        ]
        return
    between = f" ({low:+.1f} to {high:+.1f})" if low is not None and high is not None else ""
    yield [("Overhead ", "muted"), (f"{cost:+.1f} %{between} per step", "title")]
    over = f", measured over {steps:.0f} steps each" if steps is not None else ", measured"
    paces = (
        f"{_seconds(value, 'baseline_step_seconds')} a step without, "
        f"{_seconds(value, 'step_seconds')} with it"
    )
    yield [("         ", "muted"), (f"{paces}{over}", "muted")]
    yield [("         ", "muted"), ("it is off again now", "muted")]


def history_on(value: Mapping[str, Any]) -> Iterable[Line]:
    """After history was turned on."""
    entries = number(value.get("entries"))
    count = f"the last {entries:,.0f} allocations" if entries is not None else "allocations"
    yield [
        ("History  ", "muted"),
        (f"on: {count} are recorded. ", "ok"),
        (f"{key_of('snapshot')} in a minute shows their lines", "muted"),
    ]


def profile_came(value: Mapping[str, Any]) -> Iterable[Line]:
    """Return what a profile's result says."""
    steps, size = number(value.get("steps")), number(value.get("bytes"))
    if steps is not None:
        early = EARLY.get(str(value.get("stopped")), "")
        yield [
            ("Steps    ", "muted"),
            (f"{steps:.0f} in {_seconds(value, 'seconds')}{early}", "text"),
        ]
    held = [number(value.get(name)) for name in ("stop_seconds", "export_seconds")]
    if None not in held:
        yield [
            ("Held     ", "muted"),
            (f"the program for {duration_text(sum(s or 0.0 for s in held))} at the end", "text"),
        ]
    if size is not None:
        yield [("Size     ", "muted"), (bytes_text(size), "text")]


def look_came(value: Mapping[str, Any]) -> Iterable[Line]:
    """Return what a look has found in a line, and what it has cost."""
    found = look.read(value)
    if found is None:
        yield [("Nothing  ", "muted"), ("no complete step was traced", "warn")]
        return
    steps = f"{count_text(found.steps, 'step')} of {duration_text(found.step_seconds)}"
    yield [("Steps    ", "muted"), (steps, "text")]
    yield [("Busy     ", "muted"), (f"{percent_text(found.busy_share)} of the time", "title")]
    for row in found.rows[:4]:
        yield [(f"{percent_text(row.share):>8} ", "muted"), (row.words, "text")]
    yield [("Cost     ", "muted"), (look.cost(found), "text")]
    for words in look.notes(found):
        yield [("         ", "muted"), (words, "muted")]
    yield [("         ", "muted"), (f"all rows: the Time tab ({key_of('time')})", "faint")]


def work_came(value: Mapping[str, Any]) -> Iterable[Line]:
    """Return what was counted in a few lines, and what that has cost."""
    found = useful_work.read(value, None, "")
    if found is None:
        yield [("Nothing  ", "muted"), ("the step had no operators", "warn")]
        return
    least = "" if found.complete else "at least "
    flops = useful_work.flops_text(found.model_flops)
    yield [("Model    ", "muted"), (f"{least}{flops} a step", "title")]
    yield [("Counted  ", "muted"), (f"{found.operators:,} operators", "text")]
    if not found.complete:
        yield [("         ", "muted"), (useful_work.unknown_text(found), "warn")]
    yield [("Cost     ", "muted"), (useful_work.cost(found), "text")]
    yield [("         ", "muted"), (f"MFU and floor: {key_of('work')} in the Time tab", "faint")]


EARLY = {
    "timeout": " (it ended early: time was up)",
    "other_profiler": " (it ended early: the training started a profiler of its own)",
}
CAME: dict[str, Callable[[Mapping[str, Any]], Iterable[Line]]] = {
    "snapshot": snapshot_came,
    "history": history_price,
    "profile": profile_came,
    "look": look_came,
    "work": work_came,
}
FAILED = {
    "busy": ("Busy", "one such request at a time"),
    "unsupported": ("Not possible here", ""),
    "refused": ("Refused", ""),
    "cancelled": ("Cancelled", ""),
    "unfinished": ("Not finished in time", ""),
    "timeout": ("No answer in time", ""),
    "gone": ("No answer", ""),
    "failed": ("It failed", ""),
}


def failure(code: str, reason: str) -> Iterable[Line]:
    """Return an error in words."""
    title, hint = FAILED.get(code, ("It failed", ""))
    yield [(f"{title}: ", "warn"), (reason + (f" ({hint})" if hint else ""), "text")]


# ── whom to ask ──


def open_act(app: Program, name: str, chosen: TrainerView | None) -> None:
    """Open what an action on a trainer opens; ``chosen`` is the trainer under the cursor."""
    reason = why_not_ask(chosen)
    if reason:
        app.session.notices.hint(f"{name.capitalize()}: {reason}")
        return
    host = app.session.host
    found = candidates(host, chosen) if host is not None else []
    if not found:
        none = "no trainer with a probe runs here. Start one: gpuscope run train.py"
        app.session.notices.say(none, "warn")
    elif name == "stacks":
        app.open("stacks", found[0].key)
    else:
        app.open("act", ACTS[name], found[0].key)


def ask_in(app: Program, name: str, host: HostView, process: ProcView) -> None:
    """Ask the trainer in a process, or say how one without a probe gets it."""
    trainer = trainer_in(host, process)
    if trainer is not None:
        open_act(app, name, trainer)
        return
    none = f"no probe in pid {process.definition.pid}; {key_of('attach')} puts one into it"
    app.session.notices.say(none, "warn")


def why_not_ask(chosen: TrainerView | None) -> str:
    """Return why the trainer under the cursor answers nothing, "" where it does.

    No other trainer is asked in its place.
    """
    if chosen is None or chosen.gone is None:
        return ""
    pid = chosen.definition.pid
    if is_out_of_sight(chosen.gone):
        return f"no probe in pid {pid} any more; {key_of('attach')} puts one into it"
    return f"pid {pid} has ended: its probe no longer answers"


def candidates(host: HostView, first: TrainerView | None) -> list[TrainerView]:
    """Living trainers: ``first``, then the other ranks of its job, then mine, then others'."""
    mine = {p.id for p in host.processes if p.definition.mine}

    def order(trainer: TrainerView) -> tuple[bool, bool, bool, str, int]:
        job = first.definition.job if first is not None else None
        same = job is not None and trainer.definition.job == job
        foreign = trainer.process not in mine
        rank = trainer.definition.rank
        return (
            first is None or trainer.key != first.key,
            not same,
            foreign,
            trainer.definition.job or "",
            rank if rank is not None else trainer.definition.pid,
        )

    return sorted((t for t in host.trainers if t.gone is None), key=order)
