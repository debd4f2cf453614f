"""Run the threads that concern all devices: they open NVML, hear of errors, and ask for paths."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple

from ..wire.frames import DRIVER_ERROR, LOST, NOT_ANSWERED, NOT_INITIALISED, Reading, Unknown
from .device_workers import DeviceWorker, incomplete
from .worker import Backoff, Doing, Worker

if TYPE_CHECKING:
    from ..collect.nvml import Nvml
    from ..collect.nvml_events import XidWatch

MAX_EVENTS = 64
XID_END_SECONDS = 3.0
RELOADED = (LOST, NOT_INITIALISED, DRIVER_ERROR)
NO_XID = Unknown(NOT_INITIALISED, "no XID error since gpuscope started")


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

    def run(self) -> None:
        retry = Backoff(time.monotonic())
        open_ends = list(self._devices)
        while open_ends and not self.stopping:
            left = []
            for worker in open_ends:
                worker.paths, unsure = worker.device.paths(len(self._devices))
                if unsure or incomplete(
                    {n: v for n, v in worker.paths.items() if isinstance(v, Unknown)}
                ):
                    left.append(worker)
            self.settled = True
            open_ends = left
            while open_ends and not self.stopping and not retry.due(time.monotonic()):
                self.bell.wait(1.0)

    def failed(self, reason: Unknown) -> None:
        super().failed(reason)
        self.settled = True


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
        self.unavailable: Optional[Unknown] = Unknown(NOT_INITIALISED, NOT_ANSWERED)
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
            None if devices else Unknown(NOT_INITIALISED, "the driver answers, but reports no GPUs")
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
