"""Find the ranks that are stalled, the ranks they wait for, and the one furthest behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..store.view import Gone, JobView, TrainerView
from ..text.units import age_text, duration_text
from ..wire.frames import NOT_SUPPORTED, Unknown
from .job_ends import how_it_ended
from .ranks import median, name_of, names_of

STEPS_LATE = 3.0
SECONDS_BEHIND = 2.0
STALL_SECONDS = 5.0
"""A rank is stalled after this long without a step, and :data:`STEPS_LATE` usual step times."""
ENDING_SECONDS = 10.0
"""How long after a rank has ended the others may take to end: they hang only after that."""
STOPPING_SECONDS = 35.0
"""The same after a rank was interrupted: torchrun gives the others 30 s before it kills them."""
_UNTOLD = ("not_sent", "no_reason", NOT_SUPPORTED)
"""Codes of a ``stall_at`` that do not say whether the rank is stalled."""
_COLLECTIVES = (
    "all_reduce", "allreduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all",
    "recv", "send", "reduce", "gather", "scatter", "wait",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stall:
    """Ranks that are stalled.

    ``behind`` are those that the others wait for. It is empty if that is unknown, and for a trainer
    without other ranks. ``text`` is a sentence for people. ``busy`` says that the ranks behind are
    working on something that is no step.
    """

    behind: tuple[TrainerView, ...]
    waiting: tuple[TrainerView, ...]
    text: str
    busy: bool = False


class Place(NamedTuple):
    """The user's line that a thread executes, in its function; ``inner`` is the innermost called.

    ``inner`` is empty where the thread is in the user's own function.
    """

    line: str
    function: str
    inner: str = ""

    @property
    def innermost(self) -> str:
        """Return the innermost function of all, which tells a collective or a loader."""
        return self.inner or self.function

    @property
    def functions(self) -> str:
        """Return the line's own function with what it is in: ``main (all_reduce)``."""
        inner = f"({CALLED.get(self.inner, self.inner)})" if self.inner else ""
        return " ".join(part for part in (self.function, inner) if part)

    @property
    def text(self) -> str:
        """Return all of it for people: ``train.py:60 in main (all_reduce)``."""
        return " in ".join(part for part in (self.line, self.functions) if part)


NOWHERE = Place("", "")
CALLED = {"_engine_run_backward": "backward"}
"""What private functions of torch are called by people."""


def place(trainer: TrainerView) -> Place:
    """Return where a trainer's main thread is, empty where it is not known."""
    reading = trainer.reading("stall_at")
    if not isinstance(reading, str) or not reading.strip():
        return NOWHERE
    outer, _, inner = reading.strip().partition(" ← ")
    where, _, function = outer.strip().partition(" ")
    inside = inner.strip().partition(" ")[2].strip()
    return Place(where.rsplit("/", 1)[-1], function.strip(), inside)


def stands_text(trainer: TrainerView, stall: Stall | None) -> str:
    """Return what a trainer that hangs does in the ``stall`` of its job, "" where that is unknown.

    It is ``stuck at data.py:88 in load``, or ``waits for rank 1 at train.py:60 in main (run)``.
    """
    at = place(trainer).text
    if stall is not None and stall.behind and any(one.key == trainer.key for one in stall.waiting):
        return f"waits for {names_of(stall.behind)}{f' at {at}' if at else ''}"
    return f"stuck at {at}" if at else ""


def is_overdue(trainer: TrainerView) -> bool:
    """Whether its step should have ended long ago."""
    return is_late(trainer.number("step_age_seconds"), trainer.number("step_seconds"))


def is_late(age_seconds: float | None, usual_seconds: float | None) -> bool:
    """Whether a step is overdue ``age_seconds`` after the last, if it takes ``usual_seconds``."""
    if age_seconds is None or usual_seconds is None:
        return False
    return age_seconds > STALL_SECONDS and age_seconds > STEPS_LATE * usual_seconds


def is_stalled(trainer: TrainerView) -> bool:
    """Tell whether a trainer is stalled.

    If it has a probe that sees its main thread, the probe decides, otherwise the age of its last
    step.
    """
    reading = trainer.reading("stall_at")
    if isinstance(reading, Unknown) and reading.code in _UNTOLD:
        return is_overdue(trainer)
    return isinstance(reading, str)


def is_ending(ranks: Sequence[TrainerView]) -> bool:
    """Tell whether a job is being ended: a rank has just ended, and the others most likely follow.

    A launcher ends its ranks one after another, so for a while some wait for those that are gone.
    """
    living = [t.sampled_seconds for t in ranks if t.gone is None and t.sampled_seconds is not None]
    now = max(living, default=None)
    return now is not None and any(
        now - t.gone.monotonic_seconds < (STOPPING_SECONDS if _stopped(t.gone) else ENDING_SECONDS)
        for t in ranks
        if t.gone is not None
    )


def _stopped(gone: Gone) -> bool:
    return how_it_ended(gone).word == "stopped"


def find_stall(ranks: Sequence[TrainerView]) -> Stall | None:
    """Who keeps a standing job; None while it steps, and while its ranks end one after another.

    The rank that launched fewest collectives is the one the others wait for; if all launched as
    many, the one that is outside a collective.
    """
    living = [t for t in ranks if t.gone is None]
    late = [t for t in living if is_stalled(t)]
    if not late or (len(living) > 1 and len(late) * 2 <= len(living)) or is_ending(ranks):
        return None
    if len(living) == 1:
        at = place(late[0])
        text = f"no step for {age_text(late[0].number('step_age_seconds') or 0.0)}"
        return Stall((), (), f"{text}: stuck at {at.text}" if at.line else text)
    behind = _ranks_behind(living)
    waiting = tuple(t for t in living if t not in behind)
    if not behind:
        return Stall(
            (),
            tuple(living),
            f"no step on any rank: {_where(living[0])}; which rank holds up the others is unknown",
        )
    if not any(is_stalled(t) for t in behind):
        verb = "is" if len(behind) == 1 else "are"
        text = f"{names_of(behind)} {verb} busy outside of a step (an evaluation, a checkpoint)"
        return Stall(behind, waiting, f"{text}; {_wait(waiting)}", busy=True)
    text = (
        f"{names_of(behind)} {_where(behind[0], 'is stuck' if len(behind) == 1 else 'are stuck')}"
    )
    return Stall(behind, waiting, f"{text}; {_wait(waiting)}")


def stalled_ranks(job: JobView) -> Mapping[str, Literal["bad", "warn"]]:
    """Return how grave it is for each rank of a job that hangs, by the rank's key.

    Those that hold it up are bad, and those that wait for them a warning. All screens mark a rank
    by this. Where no rank is known to be behind, each is judged by where it is.
    """
    stall = find_stall(job.trainers)
    if stall is None:
        return {}
    if not stall.behind:
        living = (t for t in job.trainers if t.gone is None)
        return {t.key: "warn" if waits_in_collective(t) else "bad" for t in living}
    kinds: dict[str, Literal["bad", "warn"]] = {t.key: "warn" for t in stall.waiting}
    if not stall.busy:
        kinds.update(dict.fromkeys((t.key for t in stall.behind), "bad"))
    return kinds


def _ranks_behind(living: Sequence[TrainerView]) -> tuple[TrainerView, ...]:
    for column in ("collectives", "step"):
        counts = [t.number(column) for t in living]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts) and min(known) < max(known):
            low = min(known)
            fewest = tuple(t for t, count in zip(living, counts, strict=True) if count == low)
            if len(fewest) * 2 <= len(living):
                return fewest
    outside = tuple(t for t in living if place(t).line and not waits_in_collective(t))
    inside = [t for t in living if waits_in_collective(t)]
    return outside if len(inside) + len(outside) == len(living) and inside else ()


def waits_in_collective(trainer: TrainerView) -> bool:
    """Whether the main thread is in a function that waits for other ranks."""
    function = place(trainer).innermost
    return any(name in function for name in _COLLECTIVES)


def _where(trainer: TrainerView, verb: str = "stuck") -> str:
    at = place(trainer)
    if not at.line:
        reading = trainer.reading("stall_at")
        why = getattr(reading, "text", "")
        return f"{verb}, position unknown" + (f" ({why})" if why else "")
    return f"{verb} at {at.text}"


def _wait(waiting: Sequence[TrainerView]) -> str:
    """``ranks 0–2 wait in all_reduce``."""
    verb = "waits" if len(waiting) == 1 else "wait"
    inside = {place(t).innermost for t in waiting if waits_in_collective(t)}
    places = {place(t) for t in waiting if place(t).line}
    if len(inside) == 1:
        how = f" in {inside.pop()}"
    elif len(places) == 1:
        how = f" for it at {places.pop().text}"
    else:
        how = " for it"
    return f"{names_of(waiting)} {verb}{how}"


def worst_rank(ranks: Sequence[TrainerView]) -> tuple[TrainerView | None, str]:
    """Return the running rank that holds the others up, and why in words; None if all are alike.

    In a stalled job see :func:`find_stall`. Else it is the rank whose last step is oldest against
    its usual step time, if that is more than three usual steps and two seconds behind the other
    ranks.
    """
    stall = find_stall(ranks)
    if stall is not None and stall.behind:
        return stall.behind[0], stall.text
    ages = [
        (t, age)
        for t in ranks
        if t.gone is None and (age := t.number("step_age_seconds")) is not None
    ]
    steps = [
        s for trainer, _ in ages if (s := trainer.number("step_seconds")) is not None and s > 0
    ]
    if len(ages) < 2 or not steps:
        return None, ""
    usual = median(steps)
    worst, age = max(ages, key=lambda pair: pair[1] / (pair[0].number("step_seconds") or usual))
    others = median(other for trainer, other in ages if trainer is not worst)
    if age <= STEPS_LATE * usual or age <= others + SECONDS_BEHIND:
        return None, ""
    where = place(worst)
    at = f" at {where.text}" if where.line else ""
    last, rest, each = (duration_text(seconds) for seconds in (age, others, usual))
    text = f"{name_of(worst)}{at}: last step {last} ago, the others {rest}"
    return worst, f"{text}; a step usually takes {each}"
