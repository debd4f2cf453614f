"""Whether it fits: by letting the simulated allocator run into the limit, as the real one would.

Below the peak that it reserves without a limit a training still fits as long as the allocator finds
what it can give back: it does so before it gives up (release and retry). So the limit is not
compared with a peak; the trace is replayed against it, with the prediction's error taken off, with
it added, and in between.

Scratch memory of cuDNN's convolutions is not missed where there is none: torch then takes the next
of the algorithms that cuDNN names for the convolution. On an H200 trainings ran under limits that
replays of their own requests ran into. What comes next, and how slow it is, nobody can foresee:
what fits only without scratch memory is too close to tell. And one failed although a replay of its
own requests fits: other scratch memory leaves other blocks behind it. So what fits must do so with
that memory, without it, and with somewhat more and less of it; what does not fit, with none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Word = Literal["fits", "too_close", "does_not_fit"]


@dataclass(frozen=True, slots=True)
class Try:
    """One replay against a limit."""

    fits: bool
    retries: int
    """Times that cached segments had to be given back first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``limit_bytes``: what torch's allocator may reserve on the card.

    ``spare_bytes``: limit less the peak that is reserved without one; below 0 it is what has to be
    given back, or is missing. ``retries``: as in :class:`Try`, in the replay that decided, where
    there was one and it fitted. ``spared``: it fits only if convolutions get by with less scratch
    memory than predicted, by algorithms that may be slower.
    """

    word: Word
    limit_bytes: int
    spare_bytes: int
    retries: int | None = None
    spared: bool = False


def decide(
    replay: Callable[[int], Try],
    peak_allocated: int,
    peak_reserved: int,
    limit: int,
    error_bytes: int,
    below_bytes: int | None = None,
    spared: Callable[[int], Try] | None = None,
    varied: Sequence[Callable[[int], Try]] = (),
) -> Verdict:
    """Decide whether a training fits under ``limit``.

    ``replay(limit)`` tries a limit in bytes, ``spared(limit)`` the same without the scratch memory
    of convolutions (None: there is none), those of ``varied`` with somewhat more of it, and less;
    the peaks are those without a limit. ``error_bytes``, ±, is how far the demand may be from what
    was predicted: fits means that it does with this much less, does not fit that it does not with
    this much more, or ``below_bytes`` more where the demand is less likely to be lower than higher.
    """
    below = error_bytes if below_bytes is None else below_bytes
    spare = limit - peak_reserved
    if spare >= error_bytes:
        return Verdict("fits", limit, spare, 0)
    if limit <= 0:
        return Verdict("does_not_fit", limit, spare)
    if limit - peak_allocated >= -below:
        # A little less room can make the allocator give back in time what a little more lets it
        # keep: one replay that fits says nothing of a limit beside it.
        limits = (limit - error_bytes, limit - error_bytes // 2, limit)
        tight = replay(limits[0])
        others = [(replay, at) for at in limits[1:]] + [
            (spared, at) for at in limits if spared is not None
        ]
        others += [(other, at) for other in varied for at in (limits[0], limit)]
        if tight.fits and all(again(at).fits for again, at in others):
            return Verdict("fits", limit, spare, tight.retries)
        # near its least, more room may not help
        for more in (below, 3 * below // 4, below // 2, below // 4, 0):
            ample = replay(limit + more)
            if ample.fits:
                return Verdict("too_close", limit, spare, ample.retries)
        for other in varied:
            if (ample := other(limit + below)).fits:
                return Verdict("too_close", limit, spare, ample.retries)
        if tight.fits:
            return Verdict("too_close", limit, spare, tight.retries)
    if spared is not None and (ample := spared(limit + below)).fits:
        return Verdict("too_close", limit, spare, ample.retries, spared=True)
    return Verdict("does_not_fit", limit, spare)
