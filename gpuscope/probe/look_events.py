"""Reads the events of a trace while the training goes on, leaving it the interpreter in between."""

from __future__ import annotations

import gc
import time
from typing import Any, Callable, Dict, List, Tuple

from .long_requests import Refusal
from .look_calls import Call
from .look_rows import MAX_TEXT, SLICE, Activity

MAX_EVENTS, MAX_OTHERS = 400_000, 16
BREATH_SECONDS, BREATH_SHARE, LONGEST_BREATH_SECONDS = 0.0005, 3.0, 0.05
"""While a trace is read, other threads get the interpreter for at least this long, and for this
many times as long as it was held; the last is the longest time."""

NEVER = 1 << 30
"""After so many collections of the young objects the older ones are gone through."""


def events_of(
    torch: Any, events: List[Any], breathe: Callable[[], None]
) -> Tuple[List[Activity], List[Call], List[List[Any]]]:
    """Return what ran on the busiest device, the runtime's calls, and a table of other events.

    That one has ``[name, count, seconds]`` of what CUPTI says that it did itself.
    The interpreter is this thread's meanwhile, so an event is asked only what is needed: whether it
    is of the host or of a device is the same for all of one name. They are plain tuples, because
    Python's garbage collector forgets those of texts and numbers at once, and named ones never.
    ``events`` is empty afterwards.
    """
    on_device: Dict[int, List[Activity]] = {}
    calls: List[Call] = []
    others: Dict[str, List[Any]] = {}
    if len(events) > MAX_EVENTS:
        raise Refusal("refused", f"the trace has {len(events)} events: too many to read here")
    names: Dict[str, Tuple[str, str]] = {}
    kind = type(events[0]) if events else None
    events.reverse()
    while events:
        some = events[-SLICE:]
        del events[-SLICE:]  # freed slice by slice too
        for event, name, start, length, number in zip(
            some,
            map(kind.name, some),  # type: ignore[union-attr]
            map(kind.start_ns, some),  # type: ignore[union-attr]
            map(kind.duration_ns, some),  # type: ignore[union-attr]
            map(kind.correlation_id, some),  # type: ignore[union-attr]
        ):
            known = names.get(name)
            if known is None:
                known = names[name] = (name, _side(torch, event, name))
            name, side = known
            if side == "host":
                calls.append((name, start, start + length, number, event.device_resource_id()))
            elif side:
                device = event.device_index()
                if device in on_device:
                    on_device[device].append((name, start, start + length, number))
                else:
                    on_device[device] = [(name, start, start + length, number)]
            else:
                row = others.setdefault(name, [name[:MAX_TEXT], 0, 0.0])
                row[1] += 1
                row[2] += length / 1e9
        del some, event
        breathe()
    busiest: List[Activity] = max(on_device.values(), key=len, default=[])
    return busiest, calls, sorted(others.values(), key=lambda row: -row[2])[:MAX_OTHERS]


def _side(torch: Any, event: Any, name: str) -> str:
    """Return ``host`` for a call of the runtime, ``device`` for what ran there, else ""."""
    kind = event.device_type()
    if kind == torch.autograd.DeviceType.CPU:
        return "host" if name.startswith(("cuda", "cu", "hip")) else ""
    if kind == torch.autograd.DeviceType.CUDA and "annotation" not in _activity(event):
        return "device"
    return ""


def _activity(event: Any) -> str:
    ask = getattr(event, "activity_type", None)
    return str(ask()) if ask is not None else ""


class Breath:
    """Gives the interpreter to the trainer's threads for longer than it was held, at each call.

    So a training whose host is ahead of the device stays ahead of it while a trace is read.
    """

    def __init__(self) -> None:
        self._worked = time.thread_time()

    def __call__(self) -> None:
        worked = time.thread_time() - self._worked
        time.sleep(min(max(BREATH_SECONDS, BREATH_SHARE * worked), LONGEST_BREATH_SECONDS))
        self._worked = time.thread_time()


class YoungOnly:
    """A context manager in which a collection of garbage goes through young objects only.

    What is read makes some ten thousand objects, all of which are forgotten soon. A collection of
    all objects of a trainer that they would bring about holds the interpreter for 0.1 s. Whoever
    sets the thresholds meanwhile keeps what was set.
    """

    def __init__(self) -> None:
        self._before = self._ours = gc.get_threshold()

    def __enter__(self) -> None:
        self._before = gc.get_threshold()
        gc.set_threshold(self._before[0], NEVER, NEVER)
        self._ours = gc.get_threshold()

    def __exit__(self, *_: object) -> None:
        if gc.get_threshold() == self._ours:
            gc.set_threshold(*self._before)
