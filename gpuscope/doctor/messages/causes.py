"""Rank the reasons why a device ran out of memory: first by arithmetic, then by circumstances.

Arithmetic decides only a few things, but those reliably: a tensor larger than the device, a memory
limit of the process itself, memory that another process holds, and fragmentation in its strict
form. torch's own hint about fragmentation is in every message and is ignored. What remains is a
job too large for its device; there, the phase of the training ranks the fixes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ...text.units import GIB, MIB
from . import figures, tables
from .figures import size_text
from .oom import OutOfMemory
from .scene import MessageContext
from .text import Log
from .votes import Vote
from .weights import BASE, CAUSES, SHIFTS, TITLES

OUTSIDE_SHARE, OUTSIDE_BYTES = 0.20, 1.5 * GIB
"""Memory outside this process's allocator above which another process must hold a part of it.

The first is a share of the device, the second is in bytes, and both must be exceeded. In reports of
jobs that had the device to themselves the median is 1.1 GiB.
"""
FRAGMENTED_SHARE, FRAGMENTED_OUTSIDE = 0.10, 0.15
"""The thresholds for fragmentation, as shares of the device.

The first is the least memory that is reserved but unused, the second the most that others hold.
"""
LARGE_SHARE = 0.01
"""The share of the device from which on a request is not one of many that would fail next.

Where a smaller one fails although as much is unallocated, the device is simply full.
"""
GIANT_SLOPE, GIANT_MOST = 0.38, 0.40
"""How the weight of a too large request grows with its share of the device, and its limit.

Such a request comes from sequence length, resolution or an attention score matrix. At a good third
of the device it weighs as much as the size of the batch.
"""
GIANT_SHARE = 0.25
"""The share of the device from which on the evidence mentions the request."""
FULL_SHARE = 0.55
"""The share of the device from which on live tensors are said to have filled it."""

_THC = re.compile(r"runtime error ?\(2\)|THC|THCudaCheck|error=2", re.I)
LIKELY_WEIGHT = 0.40
"""A cause that a circumstance supports is ``likely`` from this weight on."""


def votes(log: Log, scene: MessageContext, one: OutOfMemory) -> Iterator[Vote]:
    """Yield the causes that one refusal speaks for, each with its weight."""
    message = (log.quote(one.hit), log.where(one.hit))
    device = f"cuda:{one.device}" if one.device and one.backend == "cuda" else ""
    where = ", ".join(filter(None, (log.rank(one.hit), device)))
    decided = list(_Arithmetic(scene, one, message).votes())
    # If the message itself is not in the log, only the circumstances are known, and they decide
    # nothing alone.
    sure = one.form == "word" or any(vote.confidence != "prior" for vote in decided)
    for vote in (*decided, *_circumstances(one, scene, message, sure)):
        yield replace(vote, where=where)


class _Arithmetic:
    """Judges one refusal by the sizes in its message alone."""

    def __init__(self, scene: MessageContext, one: OutOfMemory, message: tuple[str, str]) -> None:
        self.one = one
        self.message = message
        self.circumstances = {*scene.facts, one.backend, one.form}

    def votes(self) -> Iterator[Vote]:
        """Yield the votes that the sizes allow.

        All but those for MPS need the size of the request and the capacity of the device.
        """
        one = self.one
        if one.backend == "mps":
            yield from self._mps()
        elif one.requested_bytes is not None and one.capacity_bytes is not None:
            yield from self._device(one.requested_bytes, one.capacity_bytes)

    def _say(self, rule: str, **amounts: int | str | None) -> Iterator[Vote]:
        """Yield the votes of one rule on figures, filled in with these amounts."""
        yield from figures.votes(rule, (self.message,), self.circumstances, **amounts)

    def _device(self, requested: int, total: int) -> Iterator[Vote]:
        """Yield the votes on a device whose capacity and whose request are known."""
        one = self.one
        held, free, spare, outside = (
            one.allocated_bytes,
            one.free_bytes,
            one.unallocated_bytes,
            one.outside_bytes,
        )
        if requested > total:
            yield from self._say("oom.request-over-capacity", asked=requested, total=total)
            return
        if (
            one.allowed_bytes is not None
            and one.allowed_bytes < total
            and (free is None or free >= requested)
        ):
            yield from self._say("oom.fraction", allowed=one.allowed_bytes, total=total, free=free)
            return
        if (
            one.backend == "xpu"
            and requested >= 4 * GIB * 0.98
            and (free is None or free >= requested or total > requested)
        ):
            yield from self._say("oom.single-allocation", asked=requested)
        elif one.backend == "xpu" and free is not None and free > 2 * requested:
            yield from self._say("oom.single-allocation.memory-free", free=free, asked=requested)
        if held is not None and held > total:
            yield from self._say("oom.system-fallback", held=held, total=total)
            return
        if (
            spare is None
            and held is not None
            and free is not None
            and total - free - held > max(requested, 0.05 * total)
        ):
            yield from self._say("oom.other-process.rest", rest=total - free - held, total=total)
        if spare is not None and held is not None and outside is not None:
            yield from self._holders(requested, total, spare, outside)

    def _holders(self, requested: int, total: int, spare: int, outside: int) -> Iterator[Vote]:
        """Yield votes on who holds the memory outside of this process's allocator.

        Where that memory is little, the driver may have refused for a reason of its own.
        """
        one = self.one
        named = sum(size for _, size in one.others) if one.process_bytes is not None else 0
        much = outside > OUTSIDE_SHARE * total and outside > OUTSIDE_BYTES
        if not much and named <= max(requested, 0.1 * total):
            if (one.free_bytes or 0) > requested + 32 * MIB:
                yield from self._say("driver.refused", free=one.free_bytes, asked=requested)
            yield from self._pieces(requested, total, spare, outside)
            return
        own = one.non_torch_bytes
        if own is not None and own > 0.7 * outside and own > OUTSIDE_BYTES:
            yield from self._say("oom.other-library", own=own)
            yield from self._pieces(requested, total, spare, outside, alone=False)
            return
        holders = (
            ", ".join(f"process {pid} {size_text(size)}" for pid, size in one.others[:4])
            if named
            else "not named"
        )
        yield from self._say("oom.other-process", outside=outside, total=total, holders=holders)

    def _pieces(
        self, requested: int, total: int, spare: int, outside: int, alone: bool = True
    ) -> Iterator[Vote]:
        """Yield votes for fragmentation where the allocator's free memory is in many pieces.

        ``alone`` says that no other process's memory distorts the figures.
        """
        pools = self.one.private_pool_bytes or 0
        idle = spare - pools
        enough = idle >= requested and idle >= FRAGMENTED_SHARE * total
        rule = ""
        if alone and enough and outside < FRAGMENTED_OUTSIDE * total:
            rule = "oom.fragmentation"
        elif (
            alone
            and idle >= requested >= LARGE_SHARE * total
            and outside < FRAGMENTED_OUTSIDE * total
        ):
            rule = "oom.fragmentation.would-fit"
        elif not alone and enough:
            rule = "oom.fragmentation.beside-others"
        elif idle >= 0.08 * total or (idle >= requested and idle >= 0.04 * total):
            rule = "oom.fragmentation.slight"
        if rule:
            yield from self._say(rule, idle=idle, asked=requested, outside=outside)
        if pools > 0.05 * total:
            yield from self._say("oom.graph-pools", pools=pools)

    def _mps(self) -> Iterator[Vote]:
        """Yield votes for what a message of the MPS allocator shows.

        It states a watermark, not the size of the device.
        """
        one = self.one
        requested, most = one.requested_bytes, one.allowed_bytes
        sizes = {"held": one.allocated_bytes, "others": one.other_allocations_bytes, "most": most}
        yield from self._say("oom.mps", **sizes)
        if requested is None or most is None:
            return
        if requested > most:
            yield from self._say("oom.mps.request-over-watermark", **sizes)
        elif requested > GIANT_SHARE * most:
            yield from self._say("oom.mps.large-request", **sizes)


def _circumstances(
    one: OutOfMemory, scene: MessageContext, message: tuple[str, str], decided: bool
) -> Iterator[Vote]:
    """Yield the causes that circumstances make more likely than they are for any such error.

    ``decided`` says that stronger evidence exists, so all of these are only priors.
    """
    weights, reasons = _weigh_scene(one, scene, message[0])
    requested, total, held = one.requested_bytes, one.capacity_bytes, one.allocated_bytes
    filled, says = None, tables.circumstances()
    if requested is not None and total:
        if requested >= 0.1 * total:
            more = min(GIANT_SLOPE * requested / total, GIANT_MOST)
            weights["reduce-seq-length-or-resolution"] += more
            weights["flash-attention-sdpa"] += 0.65 * more
        if requested >= GIANT_SHARE * total:
            reasons.setdefault("reduce-seq-length-or-resolution", []).append(
                says["large-request"].format(
                    asked=size_text(requested), share=f"{requested / total:.0%}"
                )
            )
        if held is not None:
            filled = held / total
            weights["other-process-holds-gpu"] = -1.0
    if one.backend in ("mps", "xpu", "hip"):
        weights["other-process-holds-gpu"] = min(weights["other-process-holds-gpu"], 0.05)
    plain = filled is not None and filled > FULL_SHARE and "growth" not in scene
    shown = []
    if filled is not None:
        shown = [says["filled"].format(held=size_text(held), total=size_text(total))]
    for pitfall, weight in sorted(weights.items(), key=lambda pair: -pair[1])[:7]:
        if weight <= 0:
            break
        why = reasons.get(pitfall, [])
        spoken_for = (why and weight >= LIKELY_WEIGHT) or (plain and pitfall == "reduce-batch-size")
        yield Vote(
            pitfall=pitfall,
            cause=CAUSES.get(pitfall, f"oom.{pitfall}"),
            title=TITLES[pitfall],
            weight=weight,
            confidence="likely" if spoken_for and not decided else "prior",
            evidence=(message, *((words, message[1]) for words in shown + why[:2])),
        )


def _weigh_scene(
    one: OutOfMemory, scene: MessageContext, text: str
) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Return each pitfall's weight by the scene alone, and the log's words that raised it."""
    weights = dict(BASE)
    reasons: dict[str, list[str]] = {}
    facts = dict(scene.facts)
    if one.form == "bare" and one.requested_bytes is None:
        name = "old-torch" if _THC.search(text) else "bare"
        facts[name] = tables.circumstances()["no-figures"]
    for name, words in facts.items():
        for pitfall, shift in SHIFTS.get(name, {}).items():
            weights[pitfall] = weights.get(pitfall, 0.0) + shift
            if shift > 0.05 and name not in ("bare", "old-torch"):
                reasons.setdefault(pitfall, []).append(words)
    return weights, reasons
