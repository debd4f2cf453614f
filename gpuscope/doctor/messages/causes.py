"""Why a device ran out of memory: arithmetic first, then what the circumstances speak for.

The arithmetic decides few things, and those well: a tensor larger than the device, a limit of the process' own, memory
that somebody else holds, fragmentation in its strict form. torch's own hint of fragmentation stands in every message
and is ignored. What remains is a job too large for its device, and there the phase ranks the ways out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ...text.units import GIB, MIB, bytes_text
from .oom import OutOfMemory
from .scene import Scene
from .text import Log
from .votes import Vote
from .weights import BASE, CAUSES, SHIFTS, TITLES

OUTSIDE_SHARE, OUTSIDE_BYTES = 0.20, 1.5 * GIB
"""More than both outside this process' allocator is not this process alone: reports of jobs that had the device to
themselves have 1.1 GiB in the median."""
FRAGMENTED_SHARE, FRAGMENTED_OUTSIDE = 0.10, 0.15
GIANT_SLOPE, GIANT_MOST = 0.38, 0.40
"""The larger the share of the device that one request asks for, the more it is one tensor's problem: sequence,
resolution or a score matrix. Equal to the batch's weight at a good third of the device."""
GIANT_SHARE = 0.25
"""From here on it is said."""
FULL_SHARE = 0.55
"""Below this share of live tensors the device was not filled by them."""

_THC = re.compile(r"runtime error ?\(2\)|THC|THCudaCheck|error=2", re.I)
LIKELY_WEIGHT = 0.40
"""From here on a circumstance has spoken for the cause, or the numbers for the plain one."""


def _amount(size: int | None) -> str:
    return bytes_text(size, "an unknown amount")


def votes(log: Log, scene: Scene, one: OutOfMemory) -> Iterator[Vote]:
    """Every cause of one refusal, each with its weight."""
    line = (log.quote(one.hit), log.where(one.hit))
    where = f"cuda:{one.device}" if one.device and one.backend == "cuda" else ""
    where = ", ".join(filter(None, (log.rank(one.hit), where)))
    decided = list(_arithmetic(one, scene, line))
    # Of a refusal whose message is not there only the circumstances are known, and those decide nothing alone.
    sure = one.form == "word" or any(vote.confidence != "prior" for vote in decided)
    for vote in (*decided, *_circumstances(one, scene, line, sure)):
        yield replace(vote, where=where)


def _vote(pitfall: str, cause: str, title: str, weight: float, confidence: str, *evidence: tuple[str, str]) -> Vote:
    return Vote(pitfall=pitfall, cause=cause, title=title, weight=weight, evidence=evidence,
                confidence=confidence)  # type: ignore[arg-type]  # fmt: skip


def _arithmetic(one: OutOfMemory, scene: Scene, line: tuple[str, str]) -> Iterator[Vote]:
    asked, total, held = one.requested_bytes, one.capacity_bytes, one.allocated_bytes
    free, spare, outside = one.free_bytes, one.unallocated_bytes, one.outside_bytes
    if one.backend == "mps":
        yield from _mps(one, line)
        return
    if asked is None or total is None:
        return
    if asked > total:
        said = (
            f"one request of {_amount(asked)} on a device of {_amount(total)}: no batch size alone explains that",
            line[1],
        )
        yield _vote("reduce-seq-length-or-resolution", "oom.request-over-capacity", "One tensor is larger than the "
        "device",
                    0.95, "likely", line, said)  # fmt: skip
        yield _vote("flash-attention-sdpa", "oom.request-over-capacity", TITLES["flash-attention-sdpa"],
                    *((0.96, "likely") if "attention" in scene else (0.6, "prior")), line, said)  # fmt: skip
        return
    if one.allowed_bytes is not None and one.allowed_bytes < total and (free is None or free >= asked):
        said = (
            f"the process may use {_amount(one.allowed_bytes)} of {_amount(total)}; {_amount(free)} are free",
            line[1],
        )
        yield _vote("memory-fraction-cap", "oom.fraction", "The process has reached its own limit, not the device's",
                    1.0, "definite", line, said)  # fmt: skip
        return
    if one.backend == "xpu" and asked >= 4 * GIB * 0.98 and (free is None or free >= asked or total > asked):
        said = (f"one allocation of {_amount(asked)}: Intel Arc refuses single ones of 4 GiB and more", line[1])
        yield _vote("single-allocation-limit", "oom.single-allocation", "The request is over the limit for one "
        "allocation",
                    0.95, "likely", line, said)  # fmt: skip
    elif one.backend == "xpu" and free is not None and free > 2 * asked:
        said = (f"{_amount(free)} are free and {_amount(asked)} were refused", line[1])
        yield _vote("single-allocation-limit", "oom.single-allocation", "The driver refuses with memory free",
                    0.6, "likely", line, said)  # fmt: skip
    if held is not None and held > total:
        said = (f"{_amount(held)} allocated on a device of {_amount(total)}: the driver spills into host memory "
                "(Windows, WSL)",
                line[1])  # fmt: skip
        size = scene.any("diffusion", "comfyui", "no-grad")
        yield _vote("reduce-seq-length-or-resolution" if size else "reduce-batch-size", "oom.system-fallback",
                    "The job outgrew the device and spilled into host memory", 0.7, "likely", line, said)  # fmt: skip
        return
    if spare is None and held is not None and free is not None and total - free - held > max(asked, 0.05 * total):
        said = (
            f"neither free nor allocated by this process: {_amount(total - free - held)} of {_amount(total)}",
            line[1],
        )
        yield _vote("other-process-holds-gpu", "oom.other-process", TITLES["other-process-holds-gpu"],
                    0.44, "prior", line, said)  # fmt: skip
    if spare is not None and held is not None and outside is not None:
        yield from _holders(one, scene, line, asked, total, spare, outside)


def _holders(
    one: OutOfMemory, scene: Scene, line: tuple[str, str], asked: int, total: int, spare: int, outside: int
) -> Iterator[Vote]:
    named = sum(size for _, size in one.others) if one.process_bytes is not None else 0
    if (outside > OUTSIDE_SHARE * total and outside > OUTSIDE_BYTES) or named > max(asked, 0.1 * total):
        own = one.non_torch_bytes
        if own is not None and own > 0.7 * outside and own > OUTSIDE_BYTES:
            said = (
                f"this process holds {_amount(own)} outside torch's allocator (contexts, NCCL, other libraries)",
                line[1],
            )
            yield _vote("empty-cache", "oom.other-library", "Much of the device is held by this process outside torch",
                        0.4, "prior", line, said)  # fmt: skip
            yield _vote("set-device-per-rank", "oom.other-library", "Several contexts or ranks may share the device",
                        0.3, "prior", line, said)  # fmt: skip
            yield from _pieces(one, line, asked, total, spare, outside, sure=False)
            return
        who = ", ".join(f"process {pid} {_amount(size)}" for pid, size in one.others[:4]) if named else "not named"
        said = (f"outside this process' allocator: {_amount(outside)} of {_amount(total)} (holders: {who})", line[1])
        yield _vote("other-process-holds-gpu", "oom.other-process", TITLES["other-process-holds-gpu"],
                    0.92, "likely", line, said)  # fmt: skip
        yield _vote("visible-devices", "oom.other-process", "The job shares a device that somebody else uses",
                    0.30, "prior", line, said)  # fmt: skip
        yield _vote(
            "kill-zombie-process", "oom.other-process", TITLES["kill-zombie-process"], 0.33, "prior", line, said
        )
        return
    yield from _refused(one, line, asked)
    yield from _pieces(one, line, asked, total, spare, outside)


def _refused(one: OutOfMemory, line: tuple[str, str], asked: int) -> Iterator[Vote]:
    """The device has room for the request, so its driver or the host behind it refused."""
    free = one.free_bytes or 0
    if free <= asked + 32 * MIB:
        return
    said = (
        f"{_amount(free)} are free and {_amount(asked)} were refused: a limit of the driver, not of this job",
        line[1],
    )
    driver, host = (0.50, 0.30) if one.backend == "hip" else (0.41, 0.43)
    yield _vote("driver-cuda-mismatch", "driver.init", "The driver refuses with memory free", driver, "prior", line,
                said)  # fmt: skip
    yield _vote("host-memory-limit", "host.memory_short", "The driver could not back device memory on the host", host,
                "prior", line, said)  # fmt: skip


def _pieces(
    one: OutOfMemory, line: tuple[str, str], asked: int, total: int, spare: int, outside: int, sure: bool = True
) -> Iterator[Vote]:
    """Whether the allocator's own free memory lies in pieces. ``sure``: nobody else's memory confuses the figures."""
    idle = spare - (one.private_pool_bytes or 0)
    said = (
        f"{_amount(idle)} reserved but unallocated, {_amount(asked)} asked for, {_amount(outside)} outside the "
        "allocator",
        line[1],
    )
    pitfall = "max-split-size" if one.form in ("1.0", "1.4") else "expandable-segments"
    other = "expandable-segments" if pitfall == "max-split-size" else "max-split-size"
    if sure and idle >= asked and idle >= FRAGMENTED_SHARE * total and outside < FRAGMENTED_OUTSIDE * total:
        yield _vote(pitfall, "oom.fragmentation", TITLES[pitfall], 0.95, "definite", line, said)
        yield _vote(other, "oom.fragmentation", TITLES[other], 0.6, "prior", line, said)
    elif not sure and idle >= asked and idle >= FRAGMENTED_SHARE * total:
        yield _vote(pitfall, "oom.fragmentation", TITLES[pitfall], 0.42, "prior", line, said)
    elif idle >= 0.08 * total or (idle >= asked and idle >= 0.04 * total):
        yield _vote(pitfall, "oom.fragmentation", TITLES[pitfall], 0.31, "prior", line, said)
    if one.private_pool_bytes and one.private_pool_bytes > 0.05 * total:
        said = (f"{_amount(one.private_pool_bytes)} are idle in private pools of CUDA graphs", line[1])
        yield _vote("compile-mode", "oom.graph-pools", TITLES["compile-mode"], 0.5, "likely", line, said)


def _mps(one: OutOfMemory, line: tuple[str, str]) -> Iterator[Vote]:
    most, held, other = one.allowed_bytes, one.allocated_bytes, one.other_allocations_bytes
    said = (f"torch holds {_amount(held)}, others {_amount(other)}, the watermark is at {_amount(most)}", line[1])
    yield _vote("mps-watermark-ratio", "oom.mps", "The watermark of the MPS allocator is reached",
                0.8, "likely", line, said)  # fmt: skip
    asked = one.requested_bytes
    if asked is not None and most is not None and asked > GIANT_SHARE * most:
        title = (
            "One tensor is larger than the device" if asked > most else "One tensor asks for much of what is allowed"
        )
        weight = 0.95 if asked > most else 0.82
        yield _vote("reduce-seq-length-or-resolution", "oom.request-over-capacity", title, weight, "likely", line,
                    said)  # fmt: skip


def _circumstances(one: OutOfMemory, scene: Scene, line: tuple[str, str], decided: bool) -> Iterator[Vote]:
    weights = dict(BASE)
    reasons: dict[str, list[str]] = {}
    facts = dict(scene.facts)
    if one.form == "bare" and one.requested_bytes is None:
        facts["old-torch" if _THC.search(line[0]) else "bare"] = "the message has no figures"
    for name, words in facts.items():
        for pitfall, shift in SHIFTS.get(name, {}).items():
            weights[pitfall] = weights.get(pitfall, 0.0) + shift
            if shift > 0.05 and name not in ("bare", "old-torch"):
                reasons.setdefault(pitfall, []).append(words)
    asked, total, held = one.requested_bytes, one.capacity_bytes, one.allocated_bytes
    filled = None
    if asked is not None and total:
        if asked >= 0.1 * total:
            more = min(GIANT_SLOPE * asked / total, GIANT_MOST)
            weights["reduce-seq-length-or-resolution"] += more
            weights["flash-attention-sdpa"] += 0.65 * more
        if asked >= GIANT_SHARE * total:
            reasons.setdefault("reduce-seq-length-or-resolution", []).append(
                f"one request of {_amount(asked)} is {asked / total:.0%} of the device"
            )
        if held is not None:
            filled = held / total
            weights["other-process-holds-gpu"] = -1.0
    if one.backend in ("mps", "xpu", "hip"):
        weights["other-process-holds-gpu"] = min(weights["other-process-holds-gpu"], 0.05)
    plain = filled is not None and filled > FULL_SHARE and "growth" not in scene
    shown = f"{_amount(held)} of {_amount(total)} are live tensors" if filled is not None else ""
    for pitfall, weight in sorted(weights.items(), key=lambda pair: -pair[1])[:7]:
        if weight <= 0:
            break
        why = reasons.get(pitfall, [])
        strong = (why and weight >= LIKELY_WEIGHT) or (plain and pitfall == "reduce-batch-size")
        sources = [(words, line[1]) for words in ([shown] if shown else []) + why[:2]]
        yield _vote(pitfall, CAUSES.get(pitfall, f"oom.{pitfall}"), TITLES[pitfall], weight,
                    "likely" if strong and not decided else "prior", line, *sources)  # fmt: skip
