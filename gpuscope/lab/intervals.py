"""Compute the 95 % intervals on which the Lab's comparisons rest.

Intervals of ratios are computed on logarithms, because the question is "how many times": 2 × and
½ × are equally far from 1 ×. Only the standard library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ..probe.steps import CONFIDENCE
from ..text.units import DASH

_WIDER = 1.1412
"""The quotient of two quantiles of the normal distribution, for √0.95 and for 0.95. Two 95 %
intervals that are widened by it both hold at once with 95 % (Šidák).
"""


WIDEST = 2.0
"""An interval that reaches further than so many times its ratio says nothing of it."""
MANY_REPEATS = 100
"""More repeats than this are not advised: a quieter machine helps sooner."""


class Interval(NamedTuple):
    """A mean or a ratio with its 95 % interval.

    ``low`` and ``high`` are None if the spread is unknown.
    """

    middle: float
    low: float | None
    high: float | None


def ratio_text(ratio: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a ratio with its interval: ``1.84 × [1.79, 1.90]``.

    Of a wide one the ratio is not told: the mean of two pairs that differ tenfold is that of none.
    """
    if ratio is None:
        return DASH
    if is_wide(ratio, low, high):
        return noise_text(low, high)
    middle, *ends = ratio_figures(ratio, low, high)
    return f"{middle} × [{', '.join(ends)}]" if ends else f"{middle} ×"


def is_wide(ratio: float | None, low: float | None, high: float | None) -> bool:
    """Return whether an interval reaches :data:`WIDEST` times its ratio, or a part as small."""
    if ratio is None or low is None or high is None:
        return False
    return high > ratio * WIDEST or low * WIDEST < ratio


def noise_text(low: float | None, high: float | None) -> str:
    """Return that an interval is too wide to say anything, such as ``too noisy (0.30–6.0)``."""
    return f"too noisy ({_rough(low or 0.0)}–{_rough(high or 0.0)})"


def _rough(value: float) -> str:
    if value >= 1000:
        return ">999"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def repeats_wanted(interval: Interval, repeats: int) -> int | None:
    """Return with how many repeats a wide interval would be narrow, if they vary as these do.

    None for more than :data:`MANY_REPEATS`.
    """
    middle, low, high = interval
    if low is None or high is None or repeats < 2:
        return None
    reach = max(math.log(high / middle), math.log(middle / low)) if low > 0 else math.inf
    each = reach * math.sqrt(repeats) / t_quantile(repeats - 1)
    return next(
        (
            n
            for n in range(repeats + 1, MANY_REPEATS + 1)
            if t_quantile(n - 1) * each / math.sqrt(n) <= math.log(WIDEST)
        ),
        None,
    )


def ratio_figures(ratio: float, low: float | None, high: float | None) -> list[str]:
    """Return a ratio and the ends of its interval, if they say anything, with equal decimals.

    There are three decimals where two would not show how wide the interval is.
    """
    if low is None or high is None or is_wide(ratio, low, high):
        values = [ratio]
    else:
        values = [ratio, low, high]
    close = len(values) > 1 and max(values) - min(values) < 0.02
    digits = 3 if close or min(values) < 0.095 else 2
    return [f"{one:.{digits}f}" if 0.001 <= one < 1000 else f"{one:.1e}" for one in values]


def of_mean(values: Sequence[float]) -> Interval:
    """Return the mean of one value or more with its 95 % interval, by Student's t.

    A single value has no interval.
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, None, None)
    error = math.sqrt(_variance(values, mean) / len(values)) * t_quantile(len(values) - 1)
    return Interval(mean, mean - error, mean + error)


def paired(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Return the geometric mean of ``b[i] / a[i]`` for runs that were interleaved in pairs.

    All values are above 0. The interval is Student's t over the logarithms of the ratios, so
    anything that slows both runs of a pair (a warm machine, another job) cancels out. A single pair
    has no interval.
    """
    return of_ratios([right / left for left, right in zip(a, b, strict=True)])


def of_ratios(values: Sequence[float]) -> Interval:
    """Return the geometric mean of ratios above 0, as :func:`of_mean` does for other values."""
    return _from_logarithms(of_mean([math.log(value) for value in values]))


def separate(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Return the ratio of two geometric means for runs that are not in pairs.

    The interval is Welch's t over the logarithms, with Satterthwaite's degrees of freedom. There is
    none unless both sides have two runs or more.
    """
    logs = [[math.log(value) for value in values] for values in (a, b)]
    means = [math.fsum(values) / len(values) for values in logs]
    mean = means[1] - means[0]
    if min(len(values) for values in logs) < 2:
        return Interval(b[0] / a[0] if len(a) == len(b) == 1 else math.exp(mean), None, None)
    error = _error(logs, [len(values) for values in logs])
    return _from_logarithms(Interval(mean, mean - error, mean + error))


def widened(found: Interval, a: Sequence[float], b: Sequence[float], runs: int) -> Interval:
    """Return the interval of a ratio of ``runs`` runs, no narrower than all runs of each side vary.

    ``a`` and ``b`` have more runs than those of the ratio. Few pairs agree by chance more easily
    than all of these do.
    """
    if min(len(a), len(b)) < 2 or found.low is None or found.high is None:
        return found
    logs = [[math.log(value) for value in values] for values in (a, b)]
    factor = _exp(_error(logs, [runs, runs]))
    low, high = min(found.low, found.middle / factor), max(found.high, found.middle * factor)
    return Interval(found.middle, low, high)


def _error(logs: Sequence[Sequence[float]], counts: Sequence[int]) -> float:
    """Return the half of Welch's interval for the difference of the means of so many values."""
    parts = [
        _variance(values, math.fsum(values) / len(values)) / count
        for values, count in zip(logs, counts, strict=True)
    ]
    total = sum(parts)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True)
    )
    return math.sqrt(total) * t_quantile(freedom)


def of_medians(a: tuple[float, float, float], b: tuple[float, float, float]) -> Interval:
    """Return the ratio of two medians, each ``(median, low, high)``.

    Their 95 % intervals come from order statistics of the steps of one run. Both are widened so
    that both hold at once with 95 %. The quotient of their ends is then an interval of the
    quotient, a wide one, on the safe side. Steps are assumed to be independent of each other.
    """
    (a_low, a_high), (b_low, b_high) = _widened(a), _widened(b)
    ratio = b[0] / a[0]
    return Interval(ratio, min(b_low / a_high, ratio), max(b_high / a_low, ratio))


def _widened(median: tuple[float, float, float]) -> tuple[float, float]:
    middle, low, high = median
    return middle * (low / middle) ** _WIDER, middle * (high / middle) ** _WIDER


def scatter(values: Sequence[float]) -> float:
    """Return the standard deviation of the logarithms of values above 0; 0 for fewer than two."""
    logs = [math.log(value) for value in values]
    return math.sqrt(_variance(logs, math.fsum(logs) / len(logs))) if len(logs) > 1 else 0.0


def _variance(values: Sequence[float], mean: float) -> float:
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _from_logarithms(found: Interval) -> Interval:
    low, high = (None if end is None else _exp(end) for end in found[1:])
    return Interval(_exp(found.middle), low, high)


def _exp(value: float) -> float:
    """Return the exponential, capped so that a very large spread gives no error."""
    return math.exp(min(value, 700.0))


# ── Student's t ───────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=1024)
def t_quantile(freedom: float) -> float:
    """Return t such that :data:`CONFIDENCE` of Student's distribution lies between −t and t.

    ``freedom`` is its degrees of freedom (≥ 0.5, need not be whole). The result is right to
    1e-10 of itself.
    """
    low, high = 0.0, 1.0
    while _within(high, freedom) < CONFIDENCE:
        low, high = high, high * 2
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: float) -> float:
    """Return the share of Student's distribution between −t and t: 1 − I(ν / (ν + t²); ν/2, ½)."""
    return 1.0 - _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function by its continued fraction.

    See Abramowitz and Stegun 26.5.8.
    """
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the other tail's fraction converges faster
        return 1.0 - _incomplete_beta(1.0 - x, b, a)
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return math.exp(log_front) / a / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """Return 1 + d₁/(1 + d₂/(1 + …)), computed from the inside.

    200 terms are far more than any argument here needs.
    """
    value = 1.0
    for index in range(200, 0, -1):
        m = index // 2
        if index % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1.0 + d / value
    return value
