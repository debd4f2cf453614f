"""Answer requests at once, on the probe's thread.

They ask for all allocator statistics, and for the stacks of all threads.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from ..wire import codec
from ..wire.frames import Result
from . import cuda
from .code_place import line_of
from .gauges import StepMemory
from .long_requests import Refusal
from .on_import import debug
from .steps import Steps
from .thread_frames import current_frames

MAX_KEYS = 8192
MAX_THREADS = 256
MAX_FRAMES = 64
MAX_TEXT = 256
MAX_RESULT_BYTES = 900_000
OURS = "gpuscope-"
"""Threads of this name are the probe's own and are left out."""


def statistics(args: Dict[str, Any], allocators: cuda.Allocators) -> Dict[str, Any]:
    """Return the allocator's statistics of ``device``, torch's ordinal.

    Value: ``statistics`` with the keys of ``torch.cuda.memory_stats``, ``seconds`` that the one
    call took, ``backend``, ``device``; ``host_statistics`` of the pinned host pool, or null with
    ``host_reason``. Raises :class:`Refusal`.
    """
    if not cuda.initialised():
        raise Refusal("unsupported", f"there is no CUDA allocator to ask: {cuda.why_not().text}")
    core: Any = sys.modules["torch"]._C
    ordinal = _ordinal(args.get("device"), allocators.ordinals())
    begin = time.perf_counter()
    try:
        nested = core._cuda_memoryStats(ordinal)
    except Exception as error:
        raise Refusal(
            "failed", f"the allocator does not answer: {str(error).partition(chr(10))[0][:200]}"
        ) from None
    seconds = time.perf_counter() - begin
    value = {
        "statistics": flat(nested),
        "seconds": seconds,
        "backend": cuda.backend(),
        "device": ordinal,
    }
    value["host_statistics"], value["host_reason"] = _host(core)
    return value


def _ordinal(wanted: Any, used: List[int]) -> int:
    if wanted is None and len(used) == 1:
        return used[0]
    if isinstance(wanted, bool) or not isinstance(wanted, int):
        raise Refusal(
            "refused", f"statistics needs device, one of the ordinals in use: {_words(used)}"
        )
    if wanted not in used:
        raise Refusal("refused", f"this process uses no cuda:{wanted} (in use: {_words(used)})")
    return wanted


def _words(used: List[int]) -> str:
    return ", ".join(map(str, used)) or "none yet"


def _host(core: Any) -> Tuple[Optional[Dict[str, int]], str]:
    read = getattr(core, "_cuda_hostMemoryStats", None)
    if read is None:
        return None, "this torch keeps no statistics of pinned memory"
    try:
        return flat(read()), ""
    except Exception as error:
        return None, f"the pinned allocator does not answer: {str(error)[:200]}"


def flat(nested: Any) -> Dict[str, int]:
    """Return nested statistics under dotted keys, as ``torch.cuda.memory_stats`` makes them.

    Parts of a tuple are joined by ``_``; at most :data:`MAX_KEYS`, and only numbers.
    """
    out: Dict[str, int] = {}
    stack: List[Tuple[str, Any]] = [("", nested)]
    while stack and len(out) < MAX_KEYS:
        prefix, value = stack.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                name = "_".join(map(str, key)) if isinstance(key, tuple) else str(key)
                stack.append((f"{prefix}.{name}" if prefix else name, inner))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            out[prefix[:MAX_TEXT]] = value  # type: ignore[assignment]
    return dict(sorted(out.items()))


def growth(memory: StepMemory) -> Dict[str, Any]:
    """Return what was allocated right after each remembered step, by device.

    The value has ``points``: for each device in use ``[ordinal, [[step, bytes], …]]``, the oldest
    first. Empty where no step has ended yet.
    """
    return {
        "points": [
            [ordinal, [list(point) for point in kept]]
            for ordinal, kept in sorted(memory.points.items())
        ]
    }


def stacks(steps: Steps) -> Dict[str, Any]:
    """Return the stacks of all threads, and the collectives of this rank.

    The value has ``threads`` (``name``, ``ident``, ``main``, ``training``: whether it made the last
    optimizer step, ``frames`` ``[file, line, function]`` innermost first), ``collectives`` and
    ``seconds``. Deep stacks of many threads are cut to what fits; ``cut`` says to how many frames.
    """
    begin = time.perf_counter()
    value: Dict[str, Any] = {"collectives": _collectives(), "seconds": 0.0}
    frames = current_frames()
    try:
        for limit in (MAX_FRAMES, 16, 4, 1):
            if limit < MAX_FRAMES:
                value["cut"] = limit
            value["threads"] = _threads(frames, steps, limit)
            if _fits(value):
                break
    finally:
        frames.clear()  # a frame that is held keeps its variables, tensors too, alive
    value["seconds"] = time.perf_counter() - begin
    return value


def _fits(value: Dict[str, Any]) -> bool:
    try:
        return len(codec.encode(Result(0, value))) <= MAX_RESULT_BYTES
    except codec.WireError:
        return False


def _threads(frames: Dict[int, Any], steps: Steps, limit: int) -> List[Dict[str, Any]]:
    known = dict(
        getattr(threading, "_active", None)
        or {thread.ident: thread for thread in threading.enumerate()}
    )
    main, training = threading.main_thread().ident, steps.thread
    rows = []
    for ident, frame in frames.items():
        name = str(
            getattr(known.get(ident), "name", "") or f"thread {ident}, not started by Python"
        )
        if not name.startswith(OURS):
            row = {
                "name": name[:MAX_TEXT],
                "ident": ident,
                "main": ident == main,
                "training": ident == training,
            }
            rows.append({**row, "frames": _frames(frame, limit)})
    rows.sort(key=lambda row: (not row["main"], not row["training"]))
    return rows[:MAX_THREADS]


def _frames(frame: Any, limit: int) -> List[List[Any]]:
    rows: List[List[Any]] = []
    while frame is not None and len(rows) < limit:
        code = frame.f_code
        # The end of a path tells more than its beginning.
        rows.append([code.co_filename[-MAX_TEXT:], line_of(frame), code.co_name[:MAX_TEXT]])
        frame = frame.f_back
    return rows


def _collectives() -> List[Dict[str, Any]]:
    try:
        from . import collectives
    except ImportError:
        return []
    try:
        return list(collectives.describe())
    except Exception as error:
        debug("collectives are not known", error)
        return []
