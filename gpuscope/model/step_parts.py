"""Say where the time of a job's steps goes, for all screens from the same source.

The time ledger and the probe's marks split a step in different ways: one by what the training
thread does, pauses included, the other by what the device does. Where there is a ledger, it alone
answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..store.view import HistoryOf, HostView, TrainerView, no_history
from ..text.units import percent_text, window_text
from .late_rank import LateRank, late_rank
from .pace import PARTS_STEPS
from .ranks import name_of
from .stalls import find_stall
from .standstill import stands_still
from .step_time import measured_step, shares_of, words_of
from .stragglers import MAX_RANKS
from .time_ledger import WORDS, TimeLedger, recent, until_last_step

COMPUTE = ("compute",)
LEAST_SHARE = 0.005
"""The least share of a step that is named."""
LEAST_SECONDS = 5.0
"""Of a wall clock that is shown: a shorter one is of its first look or two."""


class Reported(NamedTuple):
    """The rank of a job whose time is reported, and its ledger."""

    trainer: TrainerView
    ledger: TimeLedger


@dataclass(frozen=True, slots=True)
class StepParts:
    """The shares of a step, which add up to 1, the largest first.

    ``seconds`` are those of the step that they are shares of. ``words`` name them. ``basis`` says
    of which time and of which ranks they are. ``of_ledger``: pauses between steps are among them,
    and ``ledger`` has their lines of code. ``rank`` is the one of several that they are of.
    """

    shares: Mapping[str, float]
    words: Mapping[str, str]
    seconds: float | None
    basis: str
    of_ledger: bool
    ledger: TimeLedger | None = None
    rank: str = ""


def ledger_of_steps(trainer: TrainerView) -> TimeLedger:
    """Return the ledger that all screens show: of a trainer that hangs, that of the steps before.

    Else they would divide a step in one way here and in another there.
    """
    return until_last_step(trainer) if stands_still(trainer) else recent(trainer)


def covered_text(ledger: TimeLedger, stands: bool = False) -> str:
    """Return which time a ledger is of; where its trainer ``stands``, that ended a while ago."""
    window = window_text(round(ledger.seconds))
    return f"{window} up to the last step" if stands else f"last {window}"


def reported(ranks: Sequence[TrainerView], late: LateRank | None) -> Reported | None:
    """Return the rank whose ledger is shown first, None where no rank has one.

    That is the one that the others wait for, else the slowest. A ledger that has only just begun
    is left out, and one of too few looks.
    """
    told = [(t, ledger_of_steps(t)) for t in ranks[:MAX_RANKS] if t.minutes]
    told = [one for one in told if one[1].steps and one[1].sure and one[1].seconds >= LEAST_SECONDS]
    if not told:
        return None
    of_late = (one for one in told if late is not None and one[0].key == late.trainer.key)
    slowest = max(told, key=lambda one: one[1].step_seconds or 0.0)
    return Reported(*next(of_late, slowest))


class Passes(NamedTuple):
    """The share of a step that forward and backward take, and in ``text`` what it is made of."""

    share: float
    text: str
    of_ledger: bool


def passes_of(
    ranks: Sequence[TrainerView], history: HistoryOf = no_history, host: HostView | None = None
) -> Passes | None:
    """Return the share of forward and backward as :func:`step_parts` divides the time.

    A thread that reads a value waits until they are computed, so that this is part of it.
    """
    parts = step_parts(ranks, host, history)
    names = ("forward", "backward", "read") if parts is not None and parts.of_ledger else COMPUTE
    found = {n: s for n in names if parts is not None and (s := parts.shares.get(n))}
    if parts is None or not found:
        return None
    share, what = min(1.0, sum(found.values())), "forward and backward"
    if "read" in found:
        what = f"forward, backward and {parts.words['read']}"
    elif not parts.of_ledger and "other" not in parts.shares:
        what = "forward, backward and other code of the script"
    of = f" of {parts.rank}" if parts.rank else ""
    return Passes(share, f"{what} take {percent_text(share)} of each step{of}", parts.of_ledger)


def step_parts(
    ranks: Sequence[TrainerView], host: HostView | None = None, history: HistoryOf = no_history
) -> StepParts | None:
    """Return where the time of the steps of these ranks goes, None where that is not known.

    Of ranks that hang it is the time of the one that the others wait for, and of no other.
    """
    several = len(ranks) > 1
    stall = find_stall(ranks) if several else None
    hangs = stall.behind[:1] if stall is not None and not stall.busy else ()
    ranks = hangs or ranks
    late = late_rank(ranks, history, host) if len(ranks) > 1 else None
    found = reported(ranks, late)
    if found is not None:
        ledger = found.ledger
        rank = name_of(found.trainer) if several else ""
        of = f" of {rank}" if rank else ""
        return StepParts(
            {row.name: row.share for row in ledger.rows},
            WORDS,
            ledger.step_seconds,
            f"{covered_text(ledger, stands_still(found.trainer))}{of}",
            True,
            ledger,
            rank,
        )
    shares = shares_of(ranks)
    if not shares:
        return None
    rank = name_of(hangs[0]) if hangs else ""
    of = f" of {rank}" if rank else f", mean of {len(ranks)} ranks" if len(ranks) > 1 else ""
    basis = f"last {PARTS_STEPS} steps{of}"
    ranked = dict(sorted(shares.items(), key=lambda one: -one[1]))
    return StepParts(ranked, words_of(ranked), measured_step(ranks), basis, False, rank=rank)
