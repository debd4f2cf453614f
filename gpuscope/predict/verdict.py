"""Whether it fits: by letting the simulated allocator run into the limit, as the real one would.

Below the peak that it reserves without a limit a training still fits as long as the allocator finds what it can give
back: it does so before it gives up (release and retry). So the limit is not compared with a peak; the trace is replayed
against it, once with the prediction's error taken off and once with it added.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """``limit_bytes``: what torch's allocator may reserve on the card. ``spare_bytes``: limit less the peak that is
    reserved without one; below 0 it is what has to be given back, or is missing. ``retries``: as in :class:`Try`, at
    the limit itself, where it was replayed."""

    word: Word
    limit_bytes: int
    spare_bytes: int
    retries: int | None = None


def decide(
    replay: Callable[[int], Try],
    peak_allocated: int,
    peak_reserved: int,
    limit: int,
    error_bytes: int,
    below_bytes: int | None = None,
) -> Verdict:
    """``replay(limit)`` tries a limit in bytes; the peaks are those without one. ``error_bytes``, ±, is how far the
    demand may be from what was predicted: fits means that it does with this much less, does not fit that it does not
    with this much more, or ``below_bytes`` more where the demand is less likely to be lower than higher."""
    below = error_bytes if below_bytes is None else below_bytes
    spare = limit - peak_reserved
    if spare >= error_bytes:
        return Verdict("fits", limit, spare, 0)
    if limit - peak_allocated < -below or limit <= 0:
        return Verdict("does_not_fit", limit, spare)
    tight = replay(limit - error_bytes)
    if tight.fits:
        return Verdict("fits", limit, spare, tight.retries)
    ample = replay(limit + below)
    return Verdict("too_close" if ample.fits else "does_not_fit", limit, spare, ample.retries if ample.fits else None)
