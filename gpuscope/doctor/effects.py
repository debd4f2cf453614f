"""Predict what a fix gains, from the numbers of the case at hand.

Where the numbers do not allow a prediction, none is made.

Each figure is a bound that follows from what was measured here, not what the fix gained elsewhere:

- Cached bytes are reserved − allocated. At best, expandable segments and unsplit blocks can use
  all of them.
- A part of a step's time can at best vanish, which gives 1/(1 − share) times as many steps.
- Parameters, gradients and optimizer state that are sharded over n ranks take 1/n of their bytes on
  each rank (Rajbhandari et al., ZeRO, 2020).

What depends on the model beyond that is only said in words: half the batch halves activations and
nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..model.late_rank import LateRank
from ..text.ranges import interval_text
from ..text.units import MIB, bytes_text, percent_text
from .finding import Bound, Effect, Finding

EIGHT_BIT = 1 - (1 + 4 / 256) / 4
"""The part of a 32-bit optimizer state that an 8-bit one saves.

It has 8-bit values with one 32-bit scale for every 256 of them, as in bitsandbytes' block-wise
states.
"""
LEAST_SHARE = 0.01
_LEAST_BYTES = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Bytes on one device at the moment in question; None where unknown.

    ``cached`` is reserved − allocated. ``outside`` is memory that is neither free nor in this
    process's allocator, and ``others`` is the part of it that other processes are known to hold.
    ``ranks`` is how many ranks could share the model: those of the job, or the host's GPUs for a
    job of one rank.
    """

    requested: float | None = None
    free: float | None = None
    allocated: float | None = None
    cached: float | None = None
    inactive_split: float | None = None
    largest_free: float | None = None
    outside: float | None = None
    others: float | None = None
    private_idle: float | None = None
    parameters: float | None = None
    gradients: float | None = None
    optimizer: float | None = None
    ranks: int | None = None

    @property
    def rest(self) -> float | None:
        """Allocated bytes beyond parameters, gradients and optimizer state.

        These are activations and everything else that is not one of the three.
        """
        if self.allocated is None or self.parameters is None:
            return None
        return max(
            0.0,
            self.allocated - self.parameters - (self.gradients or 0.0) - (self.optimizer or 0.0),
        )


def of_memory(finding: Finding, amounts: Amounts) -> Finding:
    """Return the finding with its fix's effect on memory, where that can be computed.

    A finding that already has an effect keeps it.
    """
    make = _MEMORY.get(finding.pitfall)
    effect = make(amounts) if make is not None and finding.effect is None else None
    return replace(finding, effect=effect) if effect is not None else finding


def of_share(finding: Finding, share: float | None, what: str, by: str = "") -> Finding:
    """Return the finding with the effect of winning back a share of each step.

    ``share`` (0 to 1) is the part of a step that is won, which is ``what``. A fix that wins only
    a part of that says ``by`` which means, as in ``with 8 workers``.
    """
    if share is None or not LEAST_SHARE <= share < 1 or finding.effect is not None:
        return finding
    of = f" {by}" if by else f", which is {what}"
    text = (
        f"saves at most {percent_text(share)} of each step{of}: up to "
        f"{1 / (1 - share):.1f} times as many steps per second"
    )
    return replace(finding, effect=Effect(text=text, bound="at most", saved_share=round(share, 4)))


def of_late_rank(late: LateRank) -> Effect | None:
    """Return what a job wins if the rank that the others wait for becomes as fast as they are."""
    if not LEAST_SHARE <= late.share < 1:
        return None
    low, high, sure = late.low, late.high, ""
    if low is not None and high is not None:
        sure = f" ({interval_text(percent_text(low), percent_text(high), ' to ')})"
    text = (
        f"saves at most {percent_text(late.share)} of each step{sure}, which is all of the time "
        f"for which the others wait for it: up to {1 / (1 - late.share):.1f} times as many steps "
        "per second"
    )
    return Effect(
        text=text,
        bound="at most",
        saved_share=round(late.share, 4),
        saved_share_low=round(low, 4) if low is not None else None,
        saved_share_high=round(high, 4) if high is not None else None,
    )


def _freed(amount: float | None, text: str, bound: Bound = "at most") -> Effect | None:
    if amount is None or amount < _LEAST_BYTES:
        return None
    prefix = {"exactly": "", "about": "about ", "at most": "at most "}[bound]
    return Effect(
        text=f"frees {prefix}{bytes_text(amount)} {text}", bound=bound, freed_bytes=int(amount)
    )


def _against(amounts: Amounts, gained: float) -> str:
    """Return the effect of freeing this much on the request that failed."""
    if amounts.requested is None or amounts.free is None:
        return ""
    have = gained + amounts.free
    text = (
        f"; with {bytes_text(amounts.free)} free, {bytes_text(have)} for the "
        f"{bytes_text(amounts.requested)} requested"
    )
    short = amounts.requested - have
    return (
        text if short <= 0 else f"{text}: {bytes_text(short)} short, so it is not enough by itself"
    )


def _cached(amounts: Amounts) -> Effect | None:
    if amounts.cached is None:
        return None
    return _freed(
        amounts.cached, f"of reserved but unallocated memory{_against(amounts, amounts.cached)}"
    )


def _whole_segments(amounts: Amounts) -> Effect | None:
    if amounts.cached is None or amounts.inactive_split is None:
        return None
    whole = max(0.0, amounts.cached - amounts.inactive_split)
    split = f"the other {bytes_text(amounts.inactive_split)} of the cache lies next to live blocks"
    return _freed(whole, f"of free segments, which go back to the driver; {split}")


def _outside(amounts: Amounts) -> Effect | None:
    if amounts.others:
        return _freed(
            amounts.others,
            f"that other processes hold{_against(amounts, amounts.others)}",
            "exactly",
        )
    if amounts.outside is None:
        return None
    text = "outside torch's allocator, including this process's own CUDA context"
    return _freed(amounts.outside, text + _against(amounts, amounts.outside))


def _idle_pools(amounts: Amounts) -> Effect | None:
    return _freed(amounts.private_idle, "of idle memory in private pools (CUDA graphs)")


def _batch(amounts: Amounts) -> Effect | None:
    """Predict a smaller batch: activations shrink, and the request too if it is one of them."""
    rest = amounts.rest
    if rest is not None and rest >= _LEAST_BYTES:
        return Effect(
            text=f"halving the batch frees at most {bytes_text(rest / 2)}, half of the "
            f"{bytes_text(rest)} that are neither parameters, gradients nor optimizer state",
            bound="at most",
            freed_bytes=int(rest / 2),
        )
    if amounts.requested is None or amounts.free is None or amounts.requested <= amounts.free:
        return None
    room = max(amounts.free, amounts.largest_free or 0.0)
    if room < _LEAST_BYTES:
        return None
    parts = math.ceil(amounts.requested / room)
    # a free piece of the cache may be larger; only a snapshot tells how large they are
    unknown = amounts.largest_free is None and (amounts.cached or 0.0) > amounts.free
    least = "at least " if unknown else ""
    return Effect(
        text=f"the largest request that fits is {least}{bytes_text(room)}, "
        f"{percent_text(room / amounts.requested)} of this one: if the "
        f"{bytes_text(amounts.requested)} were an activation, "
        f"{least}{'half' if parts == 2 else f'1/{parts} of'} the batch would fit; torch does not "
        "say what it was",
        bound="about",
    )


def _activations(amounts: Amounts) -> Effect | None:
    return _freed(
        amounts.rest,
        "of activations and temporary tensors; the inputs of the blocks stay",
    )


def _optimizer(amounts: Amounts) -> Effect | None:
    state = amounts.optimizer
    if not state:
        return None
    eight = f"{bytes_text(EIGHT_BIT * state)} with 8-bit state, if it is float32 now"
    return _freed(state, f"of optimizer state: all of it with SGD without momentum; {eight}")


def _sharded(amounts: Amounts) -> Effect | None:
    known = [value for value in (amounts.parameters, amounts.gradients, amounts.optimizer) if value]
    ranks = amounts.ranks
    if not known or (ranks is not None and ranks < 2):
        return None
    count = ranks or 2
    saved = sum(known) * (1 - 1 / count)
    over = (
        f"each of {count} ranks keeps 1/{count} of the {bytes_text(sum(known))} of "
        "parameters, gradients and optimizer state"
    )
    return _freed(saved, f"per rank: {over}, and one whole block at a time")


def _adapters(amounts: Amounts) -> Effect | None:
    known = [value for value in (amounts.gradients, amounts.optimizer) if value]
    return _freed(
        sum(known), "of gradients and optimizer state, which frozen parameters do not have"
    )


def _offloaded(amounts: Amounts) -> Effect | None:
    return _freed(amounts.optimizer, "of optimizer state, which moves to host memory", "exactly")


_MEMORY: Mapping[str, Callable[[Amounts], Effect | None]] = {
    "expandable-segments": _cached,
    "max-split-size": _cached,
    "empty-cache": _whole_segments,
    "other-process-holds-gpu": _outside,
    "kill-zombie-process": _outside,
    "compile-mode": _idle_pools,
    "reduce-batch-size": _batch,
    "gradient-accumulation": _batch,
    "gradient-checkpointing": _activations,
    "optimizer-state": _optimizer,
    "fsdp-or-zero": _sharded,
    "lora-or-quantisation": _adapters,
    "offload-cpu": _offloaded,
}
