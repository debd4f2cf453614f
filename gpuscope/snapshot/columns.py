"""Convert a trace to columns in one pass over its dictionaries, which are then freed.

A million entries take half a gigabyte as dictionaries and 29 MB as columns. Entries are not checked
one by one as long as all of a part are in torch's form: anything else raises when it is put into an
array, and only that part is repaired.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from dataclasses import dataclass, field
from itertools import compress, repeat
from typing import Any

from ..wire.clean import clean
from .blocks import ADDRESS_LIMIT, whole
from .model import MAX_MARKS, TimelineEvent
from .stacks import NO_STACK, StackTable

ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "snapshot", "oom", "user_defined", "annotate",
)  # fmt: skip
(
    ALLOC,
    FREE_REQUESTED,
    FREE_COMPLETED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    SNAPSHOT,
    OOM,
    USER,
    ANNOTATE,
) = range(11)
OTHER = 11
"""An unknown action: it changes nothing and gets a mark."""
CODES = {name: code for code, name in enumerate(ACTIONS)}
SIZE_LIMIT = 1 << 60
"""The largest requested size, because an out-of-memory error often comes from an absurd one."""
PART = 1 << 11
"""Entries per part; this many dictionaries stay in the CPU cache from one column to the next."""
MAX_STREAMS = 4096
_IS_ALLOC = bytes(code == ALLOC for code in range(256))
_COMMON = bytes(range(SNAPSHOT))
_NOTHING: dict[Any, Any] = {}


@dataclass
class Columns:
    """The trace of one device, with one column for each field of an entry.

    ``code``, ``addr``, ``size`` (requested bytes) and ``stack`` (of allocations; else ``NO_STACK``)
    have a value for every entry. ``time`` is in µs since the epoch, or empty.
    """

    code: bytearray = field(default_factory=bytearray)
    addr: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    time: array[int] = field(default_factory=lambda: array("q"))
    stack: array[int] = field(default_factory=lambda: array("i"))
    stream: array[int] = field(default_factory=lambda: array("H"))
    """For each entry the position of its stream in ``streams``."""
    streams: dict[int, int] = field(default_factory=lambda: {0: 0})
    marks: list[TimelineEvent] = field(default_factory=list)
    dropped_marks: int = 0
    unknown_actions: Counter[str] = field(default_factory=Counter)
    malformed: int = 0

    def __len__(self) -> int:
        return len(self.code)

    def time_at(self, index: int) -> int | None:
        return self.time[index] if self.time and 0 <= index < len(self.time) else None


def read_trace(entries: list[Any], stacks: StackTable) -> Columns:
    """Convert a trace to columns.

    This consumes ``entries``: the list is empty afterwards, and its dictionaries are freed.
    """
    columns = Columns()
    timed = any(isinstance(one, dict) and type(one.get("time_us")) is int for one in entries[:16])
    for begin in range(0, len(entries), PART):
        part = entries[begin : begin + PART]
        entries[begin : begin + PART] = repeat(None, len(part))
        sizes = len(columns)
        try:
            _add_entries(columns, part, timed)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            for column in (columns.code, columns.addr, columns.size, columns.time):
                del column[sizes:]
            part = [_repair(columns, one, timed) for one in part]
            _add_entries(columns, part, timed)
        _add_stacks(columns, part, sizes, stacks)
        _add_streams(columns, part)
        if columns.code[sizes:].translate(None, _COMMON):
            _add_marks(columns, part, sizes)
    entries.clear()
    return columns


def _add_entries(columns: Columns, part: list[Any], timed: bool) -> None:
    """Add entries that have torch's form; any other entry raises.

    The exceptions are those of the standard library. An out-of-memory entry has no address, so it
    gets one here.
    """
    try:
        codes = bytes([CODES[entry["action"]] for entry in part])
    except KeyError:
        codes = bytes([CODES.get(entry["action"], OTHER) for entry in part])
    if codes.translate(None, _COMMON):
        for index, code in enumerate(codes):
            if code >= SNAPSHOT and "addr" not in part[index]:
                part[index]["addr"] = 0
    addr, size = (
        array("q", [entry["addr"] for entry in part]),
        array("q", [entry["size"] for entry in part]),
    )
    if not (_is_below(size, SIZE_LIMIT) and _is_below(addr, ADDRESS_LIMIT)):
        raise ValueError
    if timed:
        columns.time += array("q", [entry["time_us"] for entry in part])
    columns.code += codes
    columns.addr += addr
    columns.size += size


def _is_below(column: array[int], limit: int) -> bool:
    """Say whether all numbers are from 0 to below ``limit``.

    Nearly always the two highest bytes of all numbers are 0, which is checked without looking at
    each number.
    """
    raw = column.tobytes()
    high = (raw[7::8], raw[6::8]) if sys.byteorder == "little" else (raw[0::8], raw[1::8])
    return not any(map(bytes.strip, high, repeat(b"\0"))) or (
        min(column) >= 0 and max(column) < limit
    )


def _repair(columns: Columns, one: Any, timed: bool) -> dict[Any, Any]:
    """Return an entry with everything that :func:`_add_entries` needs; invalid values become 0.

    An event without a size or an address counts as malformed and changes nothing.
    """
    entry = one if isinstance(one, dict) else _NOTHING
    action = entry.get("action")
    odd = not isinstance(action, str)
    name = action if isinstance(action, str) else ""
    marker = CODES.get(name, OTHER) >= SNAPSHOT
    addr, size = whole(entry.get("addr"), ADDRESS_LIMIT), whole(entry.get("size"), SIZE_LIMIT)
    if not marker and (addr is None or size is None):
        odd = True
    columns.malformed += odd
    time = whole(entry.get("time_us"), ADDRESS_LIMIT)
    if time is None and timed:
        time = columns.time[-1] if columns.time else 0
    mended = {"action": name, "addr": addr or 0, "size": 0 if odd else size or 0, "time_us": time}
    for key in ("frames", "device_free", "user_metadata", "stream"):
        if key in entry:
            mended[key] = entry[key]
    return mended


def _add_stacks(columns: Columns, part: list[Any], begin: int, stacks: StackTable) -> None:
    found = array("i", [NO_STACK]) * len(part)
    for number in compress(range(len(part)), columns.code[begin:].translate(_IS_ALLOC)):
        frames = part[number].get("frames")
        if frames:
            found[number] = stacks.next(frames)
    columns.stack += found


def _add_streams(columns: Columns, part: list[Any]) -> None:
    """Add the streams of entries, of which there are few.

    Beyond ``MAX_STREAMS``, and where it is not a number, an entry counts as on stream 0.
    """
    places = columns.streams
    for _ in range(2):
        try:
            columns.stream.extend([places[entry.get("stream", 0)] for entry in part])
            return
        except (KeyError, TypeError):
            for entry in part:
                stream = entry.get("stream", 0)
                if type(stream) is not int or abs(stream) >= ADDRESS_LIMIT:
                    entry["stream"] = 0
                elif stream not in places:
                    if len(places) < MAX_STREAMS:
                        places[stream] = len(places)
                    else:
                        entry["stream"] = 0


def _add_marks(columns: Columns, part: list[Any], begin: int) -> None:
    for offset, code in enumerate(columns.code[begin:]):
        if code < SNAPSHOT:
            continue
        entry = part[offset]
        action = clean(entry["action"], 60)
        if code == OTHER:
            columns.unknown_actions[action or "none"] += 1
        if code == OTHER and columns.unknown_actions[action or "none"] > 20:
            continue
        index = begin + offset
        text = entry.get("user_metadata")
        columns.marks.append(
            TimelineEvent(
                index=index,
                time_us=columns.time_at(index),
                action=action,
                size_bytes=columns.size[index] if code == OOM else None,
                free_bytes=whole(entry.get("device_free"), SIZE_LIMIT) if code == OOM else None,
                text=clean(text, 200) if isinstance(text, str) else "",
            )
        )
        if len(columns.marks) > 2 * MAX_MARKS:
            _drop_marks(columns)
    if len(columns.marks) > MAX_MARKS:
        _drop_marks(columns)


def _drop_marks(columns: Columns) -> None:
    """Drop marks beyond the limit: the older ones first, and out-of-memory marks last.

    Annotations are dropped before all others, because a program may make one for each tensor that
    it saves.
    """
    last = {"annotate": 0, "oom": 2}
    order = sorted(
        range(len(columns.marks)),
        key=lambda number: (last.get(columns.marks[number].action, 1), number),
    )
    kept = sorted(order[-MAX_MARKS:])
    columns.dropped_marks += len(columns.marks) - len(kept)
    columns.marks = [columns.marks[number] for number in kept]
