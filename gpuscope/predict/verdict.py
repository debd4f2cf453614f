"""Decide whether a training fits, by replaying its trace in an allocator with a limit.

A training may fit in less memory than the peak that it reserves without a limit, because the real
allocator frees its cache and tries again before it gives up. So the limit is not compared with a
peak. The trace is replayed against the limit, against the limit less the prediction's error, plus
that error, and at points in between.

A convolution of cuDNN does not fail if its scratch memory is refused. torch then takes the next
algorithm that cuDNN suggests. On an H200 some trainings ran under limits at which a replay of their
own requests failed. Which algorithm comes next, and how slow it is, cannot be predicted, so a
training that fits only without scratch memory is called too close. The reverse was seen too: one
training failed although a replay of its own requests fits, because with other scratch memory other
blocks stay in the cache. So "fits" requires that replays fit with that memory, without it, and with
somewhat more and less of it, and "does not fit" requires that the replay without it fails too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["fits", "too_close", "does_not_fit"]


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay against a limit."""

    fits: bool
    retries: int
    """How often cached segments had to be freed first."""


@dataclass(frozen=True, slots=True)
class FitVerdict:
    """The answer whether a training fits, with the figures that it rests on.

    ``limit_bytes`` is what torch's allocator may reserve on the card. ``spare_bytes`` is that limit
    less the peak that would be reserved without a limit. If it is negative, that much has to be
    freed, or is missing. ``retries`` is that of the replay that decided, as in :class:`Replay`, if
    there was one and it fitted. ``without_scratch`` says that the training fits only if
    convolutions use less scratch memory than predicted, with algorithms that may be slower.
    """

    outcome: Outcome
    limit_bytes: int
    spare_bytes: int
    retries: int | None = None
    without_scratch: bool = False


def decide(
    replay: Callable[[int], Replay],
    peak_allocated: int,
    peak_reserved: int,
    limit: int,
    error_bytes: int,
    below_bytes: int | None = None,
    without_scratch: Callable[[int], Replay] | None = None,
    varied: Sequence[Callable[[int], Replay]] = (),
) -> FitVerdict:
    """Decide whether a training fits under ``limit``.

    ``replay(limit)`` tries a limit in bytes. ``without_scratch(limit)`` does so without the scratch
    memory of convolutions; it is None if there is none. The functions of ``varied`` do so with
    somewhat more and somewhat less of it. The peaks are those without a limit. ``error_bytes`` is
    how far the demand may be above or below the prediction. "fits" means that the training fits
    even with this much less memory, and "does_not_fit" that it does not fit even with this much
    more. ``below_bytes`` replaces it there, if the demand may be lower by another amount than
    higher.
    """
    below = error_bytes if below_bytes is None else below_bytes
    spare = limit - peak_reserved
    if spare >= error_bytes:
        return FitVerdict("fits", limit, spare, 0)
    if limit <= 0:
        return FitVerdict("does_not_fit", limit, spare)
    if limit - peak_allocated >= -below:
        # With a little less memory the allocator may free a block early that it keeps with a little
        # more. So one replay that fits proves nothing about a limit close to it.
        limits = (limit - error_bytes, limit - error_bytes // 2, limit)
        tight = replay(limits[0])
        others = [(replay, at) for at in limits[1:]] + [
            (without_scratch, at) for at in limits if without_scratch is not None
        ]
        others += [(other, at) for other in varied for at in (limits[0], limit)]
        if tight.fits and all(again(at).fits for again, at in others):
            return FitVerdict("fits", limit, spare, tight.retries)
        # close to the least memory in which it runs, more memory may not help
        for more in (below, 3 * below // 4, below // 2, below // 4, 0):
            ample = replay(limit + more)
            if ample.fits:
                return FitVerdict("too_close", limit, spare, ample.retries)
        for other in varied:
            if (ample := other(limit + below)).fits:
                return FitVerdict("too_close", limit, spare, ample.retries)
        if tight.fits:
            return FitVerdict("too_close", limit, spare, tight.retries)
    if without_scratch is not None and (ample := without_scratch(limit + below)).fits:
        return FitVerdict("too_close", limit, spare, ample.retries, without_scratch=True)
    return FitVerdict("does_not_fit", limit, spare)
