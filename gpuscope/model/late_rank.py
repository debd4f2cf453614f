"""Judge, once for all surfaces, which rank of a job the others wait for and what that costs.

Two measurements tell of it: the parts of the last steps (:mod:`.stragglers`), and the samples of
the training threads (:mod:`.rank_times`). They see one difference in two ways: the parts say how
long the others wait in all, as soon as a minute of them is known; the samples say after some
seconds in which row of the clock the rank spends longer. So both together name one rank here, with
one gain, and a screen that has told of the rank promises no other gain for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from ..store.view import HistoryOf, HostView, TrainerView, no_history
from ..text.clock import MINUTE, clock_text
from ..text.units import duration_text, percent_text
from .look import T95
from .rank_times import Odd, odd_rank
from .ranks import median, name_of
from .stalls import find_stall
from .step_time import split_of, words_of
from .stragglers import (
    MAX_RANKS,
    HostPaced,
    Straggler,
    host_paced,
    lateness,
    own_seconds,
    straggler,
)
from .time_ledger import TimeLedger, recent

WARNED_SHARE = 0.15
"""A rank for which the others wait so much of a step is a warning, on whatever device it works."""
MAX_KEPT = 64


@dataclass(frozen=True, slots=True)
class LateRank:
    """The rank that the others wait for: ``seconds`` of a step, None where no step is timed.

    ``share`` is what of a step the job would win if this rank were as fast as the others, between
    ``low`` and ``high`` with 95 % confidence; these two are None where there were too few readings.
    ``slow`` is how the parts of the steps tell it, ``odd`` how the samples do; one is known at
    least. ``paced`` where its own GPU waits too: then nothing says what there is to gain.
    """

    trainer: TrainerView
    seconds: float | None
    share: float
    low: float | None
    high: float | None
    slow: Straggler | None
    odd: Odd | None
    paced: HostPaced | None = None

    @property
    def wall(self) -> float | None:
        """Since when, on the wall clock; None where that is not known."""
        return self.slow.wall if self.slow is not None else None

    @property
    def warns(self) -> bool:
        """Tell whether it is a warning, and not only worth a word."""
        return self.paced is None and self.share >= WARNED_SHARE

    @property
    def brief(self) -> str:
        """For a line of a table: ``the others wait for rank 3, 50 ms a step (9 %) since 14:02``."""
        begin, share = f"the others wait for {name_of(self.trainer)}", percent_text(self.share)
        since = f" since {clock_text(self.wall, MINUTE)}" if self.wall is not None else ""
        if self.seconds is None:
            return f"{begin}, {share} of the time{since}"
        gain = f" ({share})" if self.paced is None else ""
        return f"{begin}, {duration_text(self.seconds)} a step{gain}{since}"

    @property
    def text(self) -> str:
        """One line for people, without a full stop: who, how long, since when, and why."""
        return f"{self.brief}: {self.why}"

    @property
    def sentence(self) -> str:
        """The same as a whole sentence."""
        return f"{self.text[0].upper()}{self.text[1:]}."

    @property
    def why(self) -> str:
        """Return what it does longer than the others."""
        odd, slow = self.odd, self.slow
        if slow is None:
            assert odd is not None
            spent, usual = _of_row(odd)
            return f"it spends {spent} on {odd.work}, the others {usual}"
        own, usual = duration_text(slow.own_seconds), duration_text(slow.usual_seconds)
        words = words_of(split_of(slow.trainer))
        what, more = words[slow.mostly], slow.mostly_seconds
        if odd is not None and odd.seconds is not None and odd.usual_seconds is not None:
            # samples name the row and its line; the parts of a step know only what is no input
            excess = min(odd.seconds - odd.usual_seconds, slow.late_seconds)
            if 2 * excess >= slow.late_seconds:
                what, more = odd.work, excess
        work = f"its own work takes {own} a step without waits, theirs {usual}"
        return f"{work}, mostly {what} (+{duration_text(more)})"


def late_rank(
    ranks: Iterable[TrainerView],
    history: HistoryOf = no_history,
    host: HostView | None = None,
    ledgers: Mapping[str, TimeLedger] | None = None,
) -> LateRank | None:
    """Return the rank of a job that the others wait for, None where nobody is late or all hang.

    ``host`` has the wall clock and the GPUs. ``ledgers``, by the key of a rank, are those to judge
    by where they are not of the usual window.
    """
    living = [trainer for trainer in ranks if trainer.gone is None][:MAX_RANKS]
    if len(living) < 2 or find_stall(living) is not None:
        return None
    if ledgers is not None:
        return _judge(living, odd_rank(ledgers), history, host)
    # the panels of a screen ask one after another, and of 64 ranks an answer takes 25 ms
    key = *(one.key for one in living), host is None, history is no_history
    seen = *living, host
    kept = _judged.get(key)
    if kept is None or any(a is not b for a, b in zip(kept[0], seen, strict=True)):
        if len(_judged) >= MAX_KEPT:  # of jobs that have ended
            _judged.clear()
        kept = _judged[key] = seen, _judge(living, _recent_odd(living), history, host)
    return kept[1]


_judged: dict[tuple[object, ...], tuple[tuple[object, ...], LateRank | None]] = {}


def _judge(
    living: Sequence[TrainerView], odd: Odd | None, history: HistoryOf, host: HostView | None
) -> LateRank | None:
    slow = straggler(living, history, host)
    if slow is not None and odd is not None:
        # a pause between steps is in no part of a step: the larger of two differences tells
        same, more = odd.key == slow.trainer.key, odd.excess_share > slow.share
        if more and not (same and odd.row.inside):
            slow = None
        elif not same:
            odd = None
    if slow is None and odd is not None:
        slow = _by_parts(living, odd, history)
        if slow is None and _contradicted(living, odd):
            return None
    found = _by_steps(slow, odd) if slow is not None else _by_samples(living, odd)
    if found is None or host is None:
        return found
    return replace(found, paced=host_paced(host, found.trainer, history))


def _by_steps(slow: Straggler, odd: Odd | None) -> LateRank:
    share = slow.share
    low = high = None
    count = len(slow.shares)
    if count > 2:
        mean = sum(slow.shares) / count
        spread = sqrt(sum((one - mean) ** 2 for one in slow.shares) / (count - 1))
        most = T95[min(count - 2, len(T95) - 1)] * spread / sqrt(count)
        low, high = max(0.0, share - most), min(1.0, share + most)
    return LateRank(slow.trainer, slow.late_seconds, share, low, high, slow, odd)


def _by_samples(living: Sequence[TrainerView], odd: Odd | None) -> LateRank | None:
    if odd is None:
        return None
    trainer = next(one for one in living if one.key == odd.key)
    seconds = None
    if odd.seconds is not None and odd.usual_seconds is not None:
        seconds = odd.seconds - odd.usual_seconds
    low = max(0.0, odd.row.low - odd.most_share)
    high = max(odd.excess_share, odd.row.high - odd.least_share)
    return LateRank(trainer, seconds, odd.excess_share, low, high, None, odd)


def _by_parts(living: Sequence[TrainerView], odd: Odd, history: HistoryOf) -> Straggler | None:
    """Return by how much an odd rank works longer by the parts of its steps, None where not.

    A row that is no part of a step tells what these cannot.
    """
    if odd.row.inside is False:
        return None
    place = next(at for at, trainer in enumerate(living) if trainer.key == odd.key)
    found = lateness(living, place, history)
    if found is None or not (odd.row.inside or found.share >= odd.excess_share):
        return None
    return found


def _contradicted(living: Sequence[TrainerView], odd: Odd) -> bool:
    """Tell whether the parts of its steps show that an odd rank works shorter than the others."""
    if odd.row.inside is False:
        return False
    own = own_seconds([split_of(trainer) for trainer in living])
    place = next(at for at, trainer in enumerate(living) if trainer.key == odd.key)
    others = [seconds for at, seconds in own.items() if at != place]
    return place in own and bool(others) and own[place] < median(others)


_kept: dict[tuple[str, ...], tuple[tuple[object, ...], Odd | None]] = {}


def _recent_odd(living: Sequence[TrainerView]) -> Odd | None:
    """Return the odd rank by the window that all surfaces judge, found once for each minute."""
    told = [trainer for trainer in living if trainer.minutes]
    key, minutes = tuple(one.key for one in told), tuple(one.minutes for one in told)
    kept = _kept.get(key)
    if kept is None or any(a is not b for a, b in zip(kept[0], minutes, strict=True)):
        if len(_kept) >= MAX_KEPT:  # of jobs that have ended
            _kept.clear()
        kept = _kept[key] = minutes, odd_rank({one.key: recent(one) for one in told})
    return kept[1]


def _of_row(odd: Odd) -> tuple[str, str]:
    """Return what of a step, else of its time, an odd rank spends on its row, and the others."""
    if odd.seconds is None or odd.usual_seconds is None:
        return percent_text(odd.row.share), percent_text(odd.usual_share)
    return f"{duration_text(odd.seconds)} a step", duration_text(odd.usual_seconds)
