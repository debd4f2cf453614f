"""Say since when a training that still runs has ended no step, and why: one answer for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..text.units import age_text, duration_text
from .pace import pace_of
from .stalls import find_stall

if TYPE_CHECKING:
    from ..store.view import JobView, TrainerView

TIMES_BEFORE = "The times below are of the steps before"
NO_LEDGER = "No table: every sampled minute includes part of the hang."


@dataclass(frozen=True)
class Standstill:
    """A trainer that ends no step, in words.

    ``since`` is ``stalled for 18 s`` where a stall is known, else ``no step``. ``behind`` says that
    this rank is one that the others wait for.
    """

    since: str
    why: str
    stalled: bool
    behind: bool
    usual_seconds: float | None

    @property
    def before(self) -> str:
        """Return of what its times are, in a sentence."""
        took = f": a median step took {self._usual}" if self.usual_seconds else ""
        return f"{TIMES_BEFORE}{took}."

    @property
    def sentences(self) -> str:
        """Return all that there is to say where no times are shown."""
        took = f" A median step took {self._usual} before." if self.usual_seconds else ""
        return f"{self.since[:1].upper()}{self.since[1:]}: {self.why}.{took}"

    @property
    def _usual(self) -> str:
        return duration_text(self.usual_seconds or 0.0)


def stands_still(trainer: TrainerView) -> bool:
    """Return whether a trainer that still runs ends no step: what is known of its time is past."""
    pace = pace_of([trainer])
    return trainer.gone is None and pace.stopped and bool(pace.text)


def standstill_of(trainer: TrainerView, job: JobView | None = None) -> Standstill | None:
    """Return since when a trainer that still runs has ended no step, and why; None if it steps."""
    if not stands_still(trainer):
        return None
    pace = pace_of([trainer])
    stall = find_stall(job.trainers) if job is not None else None
    if stall is None or stall.busy or pace.age_seconds is None:
        return Standstill("no step", pace.text, False, False, pace.usual_seconds)
    why = stall.text if stall.behind else stall.text.partition(": ")[2] or stall.text
    since = f"stalled for {age_text(pace.age_seconds)}"
    behind = any(one.key == trainer.key for one in stall.behind)
    return Standstill(since, why, True, behind, pace.usual_seconds)
