"""Run the threads that call the driver: one opens NVML, and each device has its own."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple, Union

from ..wire.frames import DRIVER_ERROR, LOST, NOT_INITIALISED, TIMEOUT, GpuDef, Reading, Unknown
from .ticker import Beat
from .worker import Backoff, Doing, Worker, hung

if TYPE_CHECKING:
    from ..collect.nvml import Nvml, NvmlDevice
    from ..collect.nvml_events import XidWatch

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
MAX_EVENTS = 64
XID_END_SECONDS = 3.0
SLOWEST_ROUND_SECONDS = 5.0
SECOND_SECONDS = 0.12
"""Seconds from the first reading to the second; some counters give nothing before that."""
RELOADED = (LOST, NOT_INITIALISED, DRIVER_ERROR)
NO_XID = Unknown(NOT_INITIALISED, "no XID error since gpuscope started")


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
        self.failure: Optional[Unknown] = None
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
            if self.static is None or (static.due(now) and _incomplete(self.static[1])):
                self.static = self.device.static()
            if fast.due(now):
                self.fast = (time.monotonic(), self.device.fast())
                self._rounds += 1
                self._watch_idle(*self.fast)
                if self._rounds == 1 and self._unripe:
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
                first = self.slow is None
                self.slow = (
                    time.monotonic(),
                    self.device.slow(seldom=self._slow_rounds % SELDOM == 0),
                )
                if first and _unripe(self.slow[1]):
                    slow.next = min(slow.next, time.monotonic() + SECOND_SECONDS)
                self._slow_rounds += 1
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
        self.failure = reason
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

        Readings that need two samples must have had two.
        """
        if (
            self.static is None
            or self.fast is None
            or self.slow is None
            or self.processes is None
            or self.load is None
        ):
            return False
        ripe = (self._rounds > 1 or not self._unripe) and (
            self._slow_rounds > 1 or not _unripe(self.slow[1])
        )
        return self.inventory is not None and ripe

    @property
    def _unripe(self) -> bool:
        """Tell whether a reading is missing only because it needs two samples."""
        return self.fast is not None and _unripe(self.fast[1])


def lists_seconds(took: float) -> float:
    """Return the seconds between two process lists that take ``took`` seconds each.

    With many processes a list costs milliseconds.
    """
    return float(min(max(math.ceil(took / LISTS_SHARE), PROCESSES_SECONDS), LISTS_SECONDS))


def _unripe(readings: Dict[str, Reading]) -> bool:
    return any(
        isinstance(value, Unknown) and value.code == NOT_INITIALISED for value in readings.values()
    )


def _incomplete(unknown: Dict[str, Unknown]) -> bool:
    return any(reason.code in (LOST, TIMEOUT, NOT_INITIALISED) for reason in unknown.values())


class PathsWorker(Worker):
    """Asks each device for its paths to the others, once, and again as long as one is not known.

    It has a thread of its own, because such a call concerns two devices, and one that hangs must
    not stop the readings of the other.
    """

    def __init__(self, devices: Tuple[DeviceWorker, ...], on_answer: Callable[[], None]) -> None:
        super().__init__("paths", on_answer)
        self._devices = devices
        self.settled = False
        """Whether every device was asked."""
        self.failure: Optional[Unknown] = None

    def run(self) -> None:
        retry = Backoff(time.monotonic())
        open_ends = list(self._devices)
        while open_ends and not self.stopping:
            left = []
            for worker in open_ends:
                worker.paths, unsure = worker.device.paths(len(self._devices))
                if unsure or _incomplete(
                    {n: v for n, v in worker.paths.items() if isinstance(v, Unknown)}
                ):
                    left.append(worker)
            self.settled = True
            open_ends = left
            while open_ends and not self.stopping and not retry.due(time.monotonic()):
                self.bell.wait(1.0)

    def failed(self, reason: Unknown) -> None:
        self.failure, self.settled = reason, True


class XidWorker(Worker):
    """Receives critical errors (XIDs) of all devices while NVML is open.

    ``counts`` and ``last`` are by device index.
    """

    def __init__(self, watch: XidWatch, before: Optional[XidWorker] = None) -> None:
        super().__init__("xid", lambda: None)
        self._watch = watch
        self._counts: Dict[int, int] = dict(before._counts) if before is not None else {}
        self._last: Dict[int, int] = dict(before._last) if before is not None else {}
        self.events: List[Tuple[int, int]] = []
        """Device index and XID of errors that have not been fetched yet."""
        self.failure: Optional[Unknown] = None

    @property
    def doing(self) -> Doing:
        return self._watch.current_call

    def run(self) -> None:
        retry = Backoff(time.monotonic())
        self._watch.open()
        while not self.stopping:
            if self._watch.why_not and retry.due(time.monotonic()):
                self._watch.open()
            event = self._watch.wait()
            if event is not None:
                self._counts[event.device] = self._counts.get(event.device, 0) + 1
                self._last[event.device] = event.code
                if len(self.events) < MAX_EVENTS:
                    self.events.append((event.device, event.code))
        self._watch.close()

    def readings(self, index: int) -> Dict[str, Reading]:
        """Return a device's XID columns: the number of errors and the last one.

        If errors of the device cannot be received, the columns hold the reason.
        """
        why = self.failure if self.failure is not None else self._watch.why_not.get(index)
        if why is not None:
            return {"xid_count": why, "last_xid": why}
        return {"xid_count": self._counts.get(index, 0), "last_xid": self._last.get(index, NO_XID)}

    def take(self) -> List[Tuple[int, int]]:
        """Return the errors that were received since the last call."""
        reported = list(self.events)
        # in place, because the other thread may be about to append to this list
        del self.events[: len(reported)]
        return reported

    def end(self, seconds: float) -> bool:
        """Stop the thread and wait for it; one wait for an event lasts a second.

        False if it is still inside a call.
        """
        self.stop()
        self._thread.join(seconds)
        return not self.alive

    def failed(self, reason: Unknown) -> None:
        self.failure = reason


class NvmlWorker(Worker):
    """Opens NVML, which may hang too, and starts a worker for each device.

    If there is no driver, or all devices have disappeared with it, it tries again at growing
    intervals.
    """

    def __init__(
        self, hz: float, on_answer: Callable[[], None], make: Optional[Callable[[], Nvml]] = None
    ) -> None:
        super().__init__("nvml", on_answer)
        self.hz = hz
        self.devices: Tuple[DeviceWorker, ...] = ()
        self.unavailable: Optional[Unknown] = Unknown(NOT_INITIALISED, "NVML has not answered yet")
        """Why there are no devices; None once there are some."""
        self.settled = False
        """Whether opening has ended, with or without success."""
        self.driver_version: Reading = self.unavailable
        self.cuda_version: Reading = self.unavailable
        self.note: Optional[str] = None
        self._make = make
        self._nvml: Optional[Nvml] = None
        self._opening: Optional[Nvml] = None
        self.xids: Optional[XidWorker] = None
        self.paths: Optional[PathsWorker] = None

    @property
    def doing(self) -> Doing:
        opening = self._opening
        return opening.current_call if opening is not None else None

    def set_rate(self, hz: float) -> None:
        self.hz = hz
        for worker in self.devices:
            worker.set_rate(hz)

    def run(self) -> None:
        backoff = Backoff(time.monotonic())
        while not self.stopping:
            self._open(self._make or _nvml)
            if not self.settled:
                self.settled = True
                self.on_answer()
            while not self.stopping and not (
                self._driver_is_gone() and backoff.due(time.monotonic())
            ):
                self.bell.wait(1.0)

    def _open(self, make: Callable[[], Nvml]) -> None:
        from ..collect.nvml_errors import NvmlUnavailable

        old = self.devices
        if self._nvml is not None:
            if self.xids is not None:
                self.xids.end(XID_END_SECONDS)
            # Only a complete shutdown makes the library look at the hardware again, which is
            # impossible while a call hangs.
            if not self._nvml.close():
                return
            self._nvml = None
        nvml = self._opening = make()
        try:
            nvml.start()
        except NvmlUnavailable as error:
            self.unavailable = self.driver_version = self.cuda_version = error.unknown
            for worker in old:
                worker.failed(error.unknown)
            return
        finally:
            self._opening = None
        self._nvml = nvml
        self.driver_version, self.cuda_version, self.note = (
            nvml.driver_version,
            nvml.cuda_version,
            nvml.binding_note,
        )
        devices = tuple(
            DeviceWorker(nvml.device(index), self.hz, self.on_answer)
            for index in range(nvml.device_count())
        )
        for worker in devices:
            if len(old) == len(devices):
                worker.before = old[worker.device.index].identity
            worker.start()
        for worker in old:
            worker.stop()
        self.devices = devices
        self.unavailable = (
            None
            if devices
            else Unknown(NOT_INITIALISED, "the driver answers, but reports no devices")
        )
        if self.paths is not None:
            self.paths.stop()
        self.paths = PathsWorker(devices, self.on_answer)
        self.paths.start()
        self.xids = XidWorker(nvml.xid_watch(), self.xids)
        self.xids.start()
        # said while the driver was being opened, by the threads that now have the answer
        if self.stopping:
            self.stop()

    def _driver_is_gone(self) -> bool:
        """Tell whether no device has a reading although each of them answers.

        Then the driver is gone, or was reloaded while NVML was open.
        """
        return all(
            worker.failure is not None
            or (
                worker.fast is not None
                and worker.late(time.monotonic()) is None
                and all(isinstance(value, Unknown) for value in worker.fast[1].values())
                and any(
                    isinstance(value, Unknown) and value.code in RELOADED
                    for value in worker.fast[1].values()
                )
            )
            for worker in self.devices
        )

    def stop(self) -> None:
        super().stop()
        for one in (self.xids, self.paths):
            if one is not None:
                one.stop()
        for worker in self.devices:
            worker.stop()

    def failed(self, reason: Unknown) -> None:
        self.unavailable, self.settled = reason, True


def _nvml() -> Nvml:
    from ..collect.nvml import Nvml

    return Nvml()
