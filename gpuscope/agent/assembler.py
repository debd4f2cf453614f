"""Turn a picture of the host into the frames of one tick.

The assembler does no input or output and reads no clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Hashable, List, Optional, Set, Tuple

from ..collect.xid import xid_words
from ..wire.frames import (
    HIDDEN_BY_CONTAINER,
    HOST_ID,
    NOT_INITIALISED,
    AllocDef,
    Event,
    Frame,
    ProcDef,
    Unknown,
    UseDef,
)
from .picture import NOT_ASKED_YET, DevicePicture, Picture
from .stream import StreamMemory

MAX_PROCESSES = 4096
MAX_ALLOCATORS = 2048
"""For all trainers together, because their rows must fit into one line."""

_HOST = ("host",)


class Assembler:
    """Writes pictures into one :class:`StreamMemory`.

    ``trainers`` maps the stream's id of a trainer to the name of its link. ``last`` says that no
    further picture follows, so that a device which has not answered yet is reported too, with the
    reason.
    """

    def __init__(self, last: bool = False) -> None:
        self.stream = StreamMemory()
        self._last = last
        self.trainers: Dict[int, int] = {}
        self._stamps: Dict[Hashable, float] = {}
        self._links: Dict[int, Set[Hashable]] = {}  # link → keys of its trainer and allocators
        self._endings: Dict[Hashable, str] = {}
        self._note = ""

    def tick(self, picture: Picture, monotonic_ns: int) -> Tuple[List[Frame], Frame, List[Frame]]:
        """Return the frames before the sample, the sample, and the frames after it."""
        self._endings = {("proc", *key): text for key, text in picture.departed.items()}
        events: List[Frame] = [
            Event(HOST_ID, "problem", monotonic_ns, text) for text in picture.problems
        ]
        if picture.note and picture.note != self._note:
            self._note = picture.note
            events.append(Event(HOST_ID, "note", monotonic_ns, picture.note))
        self._host(picture)
        for device in picture.devices:
            self._device(device, picture.seconds)
        for uuid, code in picture.xids:
            number = self.stream.id_of(("gpu", uuid)) or HOST_ID
            events.append(Event(number, "xid", monotonic_ns, xid_words(code), {"xid": code}))
        processes = self._processes(picture)
        for device in picture.devices:
            self._uses(
                device,
                processes if picture.hidden is None else self._foreign(device, picture.hidden),
            )
        events.extend(self._trainers(picture, processes, monotonic_ns))
        definitions, sample, gone = self.stream.tick(monotonic_ns, self._endings)
        return [*definitions], sample, [*events, *gone]

    def _row(
        self, table: str, key: Hashable, readings: Any, stamp: float, read_seconds: float = 0.0
    ) -> None:
        """Add a row if there is anything new since the last one."""
        if stamp and self._stamps.get(key) != stamp:
            self._stamps[key] = stamp
            self.stream.row(table, key, readings, read_seconds)

    def _host(self, picture: Picture) -> None:
        reasons = dict(picture.host_reasons)
        if picture.nvml is not None:
            reasons["nvml"] = picture.nvml
        if picture.unread is not None:
            reasons["trainers"] = picture.unread
        if picture.hidden is not None:
            reasons["processes"] = picture.hidden
        self.stream.define("host", _HOST, picture.host, reasons)
        self._row("h", _HOST, picture.host_readings, picture.host_stamp)

    def _device(self, device: DevicePicture, seconds: float) -> None:
        if device.reasons.get("uuid") is NOT_ASKED_YET and not self._last:
            return  # its UUID is still being read
        key = ("gpu", device.definition.uuid)
        self.stream.define("gpu", key, device.definition, device.reasons)
        stamp = device.stamp or (seconds if self._last else 0.0)
        self._row("g", key, device.readings, stamp, stamp)

    def _processes(self, picture: Picture) -> Dict[int, Hashable]:
        """Define each process that could be examined. Returns their keys by pid."""
        keys: Dict[int, Hashable] = {}
        for pid, process in picture.processes.items():
            if len(keys) < MAX_PROCESSES:
                one = process.definition
                keys[pid] = key = ("proc", one.pid, one.start)
                self.stream.define("proc", key, one, process.reasons)
                self._row("p", key, process.readings, process.stamp)
        return keys

    def _foreign(self, device: DevicePicture, hidden: Unknown) -> Dict[int, Hashable]:
        """Define processes that the driver lists with pids of another namespace, by those pids."""
        keys: Dict[int, Hashable] = {}
        for pid, _ in (device.processes or [])[:MAX_PROCESSES]:
            keys[pid] = key = ("proc", "driver", pid)
            self.stream.define(
                "proc", key, ProcDef(pid), dict.fromkeys(("start", "user", "command"), hidden)
            )
        return keys

    def _uses(self, device: DevicePicture, processes: Dict[int, Hashable]) -> None:
        gpu = self.stream.id_of(("gpu", device.definition.uuid))
        for pid, used in device.processes or ():
            process = processes.get(pid)
            number = self.stream.id_of(process)
            if process is None or number is None or gpu is None:
                continue
            key = ("use", process, device.definition.uuid)
            self.stream.define("use", key, UseDef(number, gpu), {})
            readings = {"used_bytes": used, "sm_percent": device.load.get(pid, NOT_ASKED_YET)}
            self._row("u", key, readings, device.processes_stamp, device.processes_stamp)

    def _trainers(
        self, picture: Picture, processes: Dict[int, Hashable], monotonic_ns: int
    ) -> List[Frame]:
        events: List[Frame] = []
        left = MAX_ALLOCATORS
        for report in picture.trainers:
            process = processes.get(report.pid) if report.pid is not None else None
            key: Hashable = ("trainer", report.link)
            reasons = dict(report.reasons)
            if report.pid is None:
                reasons["proc"] = Unknown(
                    HIDDEN_BY_CONTAINER,
                    "the trainer runs in another pid namespace, where its pid differs",
                )
            definition = replace(report.definition, proc=self.stream.id_of(process))
            trainer = self.stream.define("trainer", key, definition, reasons)
            self.trainers[trainer] = report.link
            self._links.setdefault(report.link, set()).add(key)
            self._row("t", key, report.readings, report.rows)
            ids: Dict[Optional[int], int] = {None: trainer}
            left -= len(report.allocators)
            for allocator in report.allocators if left >= 0 else ():
                alloc_key = ("alloc", report.link, allocator.key)
                alloc, unmapped = self._mapped(allocator.definition, trainer, picture)
                ids[allocator.key] = self.stream.define(
                    "alloc", alloc_key, alloc, {**unmapped, **allocator.reasons}
                )
                self._links[report.link].add(alloc_key)
                self._row(
                    "a", alloc_key, allocator.readings, allocator.rows, allocator.read_seconds
                )
            for about, event in report.events:
                events.append(replace(event, id=ids.get(about, trainer)))
        self._end_lost_links(picture)
        return events

    def _mapped(
        self, alloc: AllocDef, trainer: int, picture: Picture
    ) -> Tuple[AllocDef, Dict[str, Unknown]]:
        """Return the allocator with our ids for its trainer and for the device with its UUID."""
        device = picture.device(alloc.uuid)
        gpu = self.stream.id_of(("gpu", device.definition.uuid)) if device is not None else None
        reasons = {}
        if gpu is None and alloc.ordinal >= 0:
            reasons["gpu"] = Unknown(
                NOT_INITIALISED, f"the UUID of cuda:{alloc.ordinal} is unknown here"
            )
        return replace(alloc, trainer=trainer, gpu=gpu), reasons

    def _end_lost_links(self, picture: Picture) -> None:
        """End the trainers whose links report it.

        A trainer that is only missing from one picture has not ended.
        """
        for link, text in picture.ended_links.items():
            for key in self._links.pop(link, ()):
                self._endings[key] = text
                if key == ("trainer", link):
                    self.trainers.pop(self.stream.id_of(key) or HOST_ID, None)
        reported = {report.link for report in picture.trainers}
        for link, keys in self._links.items():
            if link not in reported:
                for key in keys:
                    self.stream.keep(key)
