"""Find the largest batch that fits, with few traces.

The search replays scaled traces, and then traces the batch that it found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .batch_scaling import Family, family
from .trace import Trace

MOST = 1 << 20
"""Limit of the samples, which is more than the toggle allows."""
ROUNDS = 3
"""How many batches are traced at most, after the two traces that give the law."""
BELOW = 8
"""How many smaller batches must fit as well, at most; usually it is a tenth of the answer."""

Fits = Callable[[Trace, int], bool]
"""Replays a trace against the limit plus this many bytes, which may be negative."""
Error = Callable[[Trace], tuple[int, int]]
"""Returns by how many bytes the demand of a trace may be higher, and by how many lower."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest batch that was found, with its range.

    ``batch`` is the number of samples in a micro-batch, 0 if not even one fits. ``low`` and
    ``high`` are the answers if the demand is higher or lower than predicted by the error bar.
    ``traced`` says whether ``batch`` itself was traced and fits, or only follows from the law.
    ``most`` says that this many fit and that more were not tried.
    """

    batch: int
    low: int
    high: int
    traced: bool
    most: bool = False


def search(fits: Callable[[int], bool], start: int, most: int = MOST) -> int:
    """Return the largest batch for which ``fits`` is true, or 0 if it is false even for 1.

    Above that batch ``fits`` must always be false. The search begins at ``start``, doubles or
    halves until it has enclosed the answer, and then bisects.
    """
    good, bad = 0, most + 1
    batch = max(1, min(start, most))
    while bad - good > 1:
        if fits(batch):
            good = batch
        else:
            bad = batch
        if bad > most:
            batch = min(2 * good, most) if good < most else most
            if good == most:
                break
        else:
            batch = bad // 2 if good == 0 else (good + bad) // 2
            batch = max(batch, good + 1)
    return good


def find(
    trace: Callable[[int], Trace],
    fits: Fits,
    batch: int,
    error_of: Error,
    in_time: Callable[[], bool] = lambda: True,
    guess: Callable[[int, Trace, int, Trace], int] | None = None,
    most: int = MOST,
) -> Largest:
    """Search for the largest batch that fits.

    ``trace(batch)`` traces a batch; that of ``batch`` exists already, so asking for it again is
    cheap. ``error_of(trace)`` returns how many bytes more its demand may be, and how many fewer.
    ``guess(batch, trace, batch, trace)`` estimates the answer from two traces, for traces that
    follow no law. More than ``most`` are not tried. Exceptions of ``trace`` are passed on.
    """
    other = batch // 2 if batch > 2 else batch + 2
    law = _law(trace, batch, other)
    if law is None:
        start = guess(batch, trace(batch), other, trace(other)) if guess else batch
        return _stepwise(trace, fits, max(1, min(start, most)), error_of, in_time, most)
    found, traced = _most(law, fits, 0, batch, most), False
    for _ in range(ROUNDS):
        if found in (0, most) or not in_time():
            break
        real = trace(found)
        near = family(law.low, law.low_batch, real, found) or _law(
            trace, found, max(1, found - max(1, found // 8))
        )
        if near is None:
            break
        law, before = near, found
        found = _most(law, fits, 0, found, most)
        traced = found == before
        if traced:
            break
    return _ranged(law, fits, found, traced, error_of, most)


def _law(trace: Callable[[int], Trace], one: int, other: int) -> Family | None:
    return family(trace(one), one, trace(other), other)


def _most(law: Family, fits: Fits, room: int, start: int, most: int) -> int:
    def tried(batch: int) -> bool:
        return fits(law.at(batch), room)

    return steady(tried, search(tried, start, most))


def steady(fits: Callable[[int], bool], found: int) -> int:
    """Return ``found``, which fits, if the batches just below it fit as well.

    Otherwise return the first batch below those that do not fit.

    Which blocks an allocator finds free depends on all earlier sizes, so a batch may fit although a
    smaller one does not. On an H200, bisection ended at 36 samples for a model, and 37 did not fit.
    Replays agree, and say that 40 would fit.
    """
    batch, confirmed = found - 1, 0
    while batch >= 1 and confirmed < min(BELOW, max(1, found // 10)):
        if fits(batch):
            confirmed += 1
        else:
            found, confirmed = batch - 1, 0
        batch -= 1
    return found


def _ranged(
    law: Family, fits: Fits, found: int, traced: bool, error_of: Error, most: int
) -> Largest:
    more, less = error_of(law.at(max(found, 1)))
    low = _most(law, fits, -more, found, most) if found else 0
    high = _most(law, fits, less, max(1, found), most)
    return Largest(found, min(low, found), max(high, found), traced, found >= most)


def _stepwise(
    trace: Callable[[int], Trace],
    fits: Fits,
    batch: int,
    error_of: Error,
    in_time: Callable[[], bool],
    most: int,
) -> Largest:
    """Search by tracing every batch, because traces that differ in more than sizes follow no law.

    If the time runs out, the answer is the largest batch that was seen to fit, and ``high`` is the
    smallest that was not.
    """
    seen: dict[int, bool] = {}

    def tried(size: int) -> bool:
        if size not in seen:
            if not in_time():
                raise _OutOfTime
            seen[size] = fits(trace(size), 0)
        return seen[size]

    try:
        found = _around(tried, batch, most)
        answer = Largest(found, found, found, True, found >= most)
        more, _ = error_of(trace(max(found, 1)))
        low = next(
            (size for size in range(found, 0, -1) if size in seen and fits(trace(size), -more)), 0
        )
        return replace(answer, low=low)
    except _OutOfTime:
        good = max((size for size, fitted in seen.items() if fitted), default=0)
        bad = min((size for size, fitted in seen.items() if not fitted), default=most + 1)
        return Largest(good, good, bad - 1, good > 0)


def _around(fits: Callable[[int], bool], start: int, most: int = MOST) -> int:
    """Search as :func:`search` does, from a start that is likely to be close to the answer.

    The steps grow from a thirtieth of it.
    """
    step = max(1, start // 30)
    good, bad = (start, 0) if fits(start) else (0, start)
    while not (good and bad) and good < most and bad != 1:
        batch = min(most, good + step) if good else max(1, bad - step)
        if fits(batch):
            good = batch
        else:
            bad = batch
        step *= 2
    bad = bad or most + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


class _OutOfTime(Exception):
    pass
