"""Find the loss of a running job that is NaN or infinite, and since when: one answer for all.

Such a training still makes steps and keeps its GPUs busy, but nothing comes of them any more. A
single loss of that kind is no trouble; see :class:`~gpuscope.wire.loss_text.NotFinite`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..store.view import (
    HistoryOf,
    HostView,
    JobView,
    ProcView,
    TrainerView,
    by_id,
    no_history,
)
from ..text.units import age_text
from ..wire.frames import Unknown
from ..wire.loss_text import LASTS, NotFinite, read_not_finite
from .ranks import name_of


@dataclass(frozen=True, slots=True)
class LostLoss:
    """A loss that stays NaN or infinite.

    ``value`` is "nan" or "inf", ``since`` "step 812", "" where that is not known. ``seconds`` is
    how long it has been so, and ``before`` the finite losses before it, both as far as they were
    watched. ``rank`` names the rank where others still have a finite loss.
    """

    value: str
    since: str
    seconds: float | None
    before: tuple[float, ...]
    reason: str
    member: TrainerView | ProcView
    rank: str = ""

    @property
    def word(self) -> str:
        """``loss nan``."""
        return f"loss {self.value}"

    @property
    def place(self) -> str:
        """``since step 812``."""
        return f"since {self.since}" if self.since else LASTS

    @property
    def brief(self) -> str:
        """``since step 812, for 17 s``."""
        return self.place + (f", for {age_text(self.seconds)}" if self.seconds is not None else "")

    @property
    def what(self) -> str:
        """``loss is nan``."""
        return f"loss{f' of {self.rank}' if self.rank else ''} is {self.value}"

    @property
    def text(self) -> str:
        """``loss is nan since step 812, for 17 s``."""
        return f"{self.what} {self.brief}"


def lost_loss(host: HostView, job: JobView, history: HistoryOf = no_history) -> LostLoss | None:
    """Return the loss of a running job that stays NaN or infinite, None where none does."""
    members = _living(job)
    for member in members:
        found = loss_of(host, member, history)
        if found is not None:
            others = any(
                one.number("loss") is not None
                for one in job.trainers
                if one.gone is None and one.definition.pid != member.definition.pid
            )
            trainer = _trainer_of(job, member)
            if not others or trainer is None:
                return found
            return replace(found, rank=name_of(trainer))
    return None


def loss_of(
    host: HostView, member: TrainerView | ProcView, history: HistoryOf = no_history
) -> LostLoss | None:
    """Return the loss of a trainer, or of the log of a process, that stays NaN or infinite."""
    told = told_loss(host, member)
    if told is None or not told[1].lasts or member.gone is not None:
        return None
    column, loss = told
    owner = member
    if isinstance(member, TrainerView) and column == "log_loss":
        process = by_id(host.processes, member.process)
        owner = process if process is not None else member
    past = history(owner.id, column, None)
    last = next((at for at in reversed(range(len(past))) if past.values[at] is not None), None)
    seconds = None
    if last is not None and last + 1 < len(past) and host.sampled_seconds is not None:
        seconds = max(0.0, host.sampled_seconds - past.seconds[last + 1])
    before: list[float] = []
    for value in past.values[: 0 if last is None else last + 1]:
        if value is not None and (not before or before[-1] != value):
            before.append(value)
    reason = getattr(owner.readings.get(column), "text", "")
    return LostLoss(loss.value, loss.since, seconds, tuple(before), reason, member)


def told_loss(host: HostView, member: TrainerView | ProcView) -> tuple[str, NotFinite] | None:
    """Return in which column a loss is told that is not finite, lasting or not, and what it is.

    Of a trainer it is its framework's, and if that tells none, its log's.
    """
    if isinstance(member, ProcView):
        loss = _not_finite(member.readings.get("log_loss"))
        return ("log_loss", loss) if loss is not None else None
    own = member.readings.get("loss")
    loss = _not_finite(own)
    if loss is not None:
        return "loss", loss
    if member.number("loss") is not None:
        return None
    process = by_id(host.processes, member.process)
    return told_loss(host, process) if process is not None and process.gone is None else None


def worst_told(host: HostView, members: Iterable[TrainerView | ProcView]) -> NotFinite | None:
    """Return the loss of one of these that is not finite now, one that stays so before others."""
    told = (told_loss(host, one) for one in members if one.gone is None)
    return max((one[1] for one in told if one is not None), key=lambda one: one.lasts, default=None)


def _not_finite(reading: object) -> NotFinite | None:
    return read_not_finite(reading.text) if isinstance(reading, Unknown) else None


def _living(job: JobView) -> Sequence[TrainerView | ProcView]:
    """Return the trainers of a job, and the processes in which none of them is."""
    inside = {one.process for one in job.trainers}
    alone = (one for one in job.processes if one.id not in inside)
    members: list[TrainerView | ProcView] = [*job.trainers, *alone]
    return [one for one in members if one.gone is None]


def _trainer_of(job: JobView, member: TrainerView | ProcView) -> TrainerView | None:
    pid = member.definition.pid
    return next((one for one in job.trainers if one.definition.pid == pid), None)
