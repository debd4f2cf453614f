"""Compare where the ranks of a job spend their time, and name the one that the others wait for.

Ranks of a job step together, so a rank that works longer makes the others wait: in collectives, in
the backward pass that contains them, or where a value is read. Those rows say who waits; the others
say who is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..text.process_name import short_place
from ..wire.clean import clean
from .ranks import median
from .time_cause import Cause
from .time_ledger import Row, TimeLedger, interval

WAITING = frozenset(("communication", "backward", "read", "unattributed", "collection"))
"""Rows in which a rank may wait for others."""
LEAST_SHARE = 0.05
"""A rank is odd if a row takes this much more of its time than of the others'."""


@dataclass(frozen=True, slots=True)
class Odd:
    """A rank that spends longer on a row than the others, which wait for it.

    ``seconds`` of a step go into that row, of the others ``usual_seconds``; None without steps.
    The shares of the others are between ``least_share`` and ``most_share`` with 95 % confidence.
    """

    key: str
    row: Row
    usual_share: float
    least_share: float
    most_share: float
    seconds: float | None
    usual_seconds: float | None

    @property
    def work(self) -> str:
        """Name the row, with the line of code that most of its time goes to where that is known."""
        line, spent = self.row.places[0] if self.row.places else ("", 0.0)
        where = short_place(clean(line, 120)) if 2 * spent >= self.row.seconds else ""
        return f"{self.row.words} at {where}" if where else self.row.words

    @property
    def excess_share(self) -> float:
        """How much more of its time goes into the row: this is what the others wait for."""
        return self.row.share - self.usual_share


def odd_rank(ledgers: Mapping[str, TimeLedger]) -> Odd | None:
    """Return the rank that differs most on a row of work, None where none differs for sure.

    It does where the interval of its share lies above those of all other ranks.
    """
    sure = {key: ledger for key, ledger in ledgers.items() if ledger.sure}
    best: tuple[float, Odd] | None = None
    for key, ledger in sure.items():
        others = [other for name, other in sure.items() if name != key]
        for row in ledger.rows if others else ():
            if row.name in WAITING:
                continue
            same = [_row(other, row.name) for other in others]
            usual = median(one.share for one in same)
            excess = row.share - usual
            above = all(row.low > one.high for one in same)
            if above and excess >= LEAST_SHARE and (best is None or excess > best[0]):
                step = ledger.step_seconds
                seconds = step * row.share if step is not None else None
                usual_seconds = step * usual if step is not None else None
                least, most = min(one.low for one in same), max(one.high for one in same)
                best = excess, Odd(key, row, usual, least, most, seconds, usual_seconds)
    return best[1] if best is not None else None


def evened_out(causes: Iterable[Cause], odd: Odd | None, most: float = 1.0) -> tuple[Cause, ...]:
    """Return the causes of a job's odd rank, what brings most first.

    The other ranks spend time on the odd row too, so a cure of this rank wins no more than the
    difference, nor more than ``most``: that is for how much of a step the others wait for it.
    """
    out = [_evened(cause, odd, most) if odd is not None else cause for cause in causes]
    return tuple(sorted(out, key=lambda one: (-one.share, one.name)))


def _evened(cause: Cause, odd: Odd, most: float) -> Cause:
    row, share = cause.clock, min(odd.excess_share, most)
    if row is None or row.name != odd.row.name:
        return cause
    if cause.share <= share:
        return replace(cause, high=min(most, cause.high), usual_share=odd.usual_share)
    low = max(0.0, min(cause.low, odd.row.low) - odd.most_share)
    high = min(most, max(share, min(cause.high, odd.row.high) - odd.least_share))
    usual = odd.usual_share
    return replace(cause, share=share, low=min(low, share), high=high, usual_share=usual)


def _row(ledger: TimeLedger, name: str) -> Row:
    for row in ledger.rows:
        if row.name == name:
            return row
    return Row(name, 0.0, 0, 0.0, *interval(0.0, ledger.looks))
