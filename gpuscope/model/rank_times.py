"""Compare where the ranks of a job spend their time, and name the one that the others wait for.

Ranks of a job step together, so a rank that works longer makes the others wait: in collectives, in
the backward pass that contains them, or where a value is read. Those rows say who waits; the others
say who is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .ranks import median
from .time_ledger import Row, TimeLedger, interval

WAITING = frozenset(("communication", "backward", "read", "unattributed", "collection"))
"""Rows in which a rank may wait for others."""
LEAST_SHARE = 0.05
"""A rank is odd where a row takes so much more of its time than of the others'."""


@dataclass(frozen=True, slots=True)
class Odd:
    """A rank that spends longer on a row than the others, which wait for it.

    ``seconds`` of a step go into that row, of the others ``usual_seconds``; None without steps.
    """

    key: str
    row: Row
    usual_share: float
    seconds: float | None
    usual_seconds: float | None


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
                best = excess, Odd(key, row, usual, seconds, usual_seconds)
    return best[1] if best is not None else None


def _row(ledger: TimeLedger, name: str) -> Row:
    for row in ledger.rows:
        if row.name == name:
            return row
    return Row(name, 0.0, 0, 0.0, *interval(0.0, ledger.looks))
