"""Where the time of a step went, minute by minute, as layers of a chart.

A row has the same colour in the table and in the chart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...model.step_colours import REST, tokens_of_rows
from ...model.time_ledger import WORDS, TimeLedger, read
from ...store.time_minutes import Minute
from ..charts.stack_columns import Layer

POINT_SECONDS = 5.0
"""A minute is drawn as points so far apart: the chart takes a longer pause for a gap."""
NANOSECONDS, MINUTE_SECONDS = 1e9, 60.0


def tokens_of(ledger: TimeLedger) -> dict[str, str]:
    """Return the colour of each row; those without one of their own share one."""
    return tokens_of_rows([row.name for row in ledger.whole])


def layers(minutes: Sequence[Minute], tokens: Mapping[str, str]) -> tuple[list[Layer], list[float]]:
    """Return the rows of each minute in nanoseconds a step, and the moments they are for.

    The row that takes most is at the bottom. A minute without a step is unknown.
    """
    moments: list[float] = []
    spent: dict[str, list[float | None]] = {name: [] for name in tokens}
    for minute in minutes:
        ledger = read({"minutes": [minute]})
        m = minute.get("m")
        if not isinstance(m, int) or not ledger.seconds:
            continue
        each = {row.name: row.seconds / ledger.steps for row in ledger.rows} if ledger.steps else {}
        points = max(int(ledger.seconds / POINT_SECONDS), 1)
        moments += [m / 1e9 + ledger.seconds * at / points for at in range(points + 1)]
        for name, values in spent.items():
            value = each.get(name, 0.0) * NANOSECONDS if ledger.steps else None
            values += [value] * (points + 1)
    out: list[Layer] = []
    rest: dict[str, list[float | None]] = {}
    for name, values in spent.items():
        if tokens[name] == REST:
            rest[WORDS.get(name, name)] = values
        else:
            out.append(Layer(tokens[name], WORDS.get(name, name), values))
    if rest:
        summed = [_sum(one) for one in zip(*rest.values(), strict=True)]
        out.append(Layer(REST, _together(rest), summed))
    return out, moments


def courses(minutes: Sequence[Minute], count: int) -> dict[str, list[float | None]]:
    """Return the seconds a step of each row in the last ``count`` minutes.

    It is None for a minute without a step, and for one that is missing between others.
    """
    starts = [minute["m"] / NANOSECONDS for minute in minutes]
    ages = [round((starts[-1] - start) / MINUTE_SECONDS) for start in starts]
    shown = [(age, read({"minutes": [m]})) for age, m in zip(ages, minutes, strict=True)]
    shown = [(age, ledger) for age, ledger in shown if 0 <= age < count]
    names = {row.name for _, ledger in shown for row in ledger.whole}
    length = max((age for age, _ in shown), default=-1) + 1
    out: dict[str, list[float | None]] = {name: [None] * length for name in names}
    for age, ledger in shown:
        each = {row.name: row.seconds / ledger.steps for row in ledger.whole if ledger.steps}
        for name, values in out.items():
            values[length - 1 - age] = each.get(name, 0.0) if ledger.steps else None
    return out


def _together(rest: Mapping[str, Sequence[float | None]]) -> str:
    """Return the name of rows that are one layer: the largest, and the other or how many others."""
    sums = {words: sum(value or 0.0 for value in values) for words, values in rest.items()}
    known = sorted((w for w in sums if sums[w]), key=lambda w: -sums[w]) or list(sums)
    if len(known) < 3:
        return " + ".join(known)
    return f"{known[0]} + {len(known) - 1} others"


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
