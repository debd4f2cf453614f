"""This module chooses round numbers for axes.

They are the same for every chart, so that neighbours line up.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from ...text.styled import Line, merged
from ...text.units import age_text, round_seconds


def time_ticks(
    window_seconds: float, width: int, ago_seconds: float = 0.0
) -> list[tuple[float, str]]:
    """Return the ticks of a time axis, as many as fit into ``width`` cells without touching.

    They are ``[(seconds before the end as a negative number, label)]``, oldest first, ending
    with ``(0, "now")``. With ``ago_seconds`` the end was so long before now, and labels count
    from now.
    """
    back = float(int(ago_seconds + 1e-6))  # whole seconds begun, as everywhere
    end = f"{_short(back)} ago" if back else "now"
    if not 0 < window_seconds <= LONGEST:
        return [(0.0, end)]
    steps = max(min(width // 14, 6), 1)
    step = round_seconds(max(window_seconds / steps, 1.0))
    ticks: list[tuple[float, str]] = [(0.0, end)]
    count = 1
    while count * step <= window_seconds * 1.0001:
        ticks.append((-count * step, "-" + _short(count * step + back)))
        count += 1
    if len(ticks) == 1:
        ticks.append((-window_seconds, "-" + _short(window_seconds + back)))
    return ticks[::-1]


LONGEST = 3.2e9
"""A century in seconds: a longer window has only its end named."""


def _short(seconds: float) -> str:
    """Return a time in few characters, such as ``"45s"``, ``"5m"`` or ``"2h"``.

    It has two units only where one would lie.
    """
    whole = round(seconds)
    if whole < 120 or whole % 60:
        return f"{whole}s" if whole < 600 else age_text(whole).replace(" ", "")
    if whole < 7200 or whole % 3600:
        return f"{whole // 60}m"
    return f"{whole // 3600}h"


def nice_step(span: float, ticks: int) -> float:
    """Return the 1, 2, 2.5 or 5 × 10ⁿ that divides ``span`` into at most ``ticks`` parts.

    ``span`` is above 0 and finite.
    """
    raw = span / max(ticks, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1, 2, 2.5, 5, 10):
        if factor * power >= raw * 0.999999:
            return factor * power
    return 10 * power


def round_end(newest: float, parts: int = 8) -> float:
    """Return where the axis of a curve that still grows ends.

    It is the next of about ``parts`` round steps after ``newest``. The axis then stays as it is
    while the curve grows into it, and need not be drawn again for every point.
    """
    if not 0 < newest < math.inf:
        return newest
    step = nice_step(newest, parts)
    return math.ceil(newest / step) * step


SMALLEST = 1e-290
"""A shorter axis has no labels: its steps cannot be counted in floating point."""


def value_ticks(low: float, high: float, height: int) -> list[tuple[float, str]]:
    """Return ``[(value, label)]`` from bottom to top for an axis of ``height`` rows.

    They are the ends of the axis and round values between them, at least two rows apart.
    """
    span = high - low
    if not span > SMALLEST or not math.isfinite(span):
        return []
    step = nice_step(span, max(min((height - 1) // 2, 4), 1))
    digits = _digits(step)
    ticks = []
    value = math.ceil(low / step - 1e-9) * step
    while value <= high + step * 1e-9:
        ticks.append((value, label_of(value, digits)))
        value += step
    if ticks and high - ticks[-1][0] > step * 1e-9:  # the axis always names its end
        row = span / max(height - 1, 1)
        if high - ticks[-1][0] < 2 * row and len(ticks) > 1:
            ticks.pop()
        ticks.append((high, label_of(high, digits)))
    return ticks


ROUND = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
"""Leading digits of a step that is easy to count in."""


def even_ticks(
    low: float, high: float, rows: int, shares: bool = False
) -> tuple[list[tuple[float, str]], int]:
    """Return ticks that are whole rows apart, and how many of ``rows`` the axis then takes.

    They are ``[(value, label)]`` from bottom to top: the ends, ``rows`` apart, and as many round
    values between them as are equally many rows apart, at least two. An axis gives up one row
    where only then there are any between. ``shares`` are halves or quarters of a capacity,
    whatever their values, with labels rounded by less than a hundredth of it.
    """
    span = high - low
    if not span > SMALLEST or not math.isfinite(span):
        return [], rows
    best = (0, 0, 1)
    for taken in (rows, rows - 1):
        for parts in (4, 2) if shares else range(min(taken // 2, 5), 1, -1):
            if taken >= parts * 2 and taken % parts == 0 and (shares or _is_round(span / parts)):
                best = max(best, (1, taken, parts))
    between, taken, parts = best
    digits, ends = _digits(span / parts), (low, high)
    if shares:
        digits = 0 if high >= 10 else 1 if high >= 1 else 2
        quarters = [high * part / parts for part in range(parts + 1)]
        digits += any(abs(value - round(value, digits)) > high / 100 for value in quarters)
    while not shares and digits < 9 and any(abs(x - round(x, digits)) > span / 1e6 for x in ends):
        digits += 1
    ticks = [low + span * part / parts for part in range(parts)] + [high]
    return [(value, label_of(value, digits)) for value in ticks], taken if between else rows


def _is_round(step: float) -> bool:
    leading = step / 10.0 ** math.floor(math.log10(step) + 1e-9)
    return any(abs(leading - one) < 1e-6 for one in ROUND)


def _digits(step: float) -> int:
    """Return how many digits after the point the multiples of a step have, two of its own."""
    digits: int = max(0, -math.floor(math.log10(step) + 1e-9))
    return digits + int(abs(step * 10**digits - round(step * 10**digits)) > 1e-6)


def label_of(value: float, digits: int) -> str:
    """Return a short number: ``"140"``, ``"0.25"``, ``"1.2e+08"``."""
    if value == 0:
        return "0"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        return f"{value:.1e}".replace("e+0", "e").replace("e-0", "e-").replace(".0e", "e")
    return f"{value:.{digits}f}"


def time_axis(
    window_seconds: float, margin: int, inner: int, ago_seconds: float = 0.0, base: str = ""
) -> list[Line]:
    """Return the two lines under a chart: the axis with its ticks, and the labels.

    The labels at the left of the chart take ``margin`` cells; ``base`` is the one of the axis.
    """
    axis = ["─"] * inner
    labels = [" "] * (margin + 1 + inner)
    for seconds, label in reversed(time_ticks(window_seconds, inner, ago_seconds)):
        at = (
            round((inner - 1) * (1 + seconds / window_seconds)) if window_seconds > 0 else inner - 1
        )
        first = min(max(margin + 1 + at - len(label) // 2, 0), len(labels) - len(label))
        around = labels[max(first - 1, 0) : first + len(label) + 1]
        if 0 <= at < inner and all(char == " " for char in around):
            axis[at] = "┬"
            labels[first : first + len(label)] = label
    return [
        [(base.rjust(margin), "muted"), ("└" + "".join(axis), "faint")],
        [("".join(labels), "muted")],
    ]


def mark_unknown(line: Line, places: Collection[int], marker: str) -> Line:
    """Return a line with a marker in those of its cells that are blank or axis."""
    chars = [(char, spec) for text, spec in line for char in text]
    return merged(
        (marker, "faint") if place in places and char in " ─" else (char, spec)
        for place, (char, spec) in enumerate(chars)
    )


FITTED_SECONDS = (15.0, 30.0)
"""Charts of a minute show less, as long as no more is known: they do not begin empty."""


def fitted_seconds(known: float, usual: float) -> float:
    """Return the seconds that a chart shows: fewer than usual as long as less is known."""
    return next((one for one in FITTED_SECONDS if known <= one), usual)
