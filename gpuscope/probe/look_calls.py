"""Says what a thread did in calls of the CUDA runtime: launch, wait, allocate, load kernels.

All times are nanoseconds of the host's clock.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

BLOCKING_COPY_NS = 20_000
"""A copy that holds its caller for longer is not asynchronous: its memory is not pinned."""
LAUNCH_NS = 10_000
"""What a launch takes the host itself, at most. A longer one waits: the queue is full, or launches
block."""
Span = Tuple[int, int]
WAY_NS = 200_000
"""What a thread needs at most from a wait in the runtime to its next launch. If it needs more, it
does something else there."""
LEAST_LAUNCHES = 10
"""From so few launches without a wait before them, it is not known how long one takes the host."""
SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy",
         "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize",
         "hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize")  # fmt: skip
ALLOCATES = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cuMemCreate",
             "cuMemMap", "cuMemUnmap", "cuMemRelease", "cuMemSetAccess", "cuMemAddress",
             "cuMemAlloc", "cuMemFree", "hipMalloc", "hipFree")  # fmt: skip
LOADS = ("cuModuleLoad", "cuLibraryLoad", "cudaLibraryLoad", "cudaFuncGetAttributes")
"""Kernels are loaded at their first use, which takes as long as a small compilation."""
OF_LAUNCHERS = ("cudaMemcpyAsync", "cudaMemsetAsync", "cudaMalloc", "cudaFree")


Call = Tuple[str, int, int, int, int]
"""A call of the CUDA runtime or driver: name, start, end, correlation, thread."""
LATENCY_NS = 8_500
"""What passes from the beginning of a launch until an idle device begins with it. On an H200 it is
7.4 to 11 us for nine launches of ten."""


class Launches(NamedTuple):
    """Launches that are not among the calls: when, by their correlation, and in which threads."""

    moments: Dict[int, int]
    threads: Set[int]


ALL_RECORDED = Launches({}, set())


def launching(calls: Sequence[Call]) -> Set[int]:
    """Return the threads that launch kernels."""
    launches = {name for name in {call[0] for call in calls} if "Launch" in name}
    return {call[4] for call in calls if call[0] in launches}


def launches_of(
    activities: Sequence[Tuple[str, int, int, int]],
    calls: Sequence[Call],
    training: Tuple[int, int],
    until: int,
) -> Launches:
    """Return when each activity was launched whose launch was not recorded.

    The device waits for the host there, so an activity begins as soon as it can after its launch,
    which was before ``until``, and before the next call that was recorded: correlations are numbers
    in the order of calls. ``training`` is what the system and the C library call the training
    thread; CUPTI has 32 bits of the second. Other threads that copy, clear or allocate are taken to
    launch too, as that of a backward pass does.
    """
    system, library = training
    recorded = {call[3] for call in calls}
    latest = until + LATENCY_NS
    later = sorted([(call[3], call[1]) for call in calls if call[3]])
    later.append((1 << 62, latest))
    moments: Dict[int, int] = {}
    at, (follows, most) = 0, later[0]
    for number, start in sorted([(one[3], one[1]) for one in activities]):
        while follows < number:
            at += 1
            follows, most = later[at]
        if number not in recorded:
            moments[number] = min(start - LATENCY_NS, most, latest - LATENCY_NS)
    threads = {call[4] for call in calls if call[0].startswith(OF_LAUNCHERS)}
    named = {call[4] for call in calls}
    threads |= {one for one in named if one == system or not (one - library) % 2**32}
    return Launches(moments, threads)


def waits(
    calls: Sequence[Call], threads: Set[int], held: Sequence[Tuple[int, int, str]]
) -> List[Span]:
    """Return when the launching threads waited in calls of the runtime, late launches included.

    ``held`` is that of :func:`holding`.
    """
    found = [(begin, end) for begin, end, cause in held if cause in ("sync", "copy")]
    for name, start, end, _, thread in calls:
        if thread in threads and "Launch" in name and end - start >= BLOCKING_COPY_NS:
            found.append((start + LAUNCH_NS, end))
    return found


def own_ns(
    calls: Sequence[Call],
    threads: Set[int],
    waited: Sequence[Span],
    begin: int,
    end: int,
    more: Iterable[int] = (),
) -> Optional[int]:
    """Return what the launching threads need themselves from ``begin`` to ``end``.

    That is if nothing makes them wait in calls of the runtime; None where it is not known. A wait
    costs the host more than the time in the call: the thread lets go of the interpreter and gets it
    back, and makes a number of what it has read. So from one launch to the next with a wait in
    between it is taken to need no more than the median of those without. ``more`` are launches
    that are not among the calls.
    """
    starts = [call[1] for call in calls if "Launch" in call[0] and call[4] in threads]
    starts += more
    held = sorted(waited)
    points = [begin, *sorted([one for one in starts if begin <= one < end]), end]
    free: List[int] = []
    after: List[int] = []
    at = 0
    for first, last in zip(points, points[1:]):
        while at < len(held) and held[at][1] <= first:
            at += 1
        if at == len(held) or held[at][0] >= last:
            free.append(last - first)
            continue
        spent, number = 0, at
        while number < len(held) and held[number][0] < last:
            spent += min(last, held[number][1]) - max(first, held[number][0])
            number += 1
        after.append(max(0, last - first - spent))
    if len(free) < LEAST_LAUNCHES:
        return None
    usual = sorted(free)[len(free) // 2]
    return sum(free) + sum(min(one, usual) if one < WAY_NS else one for one in after)


def holding(calls: Sequence[Call], threads: Set[int]) -> List[Tuple[int, int, str]]:
    """Return the calls during which these threads had to wait: ``(start, end, cause)``."""
    causes: Dict[str, str] = {}
    found = []
    for name, start, end, _, thread in calls:
        cause = causes.get(name)
        if cause is None:
            cause = causes[name] = _cause_of(name)
        if cause and thread in threads and (cause != "copy" or end - start >= BLOCKING_COPY_NS):
            found.append((start, end, cause))
    return found


def _cause_of(call: str) -> str:
    """Return why a call of the runtime makes its thread wait, "" if it does not."""
    if call.startswith(SYNCS) and not call.startswith("cudaMemcpyAsync"):
        return "sync"
    if call.startswith(ALLOCATES):
        return "allocate"
    if call.startswith(LOADS):
        return "compile"
    return "copy" if "MemcpyAsync" in call else ""
