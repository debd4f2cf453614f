"""Two clocks for the training thread: CUDA events on its stream, or times of the CPU.

Recording an event into the stream costs a few microseconds. Its time is read only after the device
has passed it, so nothing here waits for the device. While a stream is being captured into a CUDA
graph no event is recorded or queried: a record would become part of the graph, and a query would
break the capture.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any, Dict, List, Optional

MAX_MARKS = 512
"""Limit of the marks of one step. A step with more batches than this is not split."""


class Spoiled(Exception):
    """This step cannot be measured; the message says why."""


_TOO_MANY = f"a step has more than {MAX_MARKS // 2} batches and closures"
_CAPTURED = "a step is being captured into a CUDA graph"


class Moments:
    """``time.perf_counter()`` of the thread itself, which is exact if the CPU computes."""

    ordinal: Optional[int] = None

    def __init__(self) -> None:
        self._count = 0

    def mark(self) -> Any:
        self._count += 1
        if self._count > MAX_MARKS:
            raise Spoiled(_TOO_MANY)
        return perf_counter()

    def passed(self, mark: Any) -> bool:
        return True

    def seconds(self, begin: Any, end: Any) -> float:
        return float(end - begin)

    def release(self) -> None:
        """Note that no mark of this clock is needed any more."""


class Stream:
    """Events on the stream that is current for ``ordinal`` now.

    All marks go to this one stream, even while the training uses another one. So they are in order,
    and if the last one has passed, all have.
    """

    def __init__(self, torch: Any, ordinal: int, pool: List[Any]) -> None:
        self.ordinal: Optional[int] = ordinal
        self._torch = torch
        self._pool = pool
        self._stream = torch.cuda.current_stream(ordinal)
        self._events: List[Any] = []

    def mark(self) -> Any:
        if len(self._events) >= MAX_MARKS:
            raise Spoiled(_TOO_MANY)
        if capturing(self._torch):
            raise Spoiled(_CAPTURED)
        event = self._pool.pop() if self._pool else self._torch.cuda.Event(enable_timing=True)
        self._events.append(event)
        event.record(self._stream)
        return event

    def passed(self, mark: Any) -> bool:
        return not capturing(self._torch) and bool(mark.query())

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) * 1e-3

    def release(self) -> None:
        self._pool.extend(self._events)
        self._events = []


class Clocks:
    """Gives each measured step its clock, and reuses the events of finished steps."""

    def __init__(self) -> None:
        self._pools: Dict[int, List[Any]] = {}

    def of(self, optimizer: Any) -> Any:
        """Return the clock of the device that computes the parameters of ``optimizer``.

        That is the device of its first parameter that is on one.
        """
        ordinal = _ordinal(optimizer)
        if ordinal is None:
            return Moments()
        return Stream(sys.modules["torch"], ordinal, self._pools.setdefault(ordinal, []))


def capturing(torch: Any) -> bool:
    """Whether the current stream is recording a CUDA graph. Creates no context."""
    ask = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
    return bool(ask()) if ask is not None else False


def _ordinal(optimizer: Any) -> Optional[int]:
    for group in optimizer.param_groups[:8]:
        for parameter in group["params"][:1]:
            if parameter.is_cuda:
                index = parameter.device.index
                return int(index) if index is not None else None
    return None
