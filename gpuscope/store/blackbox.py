"""Read the black box of a trainer.

`gpuscope replay` plays it, for a trainer that ended while nobody watched it.

A box holds the lines that a probe sends, but a viewer knows the streams of agents. So this module
defines the process and the devices around the trainer, and turns how it ended into its last events.
Nothing in a file is trusted: sizes are bounded, slots and header have checksums, lines go through
the decoder, and the reader raises no exception.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import other_format
from ..process.procfs import boot_id, start_ticks
from ..wire import boxes, codec
from ..wire.clean import clean
from ..wire.code_owner import is_own
from ..wire.files import open_regular
from ..wire.frames import (
    AFTER_OUT_OF_MEMORY,
    EXITED,
    HOST_ID,
    INTERRUPTED,
    NO_LAST_WORDS,
    NOT_SUPPORTED,
    PROGRAM_ENDED,
    Def,
    Event,
    Frame,
    GpuDef,
    Hello,
    HostDef,
    Key,
    ProcDef,
    Sample,
    TrainerDef,
)
from ..wire.recorded_lines import Line
from ..wire.recording import Member, Problem

PROC_ID = 1_000_000
GPU_ID = PROC_ID + 1
"""Ids of the entities around the trainer. They are far from the probe's own ids, which count
from 1.
"""
MAX_GPUS = 64
_NO_HOST: list[int | str] = [
    HOST_ID,
    "load_1m",
    NOT_SUPPORTED,
    "a black box has no data about its host",
]
_GZIP = b"\x1f\x8b"


class BoxReader:
    """Reads a box with the interface of :class:`~gpuscope.wire.recording.RecordingReader`.

    ``ended`` is the description of its end that the trainer left, or None.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.problem: Problem | None = None
        self.header: dict[str, Any] = {}
        self.ended: dict[str, Any] | None = None
        self._lines: list[Line] = []
        self._members: list[Member] = []
        try:
            data = _content(self.path)
        except OSError as error:
            self.problem = Problem(
                "unreadable", f"cannot read {clean(str(path))}: {error.strerror or error}"
            )
            return
        hello = self._read_header(data)
        if hello is None:
            text = f"{clean(str(path))} is not a black box, or its start is damaged."
            self.problem = self.problem or Problem("not_a_recording", text)
            return
        self._read(data, hello)

    def lines(self, offset: int = 0) -> Iterator[Line]:
        """Yield the lines from the member at ``offset`` on (0: all)."""
        return iter(self._lines[offset:])

    def index(self) -> list[Member]:
        return self._members

    def _read_header(self, data: bytes) -> Hello | None:
        payload = boxes.read_header(data[: boxes.SLOTS_OFFSET])
        if payload is None:
            return None
        try:
            about = json.loads(payload)
            if about["v"] != boxes.VERSION:
                path, by = str(self.path), about.get("version")
                other = other_format(path, about["v"], boxes.VERSION, by)
                self.problem = Problem(other.code, clean(other.sentence))
                return None
            hello = codec.decode(str(about["hello"]).encode())
            self._nonce = bytes.fromhex(about["nonce"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        ended = about.get("ended")
        self.ended = ended if isinstance(ended, dict) else None
        self.header = {
            "k": "blackbox",
            "v": about["v"],
            "version": clean(str(about.get("version", "")), 40),
        }
        return hello if isinstance(hello, Hello) else None

    def _read(self, data: bytes, hello: Hello) -> None:
        table = _Stream(
            replace(
                hello, role="agent", requests=[], cols={"h": ["load_1m"], "p": [], **hello.cols}
            )
        )
        for line in _wire_lines(data, self._nonce):
            with contextlib.suppress(codec.WireError):
                table.add(codec.decode(line))
        table.finish(self._words(hello), self.ended or {})
        self._lines, self._members = table.lines, table.members
        if not self._lines:
            self.problem = Problem("cut", "this black box has no complete sample")

    def _words(self, hello: Hello) -> str:
        if self.ended is not None:
            return end_reason(self.ended)
        name = self.path.name.partition(".")[0].split("-")
        pid, start = (name[0], name[1]) if len(name) == 2 else ("", "")
        if hello.boot and hello.boot == boot_id() and _start_of(pid) == start:
            return ""
        return end_reason(None)


class _Stream:
    """Turns a probe's frames into those of an agent that knows only this trainer."""

    def __init__(self, hello: Hello) -> None:
        self.lines: list[Line] = []
        self.members: list[Member] = []
        self._hello = hello
        self._begin: int | None = None
        self._at = 0.0
        self._last = 0
        self._gpus: dict[str, int] = {}
        self._trainer: TrainerDef | None = None
        self._trainer_id = 0
        self._known: dict[int, Def] = {}
        self._join: tuple[Key, list[Def]] | None = None

    def add(self, frame: Frame) -> None:
        if isinstance(frame, Key):
            self._flush()
            self._join = (frame, [])
        elif isinstance(frame, Def):
            self._known[frame.id] = frame
            if self._join is not None:
                self._join[1].append(frame)
            else:
                for definition in self._around([frame]):
                    self._put(definition)
        elif isinstance(frame, (Sample, Event)):
            self._flush()
            if self._begin is None:
                return  # frames before the first whole key frame cannot be read without it
            self._clock(frame.m)
            if isinstance(frame, Sample):
                # Every sample has a row of the host, although nothing is known of it, because times
                # are on its clock.
                frame = replace(frame, h=[[HOST_ID, None]], why=[*frame.why, _NO_HOST])
            self._put(frame)

    def finish(self, words: str, ended: dict[str, Any]) -> None:
        self._flush()
        if self._begin is None or not words:
            return
        self._clock(self._last + 1_000_000)
        data = {"how": str(ended.get("how", "nothing"))[:64]}
        for name in ("type", "message", "thread"):
            if isinstance(ended.get(name), str):
                data[name] = ended[name][:2000]
        last_words = words.removeprefix(EXITED)
        self._put(Event(self._trainer_id, "note", self._last, last_words, dict(data)))
        for number, row in enumerate(stack_of(ended)):
            self._clock(self._last + 1_000_000)  # in the order in which a reader lists them
            self._put(
                Event(
                    self._trainer_id,
                    "note",
                    self._last,
                    ("at " if number == 0 else "called at ") + row,
                )
            )
        self._clock(self._last + 1_000_000)
        self._put(Event(PROC_ID, "gone", self._last, words))

    def _flush(self) -> None:
        """End a complete key frame with its definitions: reading can begin there."""
        if self._join is None:
            return
        (key, definitions), self._join = self._join, None
        if not any(definition.trainer for definition in definitions):
            return
        self._clock(key.m)
        everything = self._around(definitions, again=True)
        self.members.append(Member(len(self.lines), self._at, 0))
        self._put(replace(self._hello, t=key.t, m=key.m))
        self._put(replace(key, n=len(everything)))
        for definition in everything:
            self._put(definition)

    def _around(self, definitions: list[Def], again: bool = False) -> list[Def]:
        out: list[Def] = [Def(HOST_ID, host=HostDef())] if again else []
        for definition in definitions:
            if definition.trainer is not None:
                trainer = definition.trainer
                process = ProcDef(
                    trainer.pid, trainer.start, command=trainer.script, name="python", mine=True
                )
                out.append(Def(PROC_ID, proc=process))
                self._trainer_id = definition.id
                out.append(replace(definition, trainer=replace(trainer, proc=PROC_ID)))
            elif definition.alloc is not None:
                alloc = definition.alloc
                if alloc.uuid and len(self._gpus) < MAX_GPUS:
                    fresh = alloc.uuid not in self._gpus
                    number = self._gpus.setdefault(alloc.uuid, GPU_ID + len(self._gpus))
                    if fresh or again:
                        out.append(Def(number, gpu=GpuDef(alloc.uuid, alloc.ordinal)))
                    alloc = replace(alloc, gpu=number)
                out.append(replace(definition, alloc=alloc))
        return out

    def _clock(self, m: int) -> None:
        if self._begin is None:
            self._begin = m
        self._last = max(self._last, m)
        self._at = max(self._at, (m - self._begin) / 1e9)

    def _put(self, frame: Frame) -> None:
        with contextlib.suppress(codec.WireError):
            self.lines.append(Line(0, self._at, codec.encode(frame).rstrip()))


def _wire_lines(data: bytes, nonce: bytes) -> list[bytes]:
    """Return the whole lines in the order in which they were written."""
    return [line for _, line in sorted(_lines_in_file_order(data, nonce))]


def last_words(path: str | Path) -> dict[str, Any] | None:
    """Return what the trainer of a box wrote down of its end; None for nothing.

    Only the header is read. Nothing is raised.
    """
    try:
        with open_regular(path) as file:
            payload = boxes.read_header(file.read(boxes.SLOTS_OFFSET))
        ended: Any = json.loads(payload).get("ended") if payload is not None else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return ended if isinstance(ended, dict) else None


def trainer_of(path: str | Path) -> TrainerDef | None:
    """Return the first whole definition of the trainer in a box; the rest is not read.

    None if there is none.
    """
    try:
        data = _content(Path(path))
        about = json.loads(boxes.read_header(data[: boxes.SLOTS_OFFSET]) or b"{}")
        nonce = bytes.fromhex(about["nonce"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    for _, line in _lines_in_file_order(data, nonce):
        if b'"trainer":{' in line:
            with contextlib.suppress(codec.WireError):
                trainer = getattr(codec.decode(line), "trainer", None)
                if isinstance(trainer, TrainerDef):
                    return trainer
    return None


def _lines_in_file_order(data: bytes, nonce: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers, in the order in which they become whole in the file."""
    records: dict[int, dict[int, bytes]] = {}
    for at in range(boxes.SLOTS_OFFSET, min(len(data), boxes.FILE_BYTES), boxes.SLOT_BYTES):
        found = boxes.read_slot(nonce, data[at : at + boxes.SLOT_BYTES])
        if found is not None:
            record, part, count, payload = found
            parts = records.setdefault(record, {})
            parts[part] = payload
            if len(parts) == count:
                line = b"".join(parts[number] for number in sorted(parts))
                yield record, line.rstrip(b"\n")


def _content(path: Path) -> bytes:
    """Return the content of the box, unpacked if it is a compressed copy. Raises OSError."""
    with open_regular(path) as file:
        begin = file.read(2)
        file.seek(0)
        if begin != _GZIP:
            return file.read(boxes.FILE_BYTES)
        try:
            return gzip.GzipFile(fileobj=file).read(boxes.FILE_BYTES)
        except (EOFError, zlib.error) as error:
            raise OSError(f"it is damaged ({error})") from None


def is_box(path: str | Path) -> bool:
    """Whether a file begins as a box or the compressed copy of one does."""
    try:
        with open_regular(path) as file:
            begin = file.read(64 << 10)
    except OSError:
        return False
    if begin.startswith(_GZIP):
        try:
            begin = zlib.decompressobj(31).decompress(begin, boxes.SLOTS_OFFSET)
        except zlib.error:
            return False
    return boxes.MAGIC in (begin[:8], begin[boxes.HEADER_BYTES : boxes.HEADER_BYTES + 8])


def end_reason(ended: Mapping[str, Any] | None) -> str:
    """Return why a trainer ended, as an agent would report it, from its own description.

    Of the stack, the innermost line of the user's own code is named: ``exited: ValueError: the
    message (at train.py:12 main)``. Without a description nobody saw how it ended.
    """
    if ended is None:
        return NO_LAST_WORDS
    if ended.get("how") == "exception":
        kind = str(ended.get("type", "Exception"))[:256]
        if kind == "KeyboardInterrupt":
            return f"{EXITED}{INTERRUPTED}"
        place = own_place(ended)
        message = str(ended.get("message", "")).partition("\n")[0][:1200]
        text = f"{kind}: {message}" if message else kind
        return f"{EXITED}{text}{f' (at {place})' if place else ''}"
    if ended.get("how") == "signal":
        return f"killed by signal {str(ended.get('signal'))[:4]}"
    if ended.get("code"):
        return f"{EXITED}exit code {str(ended['code'])[:64]}"
    return f"{EXITED}{AFTER_OUT_OF_MEMORY if ended.get('oom') else PROGRAM_ENDED}"


def own_place(ended: Mapping[str, Any]) -> str:
    """Return the innermost line of the user's own code in the stack of an end, "" for none."""
    rows = stack_of(ended)
    return next((row for row in rows if is_own(row.rpartition(":")[0])), next(iter(rows), ""))


def stack_of(ended: Mapping[str, Any]) -> list[str]:
    rows = ended.get("stack")
    out = []
    for row in rows[:16] if isinstance(rows, list) else []:
        if isinstance(row, list) and len(row) == 3:
            out.append(f"{str(row[0])[:256]}:{str(row[1])[:12]} {str(row[2])[:256]}")
    return out


def _start_of(pid: str) -> str:
    """Return a process's start time as a box's name has it; "-" if there is no such process."""
    ticks = start_ticks(int(pid)) if pid.isdigit() and len(pid) <= 10 else None
    return "-" if ticks is None else str(ticks)
