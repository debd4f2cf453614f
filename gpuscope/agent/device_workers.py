"""Run the threads that call the driver: one opens NVML, and each device has its own."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple, Union

from ..wire.frames import LOST, NOT_INITIALISED, TIMEOUT, GpuDef, Reading, Unknown
from .ticker import Beat
from .worker import Backoff, Doing, Worker, hung

if TYPE_CHECKING:
    from ..collect.nvml import NvmlDevice

PROCESSES_SECONDS = 1.0
LISTS_SHARE, LISTS_SECONDS = 0.002, 5.0
"""The share of a core that reading one device's process lists may take (on an H200 a list costs
some 0.4 ms for each process). The lists are read every 5 s at least.
"""
SLOW_SECONDS = 5.0
SELDOM = 6
"""Readings that are expensive and hardly change are taken once in this many slow rounds."""
LOAD_SECONDS = 5.0
"""Seconds between two readings of the load of processes, which cost 2 to 3 ms for each device."""
INVENTORY_SECONDS = 60.0
SLOWEST_ROUND_SECONDS = 5.0
SECOND_SECONDS = 0.12
"""Seconds from the first reading to the second; some counters give nothing before that."""
RIPENING_ROUNDS = 4
"""So many rounds follow at once while such a counter gives nothing. Two are enough, unless another
device has the turn for as long, as only one may be asked at a time.
"""


class DeviceWorker(Worker):
    """Ask one device for its readings, each kind at its own interval.

    ``fast`` is read at the rate of the stream, ``processes`` every second or less often, ``slow``
    and ``load`` every 5 s. ``static`` is read once, and again as long as a part of it was lost or
    timed out; after that the inventory is read every minute. Every answer carries its time, in
    monotonic seconds.
    """

    def __init__(self, device: NvmlDevice, hz: float, on_answer: Callable[[], None]) -> None:
        super().__init__(f"gpu-{device.index}", on_answer)
        self.device = device
        self.interval = 1.0 / hz
        self.static: Optional[Tuple[GpuDef, Dict[str, Unknown]]] = None
        self.fast: Optional[Tuple[float, Dict[str, Reading]]] = None
        self.slow: Optional[Tuple[float, Dict[str, Reading]]] = None
        self.processes: Optional[
            Tuple[float, Union[List[Tuple[int, Reading]], Unknown], Optional[Unknown]]
        ] = None
        self.load: Optional[Tuple[float, Union[Dict[int, float], Unknown]]] = None
        """SM percent by pid, of processes that ran kernels recently."""
        self.inventory: Optional[Dict[str, Reading]] = None
        """The fields of GpuDef that are read later; None before they were read."""
        self.paths: Dict[str, Reading] = {}
        """The fields of GpuDef about the paths to other devices, set by :class:`PathsWorker`; {}
        before they were read.
        """
        self._rounds = self._slow_rounds = 0
        self.idle_since: Reading = Unknown(NOT_INITIALISED, "not asked yet")
        """Since when no kernel has run there, as far as is known: monotonic seconds, 0.0 while one
        runs.
        """
        self.before: Optional[GpuDef] = None
        """The identity of the device that had this index before the driver was opened again."""
        self._identity: Tuple[Tuple[object, ...], Optional[GpuDef]] = ((self,) * 4, None)
        """The identity of the device, and the parts it was made from; at first there are none."""

    @property
    def identity(self) -> Optional[GpuDef]:
        """Return the device's identity.

        A lost device that cannot report its UUID keeps the one it had.

        None before any answer.
        """
        parts = (self.static, self.inventory, self.paths, self.before)
        if any(one is not other for one, other in zip(parts, self._identity[0])):
            self._identity = parts, self._put_together()
        return self._identity[1]

    def _put_together(self) -> Optional[GpuDef]:
        definition = self.static[0] if self.static else None
        if self.before is not None and (
            definition is None or definition.uuid.startswith("unknown:")
        ):
            return self.before
        inventory = self.inventory
        if definition is None or inventory is None:
            return definition
        known = {
            name: v for name, v in {**inventory, **self.paths}.items() if not isinstance(v, Unknown)
        }
        return replace(definition, **known)  # type: ignore[arg-type]

    @property
    def unknown_inventory(self) -> Dict[str, Unknown]:
        """Return why fields of the inventory are not known."""
        found = {**(self.inventory or {}), **self.paths}
        return {name: why for name, why in found.items() if isinstance(why, Unknown)}

    @property
    def doing(self) -> Doing:
        return self.device.current_call

    def run(self) -> None:
        now = time.monotonic()
        fast, processes, slow = (
            Beat(self.interval, now),
            Beat(PROCESSES_SECONDS, now),
            Beat(SLOW_SECONDS, now),
        )
        inventory, load = Beat(INVENTORY_SECONDS, now), Beat(LOAD_SECONDS, now)
        static = Backoff(now)
        complete, took = False, 0.0
        while not self.stopping:
            now = time.monotonic()
            fast.set(self.interval, now)
            first = self.processes is None
            if self.static is None or (static.due(now) and incomplete(self.static[1])):
                self.static = self.device.static()
            if fast.due(now):
                self.fast = (time.monotonic(), self.device.fast())
                self._rounds += 1
                self._watch_idle(*self.fast)
                if self._rounds < RIPENING_ROUNDS and _unripe(self.fast[1]):
                    fast.next = min(fast.next, time.monotonic() + SECOND_SECONDS)
            if processes.due(now):
                began = time.monotonic()
                listed = self.device.processes()
                self.processes = (
                    time.monotonic(),
                    listed,
                    getattr(self.device, "processes_gap", None),
                )
                took, before = self.processes[0] - began, took
                processes.set(lists_seconds(min(took, before)), now)
            if first:
                self.on_answer()
            if slow.due(now):
                self.slow = (
                    time.monotonic(),
                    self.device.slow(seldom=self._slow_rounds % SELDOM == 0),
                )
                self._slow_rounds += 1
                if self._slow_rounds < RIPENING_ROUNDS and _unripe(self.slow[1]):
                    slow.next = min(slow.next, time.monotonic() + SECOND_SECONDS)
            if load.due(now):
                self.load = (time.monotonic(), self.device.process_load())
            if inventory.due(now):
                self.inventory = self.device.inventory()
            if not complete:
                complete = True
                self.on_answer()
            self.bell.wait(
                min(fast.next, processes.next, slow.next, load.next, inventory.next)
                - time.monotonic()
            )

    def _watch_idle(self, now: float, readings: Dict[str, Reading]) -> None:
        load = readings["utilization_percent"]
        if isinstance(load, (Unknown, str)):
            self.idle_since = load
        elif load >= 1:
            self.idle_since = 0.0
        elif isinstance(self.idle_since, Unknown):  # it was idle already when the agent started
            before = self.device.idle_seconds()
            self.idle_since = round(now - (before if isinstance(before, float) else 0.0), 1)
        elif not self.idle_since:
            self.idle_since = round(now, 1)

    def failed(self, reason: Unknown) -> None:
        super().failed(reason)
        self.stop()

    def late(self, now: float) -> Optional[Unknown]:
        """Return why this device's readings are too old to be shown, or None if they are not.

        A device is late when a call has not returned for two intervals. A driver that is slow with
        every call, but answers, is late only when a whole round takes far too long.
        """
        if self.failure is not None:
            return self.failure
        doing = self.doing
        if doing is not None and now - doing[1] > 2 * self.interval:
            return hung(doing, now, now)
        last = self.fast[0] if self.fast else self.started
        return (
            hung(doing, last, now)
            if now - last > 2 * self.interval + SLOWEST_ROUND_SECONDS
            else None
        )

    @property
    def answered(self) -> bool:
        """Tell whether every kind of question has been answered at least once.

        Readings that need two samples must have had two, or :data:`RIPENING_ROUNDS` chances.
        """
        if (
            self.static is None
            or self.fast is None
            or self.slow is None
            or self.processes is None
            or self.load is None
        ):
            return False
        ripe = (self._rounds >= RIPENING_ROUNDS or not _unripe(self.fast[1])) and (
            self._slow_rounds >= RIPENING_ROUNDS or not _unripe(self.slow[1])
        )
        return self.inventory is not None and ripe


def lists_seconds(took: float) -> float:
    """Return the seconds between two process lists that take ``took`` seconds each.

    With many processes a list costs milliseconds.
    """
    return float(min(max(math.ceil(took / LISTS_SHARE), PROCESSES_SECONDS), LISTS_SECONDS))


def _unripe(readings: Dict[str, Reading]) -> bool:
    return any(
        isinstance(value, Unknown) and value.code == NOT_INITIALISED for value in readings.values()
    )


def incomplete(unknown: Dict[str, Unknown]) -> bool:
    """Whether a field is unknown for a reason that may pass."""
    return any(reason.code in (LOST, TIMEOUT, NOT_INITIALISED) for reason in unknown.values())
