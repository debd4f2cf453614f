"""The picture: what is known about this host now, from the workers' last answers.

Nothing in this module calls the driver or reads /proc. A reading is a value or Unknown with the
reason; a call that has not returned in time gives Unknown ``timeout``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Callable,
    Dict,
    FrozenSet,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

from ..collect.nvml_process_load import NO_SAMPLE
from ..collect.unowned import unowned_bytes
from ..wire import frames
from ..wire.frames import NOT_INITIALISED, GpuDef, HostDef, ProcDef, Reading, Unknown
from .device_workers import DeviceWorker
from .host_workers import HostWorker, ProcessWorker
from .nvml_workers import NvmlWorker
from .ticker import Bell
from .worker import hung

if TYPE_CHECKING:
    from ..collect.nvml import Nvml
    from ..collect.trainers import Probes, TrainerReport

NOT_ASKED_YET = Unknown(NOT_INITIALISED, "not asked yet")

ProcessKey = Tuple[int, Optional[int]]
"""pid and start ticks."""


@dataclass
class DevicePicture:
    """One device.

    ``stamp`` grows with each answer. ``processes``: pid and bytes, Unknown bytes without a list.
    """

    definition: GpuDef
    reasons: Dict[str, Unknown]
    readings: Mapping[str, Reading]
    stamp: float
    late: Optional[Unknown]
    processes: Optional[List[Tuple[int, Reading]]] = None
    processes_stamp: float = 0.0
    load: Mapping[int, Reading] = field(default_factory=dict)
    """SM percent of each of ``processes`` by pid, or why it is unknown."""


@dataclass
class ProcessPicture:
    definition: ProcDef
    reasons: Dict[str, Unknown]
    readings: Mapping[str, Reading]
    stamp: float


@dataclass
class Picture:
    """One host at one moment (``seconds``, monotonic).

    ``nvml`` says why there are no devices, None when there are.
    """

    seconds: float
    host: HostDef
    host_reasons: Dict[str, Unknown]
    host_readings: Mapping[str, Reading]
    host_stamp: float
    nvml: Optional[Unknown]
    note: Optional[str] = None
    devices: List[DevicePicture] = field(default_factory=list)
    processes: Dict[int, ProcessPicture] = field(default_factory=dict)
    departed: Mapping[ProcessKey, str] = field(default_factory=dict)
    trainers: List[TrainerReport] = field(default_factory=list)
    ended_links: Dict[int, str] = field(default_factory=dict)
    problems: List[str] = field(default_factory=list)
    unread: Optional[Unknown] = None
    """Why some probes here are missing from ``trainers``; None if all are there."""
    xids: List[Tuple[str, int]] = field(default_factory=list)
    """Critical errors since the last picture: the UUID of the device, "" where it is not known, and
    the number.
    """
    hidden: Optional[Unknown] = None
    """Why the pids in ``devices`` differ from those in ``processes`` and ``trainers``; None if they
    do not.
    """

    def device(self, uuid: Optional[str]) -> Optional[DevicePicture]:
        """Return the device with this UUID, which torch writes without the "GPU-" of NVML."""
        if uuid is None:
            return None
        return next(
            (one for one in self.devices if _bare(one.definition.uuid) == _bare(uuid)), None
        )


def _bare(uuid: str) -> str:
    uuid = uuid.lower()
    return uuid[4:] if uuid.startswith("gpu-") else uuid


def _load(picture: DevicePicture, worker: DeviceWorker, pending: Unknown) -> Dict[int, Reading]:
    """Return the SM percent of each process on a device.

    The driver names the processes that ran kernels. A process that it does not name beside others
    has a share of 0. Where it names nobody, the share is 0 if the device itself was idle, and
    unknown otherwise.
    """
    pids = [pid for pid, _ in picture.processes or ()]
    load = picture.late if picture.late is not None else worker.load[1] if worker.load else pending
    if load is NO_SAMPLE and picture.readings.get("utilization_percent") == 0:
        load = {}
    if isinstance(load, Unknown):
        return dict.fromkeys(pids, load)
    return {pid: load.get(pid, 0.0) for pid in pids}


def _unowned(device: DevicePicture) -> bool:
    used, reserve = device.readings.get("used_bytes"), device.readings.get("driver_reserved_bytes")
    return (
        device.processes == []
        and isinstance(used, int)
        and bool(unowned_bytes(used, (), isinstance(reserve, int)))
    )


class Collector:
    """All workers of one host. :meth:`start` returns at once; :meth:`picture` never waits.

    ``make_nvml`` is for tests; ``directories`` replaces the places where probes are looked for.
    """

    def __init__(
        self,
        hz: float,
        redact: bool = True,
        probe_hz: Optional[float] = None,
        make_nvml: Optional[Callable[[], Nvml]] = None,
        directories: Optional[Sequence[str]] = None,
    ) -> None:
        self.bell = Bell()
        """It rings when something has answered for the first time."""
        self.nvml = NvmlWorker(hz, self.bell.ring, make_nvml)
        self.host = HostWorker(hz, self.bell.ring)
        self.processes = ProcessWorker(self.bell.ring, redact)
        self.probes: Optional[Probes] = None
        self._probe_hz = probe_hz or hz
        self._directories = directories
        self._probes_thread: Optional[threading.Thread] = None
        self._lists: Dict[str, List[Tuple[int, Reading]]] = {}

    def start(self, on_answer: Optional[Callable[..., None]] = None) -> None:
        for worker in (self.nvml, self.host, self.processes):
            worker.start()
        from ..collect.trainers import Probes
        from ..probe.blackbox import note_exit

        self.probes = Probes(self._directories, on_answer)
        self.probes.on_exit = note_exit  # for whoever asks later, without having watched
        self.probes.on_news = self.bell.ring
        self.probes.set_rate(self._probe_hz)
        self._probes_thread = threading.Thread(target=self.probes.run, name="probes", daemon=True)
        self._probes_thread.start()

    def set_rate(self, hz: float) -> None:
        self.nvml.set_rate(hz)
        self.host.set_rate(hz)
        if self.probes is not None:
            self.probes.set_rate(hz)

    def stop(self) -> None:
        for worker in (self.nvml, self.host, self.processes):
            worker.stop()
        if self.probes is not None:
            self.probes.close()

    @property
    def busy(self) -> bool:
        """Tell whether a worker thread is alive.

        After :meth:`stop` that is one inside a call which does not return.
        """
        return any(
            worker.alive for worker in (self.nvml, self.host, self.processes, *self.nvml.devices)
        )

    def picture(self) -> Picture:
        """Return what is known now. This also tells the process worker which processes matter."""
        now = time.monotonic()
        nvml = self._nvml_reason(now)
        host, host_reasons = self._host_definition(nvml)
        late = self.host.late(now)
        stamp, readings = self.host.latest or (0.0, {})
        if late is not None:
            readings = dict.fromkeys(frames.HOST_COLUMNS, late)
        picture = Picture(now, host, host_reasons, readings, stamp, nvml, self.nvml.note)
        picture.devices = [self._device(worker, now) for worker in self.nvml.devices]
        if self.nvml.xids is not None:
            uuids = {
                worker.device.index: one.definition.uuid
                for worker, one in zip(self.nvml.devices, picture.devices)
            }
            picture.xids = [(uuids.get(index, ""), code) for index, code in self.nvml.xids.take()]
        if self.probes is not None:
            picture.trainers, picture.ended_links, picture.problems = self.probes.take()
            picture.unread = self.probes.unread
        wanted = {report.pid for report in picture.trainers if report.pid is not None}
        if self.probes is not None:
            wanted |= self.probes.outliving
        listed = frozenset(pid for device in picture.devices for pid, _ in device.processes or ())
        picture.hidden = self.processes.hidden(
            listed, any(_unowned(device) for device in picture.devices)
        )
        if picture.hidden is None and self.processes.ready:
            wanted.update(listed)
        self.processes.want(frozenset(wanted))
        exits = self.probes.exits if self.probes is not None else {}
        picture.departed = {**self.processes.departed, **exits}
        picture.processes = self._processes(frozenset(wanted), now)
        return picture

    def _host_definition(self, nvml: Optional[Unknown]) -> Tuple[HostDef, Dict[str, Unknown]]:
        definition, reasons = self.host.definition or (HostDef(), {})
        definition, reasons = HostDef(**vars(definition)), dict(reasons)
        for name, value in (
            ("driver_version", self.nvml.driver_version),
            ("cuda_driver_version", self.nvml.cuda_version),
        ):
            if isinstance(value, Unknown):
                reasons[name] = value if nvml is None else nvml
            else:
                setattr(definition, name, str(value))
                reasons.pop(name, None)
        return definition, reasons

    def _nvml_reason(self, now: float) -> Optional[Unknown]:
        pending = None if self.nvml.settled else self.nvml.pending(now)
        return self.nvml.unavailable if pending is None else pending

    def _device(self, worker: DeviceWorker, now: float) -> DevicePicture:
        late = worker.late(now)
        # "or" would skip an Unknown too, because it is false like None
        pending = late if late is not None else worker.pending(now)
        if pending is None:
            pending = NOT_ASKED_YET
        definition = worker.identity
        if definition is None:
            definition = GpuDef(f"unknown:{worker.device.index}", worker.device.index)
            reasons = {name: pending for name in frames.NAMES[GpuDef] if name != "index"}
        else:
            inventory = {**(worker.static[1] if worker.static else {}), **worker.unknown_inventory}
            # as it was known before the driver was opened again
            named = definition is worker.before
            reasons = {
                name: why
                for name, why in inventory.items()
                if not named or getattr(definition, name) is None
            }
            if worker.inventory is None or not worker.paths:
                later = [name for name in frames.NAMES[GpuDef] if getattr(definition, name) is None]
                reasons = {**dict.fromkeys(later, pending), **reasons}
        stamp = worker.fast[0] if worker.fast else 0.0
        if late is not None:
            readings: Dict[str, Reading] = dict.fromkeys(frames.DEVICE_COLUMNS, late)
            stamp = now
        else:
            readings = dict.fromkeys(frames.DEVICE_COLUMNS, pending)
            readings.update(worker.fast[1] if worker.fast else {})
            readings.update(worker.slow[1] if worker.slow else {})
            readings["idle_since_seconds"] = pending if worker.fast is None else worker.idle_since
            if self.nvml.xids is not None:
                readings.update(self.nvml.xids.readings(worker.device.index))
        picture = DevicePicture(definition, reasons, readings, stamp, late)
        self._list(picture, worker, pending, now)
        return picture

    def _list(
        self, picture: DevicePicture, worker: DeviceWorker, pending: Unknown, now: float
    ) -> None:
        """Return the processes on the device.

        If there is no list, the processes that were there most likely still are, with unknown
        bytes.
        """
        uuid, late = picture.definition.uuid, picture.late
        picture.processes_stamp, listed, gap = worker.processes or (now, pending, None)
        if late is not None:
            listed = late
        if isinstance(listed, Unknown):
            gap, picture.processes_stamp = listed, now
            before = self._lists.get(uuid)
            picture.processes = None if before is None else [(pid, listed) for pid, _ in before]
        else:
            self._lists[uuid] = picture.processes = listed
        if gap is not None:
            picture.reasons["processes"] = gap
        picture.load = _load(picture, worker, pending)

    def _processes(self, wanted: FrozenSet[int], now: float) -> Dict[int, ProcessPicture]:
        known = self.processes.known
        found = {
            pid: ProcessPicture(one.definition, one.reasons, one.readings, one.seconds)
            for pid, one in known.items()
        }
        doing = self.processes.doing
        late = self.processes.failure
        if late is None and doing is not None and now - doing[1] > 2.0:
            late = hung(doing, doing[1], now)
        if late is not None:
            unread = dict.fromkeys(frames.PROCESS_COLUMNS, late)
            for one in found.values():
                one.readings, one.stamp = unread, now
            for pid in wanted - found.keys():
                found[pid] = ProcessPicture(
                    ProcDef(pid), {"start": late, "command": late}, unread, now
                )
        return found
