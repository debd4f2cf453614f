"""Says what a thread did in calls of the CUDA runtime: launch, wait, allocate, load kernels.

All times are nanoseconds of the host's clock.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Set, Tuple

BLOCKING_COPY_NS = 20_000
"""A copy that holds its caller for longer is not asynchronous: its memory is not pinned."""
LAUNCH_NS = 10_000
"""What a launch takes the host itself, at most. A longer one waits: the queue is full, or launches
block."""
Span = Tuple[int, int]
SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy",
         "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize",
         "hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize")  # fmt: skip
ALLOCATES = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cuMemCreate",
             "cuMemMap", "cuMemUnmap", "cuMemRelease", "cuMemSetAccess", "cuMemAddress",
             "cuMemAlloc", "cuMemFree", "hipMalloc", "hipFree")  # fmt: skip
LOADS = ("cuModuleLoad", "cuLibraryLoad", "cudaLibraryLoad", "cudaFuncGetAttributes")
"""Kernels are loaded at their first use, which takes as long as a small compilation."""


Call = Tuple[str, int, int, int, int]
"""A call of the CUDA runtime or driver: name, start, end, correlation, thread."""


def launching(calls: Sequence[Call]) -> Set[int]:
    """Return the threads that launch kernels."""
    launches = {name for name in {call[0] for call in calls} if "Launch" in name}
    return {call[4] for call in calls if call[0] in launches}


def waits(calls: Sequence[Call]) -> List[Span]:
    """Return when the launching threads waited in calls of the runtime, late launches included."""
    threads = launching(calls)
    found = [
        (begin, end) for begin, end, cause in holding(calls, threads) if cause in ("sync", "copy")
    ]
    for name, start, end, _, thread in calls:
        if thread in threads and "Launch" in name and end - start >= BLOCKING_COPY_NS:
            found.append((start + LAUNCH_NS, end))
    return found


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
