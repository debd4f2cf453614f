"""Receive XID errors when they happen, through the driver's event API.

Waiting needs a thread of its own. Each wait ends after a second, so that NVML is never shut down
while one is running.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ..wire.frames import NOT_INITIALISED, Unknown
from .nvml_calls import DeviceCalls
from .nvml_errors import TIMEOUT_RETURN

XID = 0x8
"""nvmlEventTypeXidCriticalError."""
WAIT_MS = 1000
_REGISTER, _WAIT = "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"
NOT_YET = Unknown(NOT_INITIALISED, f"{_REGISTER}: not registered yet")


class XidEvent(NamedTuple):
    """An XID error. ``device`` is its index, -1 if the driver names one that we do not know."""

    device: int
    code: int
    seconds: float


class XidWatch:
    """Wait for the driver's error events (Xid).

    One thread calls :meth:`open`, then :meth:`wait` repeatedly, and :meth:`close` at the end. Other
    threads may read ``why_not``, which says for a device why its errors are not received; errors of
    a device without an entry are received.
    """

    def __init__(self, binding: Any, calls: DeviceCalls, count: int) -> None:
        self._n = binding
        self._calls = calls
        self._set: Optional[Any] = None
        self._handles: Dict[int, int] = {}
        self.why_not: Dict[int, Unknown] = dict.fromkeys(range(count), NOT_YET)

    @property
    def current_call(self) -> Optional[Tuple[str, float]]:
        return self._calls.current

    def open(self) -> bool:
        """Register all devices, and return whether events of any are received.

        It may be called again for devices that failed.
        """
        if self._set is None:
            made = self._calls.attempt("nvmlEventSetCreate", lambda: self._n.nvmlEventSetCreate())
            if isinstance(made, Unknown):
                self.why_not = dict.fromkeys(self.why_not, made)
                return False
            self._set = made
        refused: Dict[int, Unknown] = {}
        for index in list(self.why_not):
            failed = self._register(index)
            if failed is not None:
                refused[index] = failed
        self.why_not = refused
        return bool(self._handles)

    def _register(self, index: int) -> Optional[Unknown]:
        get = "nvmlDeviceGetHandleByIndex_v2"
        handle = self._calls.attempt(
            get, lambda: self._n.nvmlDeviceGetHandleByIndex(index), (get, index)
        )
        if isinstance(handle, Unknown):
            return handle

        def register() -> bool:
            self._n.nvmlDeviceRegisterEvents(handle, XID, self._set)
            return True

        done = self._calls.attempt(_REGISTER, register, (_REGISTER, index))
        if isinstance(done, Unknown):
            return done
        self._handles[_address(handle)] = index
        return None

    def wait(self) -> Optional[XidEvent]:
        """Return the next error, or None after about a second without one.

        A failing call takes a second, too, so that a loop does not spin.
        """
        if self._set is None or not self._handles:
            time.sleep(WAIT_MS / 1000)
            return None
        data = self._calls.attempt(_WAIT, self._wait)
        if isinstance(data, Unknown):
            time.sleep(WAIT_MS / 1000)
            return None
        if data is False or not data.eventType & XID:
            return None
        return XidEvent(
            self._handles.get(_address(data.device), -1), int(data.eventData), time.monotonic()
        )

    def _wait(self) -> Any:
        try:
            return self._n.nvmlEventSetWait_v2(self._set, WAIT_MS)
        except Exception as error:
            if getattr(error, "value", None) == TIMEOUT_RETURN:
                return False  # no event happened
            raise

    def close(self) -> None:
        """Gives the driver's set back."""
        if self._set is not None:
            held, self._set = self._set, None
            self._calls.attempt("nvmlEventSetFree", lambda: self._n.nvmlEventSetFree(held) or True)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
