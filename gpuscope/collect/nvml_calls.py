"""Guard driver calls: every call into NVML goes through :class:`DeviceCalls`, which never raises.

It knows which call is in progress, so that other threads can report one that hangs. It turns
failures into Unknown. A call that is not supported is not repeated for a while, and so costs
nothing.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, TypeVar, Union

from ..wire.frames import LOST, NO_PERMISSION, NOT_INITIALISED, NOT_SUPPORTED, Unknown
from .nvml_errors import FUNCTION_NOT_FOUND, explain, from_return

SETTLED_RETRY_SECONDS = 60.0
"""Seconds until a call that was not supported or not permitted is tried again.

The driver may have been updated meanwhile.
"""
LOST_RETRY_SECONDS = (2.0, 60.0)
"""Seconds until a lost GPU is read again: the first, doubled each time up to the second.

Calls to such a GPU can take seconds.
"""

T = TypeVar("T")


class Gate:
    """Keep ``nvmlShutdown`` and other calls apart.

    A shutdown while a call is running crashes the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight = 0
        self._closed = False

    def enter(self) -> bool:
        """True when a call may begin; it must be followed by :meth:`leave`."""
        with self._lock:
            if self._closed:
                return False
            self._in_flight += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._in_flight -= 1

    def close(self) -> bool:
        """Closes the gate for good and returns True, unless a call is in flight."""
        with self._lock:
            if self._in_flight:
                return False
            self._closed = True
            return True


class _Failure:
    __slots__ = ("again_at", "delay", "unknown")

    def __init__(self, unknown: Unknown, delay: float, again_at: float) -> None:
        self.unknown = unknown
        self.delay = delay
        self.again_at = again_at


class DeviceCalls:
    """The calls of one device (or of the library), made by one thread at a time.

    Other threads may read ``current``.
    """

    def __init__(self, gate: Gate, clock: Callable[[], float] = time.monotonic) -> None:
        self.current: Optional[Tuple[str, float]] = None
        self._gate = gate
        self._clock = clock
        self._failures: Dict[Any, _Failure] = {}

    def attempt(self, name: str, function: Callable[[], T], key: Any = None) -> Union[T, Unknown]:
        """Return the result of ``function()``, or the reason for its failure.

        A result that is Unknown counts as a failure. ``name`` is the call's name in nvml.h; ``key``
        distinguishes calls of one name with different arguments.
        """
        key = key or name
        failure = self._failures.get(key)
        began = self._clock()
        if failure and began < failure.again_at:
            return failure.unknown
        if not self._gate.enter():
            return Unknown(NOT_INITIALISED, f"{name}: NVML was shut down")
        self.current = (name, began)
        try:
            answer: Union[T, Unknown] = function()
        except Exception as error:
            answer = explain(name, error)
        finally:
            self.current = None
            self._gate.leave()
        if isinstance(answer, Unknown):
            self._remember(key, answer, failure)
        elif failure:
            del self._failures[key]
        return answer

    def first(
        self, alternatives: Sequence[Tuple[str, Callable[[], T]]], key: Any = None
    ) -> Union[T, Unknown]:
        """Return the answer of the first alternative that this driver supports.

        Only "not supported" leads to the next alternative, because a lost GPU fails in every call.
        """
        refused = []
        for name, function in alternatives:
            answer = self.attempt(name, function, (name, key))
            if not isinstance(answer, Unknown) or answer.code != NOT_SUPPORTED:
                return answer
            refused.append((name, answer))
        # An error from the device says more than a missing symbol.
        for name, answer in refused:
            if answer != from_return(name, FUNCTION_NOT_FOUND):
                return answer
        return refused[-1][1]

    def _remember(self, key: Any, unknown: Unknown, previous: Optional[_Failure]) -> None:
        if unknown.code in (NOT_SUPPORTED, NO_PERMISSION):
            delay = SETTLED_RETRY_SECONDS
        elif unknown.code == LOST:
            first, longest = LOST_RETRY_SECONDS
            again = previous is not None and previous.unknown.code == LOST
            delay = min(longest, previous.delay * 2) if previous and again else first
        else:
            delay = 0.0
        self._failures[key] = _Failure(unknown, delay, self._clock() + delay)
