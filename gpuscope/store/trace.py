"""Turn a Chrome trace of torch.profiler into a table.

The table has a row for each kernel on devices and for each operator on the CPU, and says what each
device did over time.

The trace is read as a stream, event by event, so that a trace of a gigabyte does not need a
gigabyte. A child process does this (``python -m gpuscope.store.trace FILE``) with limited memory,
and prints one line of JSON. A trace is foreign data: names are cleaned and cut, numbers are
checked, and everything is bounded. Only the standard library is needed. Times in the file are in
microseconds.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import IO, Any, TypeAlias

from ..errors import UserError
from ..text.numbers import amount
from ..text.units import bytes_text
from ..wire.files import open_regular

MAX_FILE_BYTES = 4 << 30
MAX_EVENTS = 8_000_000
MAX_NAMES = 20_000
MAX_ROWS = 500
MAX_STEPS = 1000
MAX_NAME_CHARS = 300
MAX_EVENT_CHARS = 4 << 20
MEMORY_BYTES = 2 << 30
"""Limit of the child's address space."""
CHUNK_CHARS = 1 << 20
MAX_HEAD_CHARS = 64 << 20
"""Limit of the metadata before the list of events."""
DEVICE_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
CPU_KINDS = frozenset(("cpu_op", "user_annotation"))
OTHERS = "(more names)"
_COLLECTIVE = re.compile(r"nccl|gloo|AllReduce|all_?reduce|AllGather|ReduceScatter", re.IGNORECASE)
_STEP = re.compile(r"ProfilerStep#?\s*(\d+)|Optimizer\.step#")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")


class TraceError(UserError):
    """The file is not a trace, or cannot be shown. The text says why."""


@dataclass
class TraceRow:
    """A row: ``kind`` is kernel, memcpy, memset or collective; on the CPU op or annotation.

    ``self_seconds`` leaves out what it called in turn (nothing, on devices); ``total_seconds``
    includes it.
    """

    kind: str
    name: str
    self_seconds: float = 0.0
    total_seconds: float = 0.0
    calls: int = 0
    longest_seconds: float = 0.0


@dataclass
class TimeLine:
    """What one device, or the busiest thread of the CPU, did.

    The seconds add up to ``span_seconds``. If several things run at once on a device, the moment
    counts as kernel first, then collective, copy, memset. On the CPU it counts as collective, op,
    or idle (Python code and waiting).
    """

    name: str
    span_seconds: float = 0.0
    shares: dict[str, float] = field(default_factory=dict)


@dataclass
class Table:
    """A trace as a table.

    ``steps`` holds the seconds of each step, from the profiler's own marks or from one
    ``optimizer.step()`` to the next; it is empty if the trace has neither. ``cut`` says in words
    what was left out.
    """

    rows: list[TraceRow] = field(default_factory=list)
    lines: list[TimeLine] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    events: int = 0
    span_seconds: float = 0.0
    cut: str = ""


# ── reading ──


def read_events(file: IO[str]) -> Iterator[Any]:
    """Yield the members of ``traceEvents`` from an open text file, one by one.

    Raises :class:`TraceError`.
    """
    decoder = json.JSONDecoder()
    buffer = _find_events(file)
    at = 0
    while True:
        at = _skip(buffer, at)
        if at >= len(buffer):
            buffer, at = file.read(CHUNK_CHARS), 0
            if not buffer:
                raise TraceError("the trace is incomplete")
            continue
        if buffer[at] == "]":
            return
        while True:
            try:
                event, at = decoder.raw_decode(buffer, at)
                break
            except (json.JSONDecodeError, RecursionError) as error:
                hopeless = isinstance(error, RecursionError) or len(buffer) - at > MAX_EVENT_CHARS
                more = "" if hopeless else file.read(CHUNK_CHARS)
                if not more:
                    raise TraceError("the trace is damaged, or incomplete") from None
                buffer, at = buffer[at:] + more, 0
        yield event


def _find_events(file: IO[str]) -> str:
    """Return what follows the "[" of the list of events.

    The document is either this list or an object with the list under ``traceEvents``.
    """
    buffer, seen, first = "", 0, ""
    while True:
        more = file.read(CHUNK_CHARS)
        seen += len(more)
        buffer += more
        first = first or buffer.lstrip()[:1]
        if first == "[":
            return buffer[buffer.index("[") + 1 :]
        found = re.search(r'"traceEvents"\s*:\s*\[', buffer)
        if found:
            return buffer[found.end() :]
        if not more or first not in ("{", "") or seen > MAX_HEAD_CHARS:
            raise TraceError("this is not a Chrome trace: it has no list of traceEvents")
        buffer = buffer[-max(CHUNK_CHARS, 64) :] if first else ""


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


# ── adding up ──


class _Names:
    """Names as small integers, limited in number."""

    def __init__(self) -> None:
        self.rows: list[TraceRow] = []
        self._index: dict[tuple[str, str], int] = {}
        self.overflowed = False

    def number(self, kind: str, name: str) -> int:
        key = (kind, name)
        found = self._index.get(key)
        if found is None:
            if len(self.rows) >= MAX_NAMES:
                self.overflowed = True
                key = (kind, OTHERS)
                if key in self._index:
                    return self._index[key]
            text = _CONTROLS.sub("\ufffd", key[1])[:MAX_NAME_CHARS]
            found = self._index[key] = len(self.rows)
            self.rows.append(TraceRow(kind, text))
        return found


Spans: TypeAlias = "array[float]"
"""start, duration, number of a name, start, …: microseconds."""


class _Sums:
    """Collects the events by the place where they ran."""

    def __init__(self) -> None:
        self.names = _Names()
        self.threads: dict[str, Spans] = {}
        self.devices: dict[str, Spans] = {}
        self.marks: list[tuple[float, float]] = []
        self.optimizer_ends: list[float] = []
        self.events = 0

    def add(self, event: Any) -> None:
        if not isinstance(event, dict) or event.get("ph") != "X":
            return
        start, length, name, kind = (event.get(key) for key in ("ts", "dur", "name", "cat"))
        if not (
            _is_time(start) and _is_time(length) and isinstance(name, str) and isinstance(kind, str)
        ):
            return
        assert isinstance(start, (int, float))
        assert isinstance(length, (int, float))
        self.events += 1
        if kind in DEVICE_KINDS:
            word = (
                "collective"
                if kind == "kernel" and _COLLECTIVE.search(name[:200])
                else DEVICE_KINDS[kind]
            )
            args = event.get("args")
            device = args.get("device") if isinstance(args, dict) else None
            place = f"GPU {device}" if isinstance(device, int) else "GPU"
            self._put(self.devices, place, start, length, self.names.number(word, name))
        elif kind in CPU_KINDS:
            step = _STEP.match(name[:200])
            if step is not None and step[1]:
                self.marks.append((start, length))
                return
            if step is not None:
                self.optimizer_ends.append(start + length)
            word = "op" if kind == "cpu_op" else "annotation"
            word = "collective" if _COLLECTIVE.search(name[:200]) else word
            thread = f"{event.get('pid')}/{event.get('tid')}"[:80]
            self._put(self.threads, thread, start, length, self.names.number(word, name))

    @staticmethod
    def _put(
        places: dict[str, Spans], place: str, start: float, length: float, number: int
    ) -> None:
        if place not in places and len(places) >= 512:
            place = next(iter(places))
        places.setdefault(place, array("d")).extend((start, length, number))


def _is_time(value: Any) -> bool:
    seconds = amount(value)
    return seconds is not None and seconds < 1e17


def tabulate(events: Iterable[Any]) -> Table:
    sums = _Sums()
    table = Table()
    for event in events:
        if sums.events >= MAX_EVENTS:
            table.cut = f"only the first {MAX_EVENTS:,} events are counted"
            break
        sums.add(event)
    if not sums.events:
        raise TraceError("the trace has no timed events")
    for spans in sums.devices.values():
        for _, length, number in _triples(spans):
            _count(sums.names.rows[int(number)], length, length)
    for spans in sums.threads.values():
        _count_nested(sums.names.rows, spans)
    table.lines = [
        _device_line(name, sums.devices[name], sums.names.rows) for name in sorted(sums.devices)
    ]
    cpu = _cpu_line(sums)
    table.lines += [cpu] if cpu is not None else []
    table.span_seconds = max(line.span_seconds for line in table.lines) if table.lines else 0.0
    table.steps = _steps(sums)[:MAX_STEPS]
    table.events = sums.events
    if sums.names.overflowed and not table.cut:
        table.cut = f"more than {MAX_NAMES:,} names: the rest is one row"
    for kinds in (("kernel", "memcpy", "memset"), ("collective",), ("op", "annotation")):
        rows = [row for row in sums.names.rows if row.kind in kinds and row.calls]
        table.rows += sorted(rows, key=lambda row: -row.self_seconds)[:MAX_ROWS]
    return table


def _triples(spans: Spans) -> Iterator[tuple[float, float, float]]:
    return zip(spans[::3], spans[1::3], spans[2::3], strict=True)


def _count(row: TraceRow, own: float, total: float) -> None:
    row.self_seconds += own / 1e6
    row.total_seconds += total / 1e6
    row.calls += 1
    row.longest_seconds = max(row.longest_seconds, total / 1e6)


def _count_nested(rows: list[TraceRow], spans: Spans) -> None:
    """Count the time that each call of one thread spent itself.

    Calls are nested: a call's own time is its time without that of its children.
    """
    ordered = sorted(_triples(spans), key=lambda span: (span[0], -span[1]))
    open_calls: list[list[float]] = []  # end, length, number, seconds of children

    def close() -> None:
        _, length, number, children = open_calls.pop()
        row = rows[int(number)]
        inside = any(call[2] == number for call in open_calls)
        # a recursive call counts once
        _count(row, max(0.0, length - children), 0.0 if inside else length)

    for start, length, number in ordered:
        while open_calls and open_calls[-1][0] <= start:
            close()
        if open_calls:
            open_calls[-1][3] += min(length, max(0.0, open_calls[-1][0] - start))
        if len(open_calls) < 512:
            open_calls.append([start + length, length, number, 0.0])
    while open_calls:
        close()


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge overlapping intervals; return (start, end) in order."""
    out: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            if end > out[-1][1]:
                out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return out


def _length(stretches: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in stretches)


def _device_line(name: str, spans: Spans, rows: list[TraceRow]) -> TimeLine:
    by_kind: dict[str, list[tuple[float, float]]] = {}
    for start, length, number in _triples(spans):
        by_kind.setdefault(rows[int(number)].kind, []).append((start, start + length))
    return _line(name, by_kind, ("kernel", "collective", "memcpy", "memset"))


def _cpu_line(sums: _Sums) -> TimeLine | None:
    """Return the thread with most time in operators, which is the one that trains."""
    busiest = max(sums.threads.items(), key=lambda item: sum(item[1][1::3]), default=None)
    if busiest is None:
        return None
    by_kind: dict[str, list[tuple[float, float]]] = {}
    for start, length, number in _triples(busiest[1]):
        row = sums.names.rows[int(number)]
        if row.kind in ("collective", "op"):
            by_kind.setdefault(row.kind, []).append((start, start + length))
    return _line("CPU, busiest thread", by_kind, ("collective", "op")) if by_kind else None


def _line(
    name: str, by_kind: dict[str, list[tuple[float, float]]], order: tuple[str, ...]
) -> TimeLine:
    """Give each kind the time that the kinds before it leave."""
    line = TimeLine(name)
    covered: list[tuple[float, float]] = []
    before = 0.0
    for kind in order:
        if kind in by_kind:
            covered = _union([*covered, *by_kind[kind]])
            now = _length(covered)
            line.shares[kind] = (now - before) / 1e6
            before = now
    line.span_seconds = (covered[-1][1] - covered[0][0]) / 1e6
    line.shares["idle"] = max(0.0, line.span_seconds - before / 1e6)
    return line


def _steps(sums: _Sums) -> list[float]:
    if sums.marks:
        return [length / 1e6 for _, length in sorted(sums.marks)]
    ends = sorted(sums.optimizer_ends)
    return [(later - earlier) / 1e6 for earlier, later in pairwise(ends)]


# ── the child ──


def read_table(path: str) -> Table:
    """The table of a file. Raises :class:`TraceError` and OSError."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise TraceError(
                f"the trace has {size:,} bytes, more than the limit of {MAX_FILE_BYTES:,}"
            )
        return tabulate(read_events(io.TextIOWrapper(file, encoding="utf-8", errors="replace")))


def decode_table(line: bytes) -> Table:
    """Decode the child's answer. Raises :class:`TraceError` for its error or an invalid answer."""
    try:
        body = json.loads(line)
        if "error" in body:
            raise TraceError(str(body["error"]))
        table = Table(**{**body, "rows": [], "lines": []})
        table.rows = [TraceRow(**row) for row in body["rows"]]
        table.lines = [TimeLine(**one) for one in body["lines"]]
        return table
    except (ValueError, TypeError, KeyError):
        raise TraceError("the trace could not be read") from None


def main(path: str) -> int:
    """Print the table of a file as one line of JSON, or ``{"error": …}``."""
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        answer: dict[str, Any] = asdict(read_table(path))
    except TraceError as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": f"cannot read it: {error.strerror}"}
    except MemoryError:
        answer = {
            "error": f"the trace needs more than the {bytes_text(MEMORY_BYTES)} of memory allowed"
        }
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
