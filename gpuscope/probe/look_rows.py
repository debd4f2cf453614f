"""Turns the events of a short CUDA trace into where the device's time went, moment by moment.

Each moment of the window has one owner: a kernel that computes; where none does, communication;
where that neither, a copy from or to the host; where nothing runs, what the host did instead. So
what is returned adds up to the window. All times are nanoseconds of the host's clock.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from .look_calls import ALL_RECORDED, Call, Launches, Span, holding, launching, own_ns, waits

MAX_NAMES = 64
"""How many kernels are reported by name; the others are added up in one row."""
MAX_TEXT = 200
MAX_PARTS = 10
"""The most parts of whole steps into which the window is cut. Their differences show how certain
the figures of the whole window are (batch means)."""
MAX_PLACES = 4
SLICE = 400
"""Events that are worked on before the trainer's threads get the interpreter again."""
COMPUTE, COMMUNICATION, COPY = "compute", "communication", "copy"
PAUSES = ("checkpoint", "validation")
"""Rows of the time ledger in which the thread launches kernels that are no part of a step."""


Activity = Tuple[str, int, int, int]
"""What ran on the device, a kernel, a copy, a memset: name, start, end, correlation."""


class Stand(NamedTuple):
    """What the training thread executed from ``start`` to ``end``.

    ``row`` is of the time ledger, ``place`` a line of code, "" where it is not known.
    """

    start: int
    end: int
    row: str
    place: str


class HostSpans(NamedTuple):
    """What the host did: when it waited in loaders or collected garbage, and what it executed."""

    inputs: Sequence[Span] = ()
    collections: Sequence[Span] = ()
    stack_samples: Sequence[Stand] = ()


OWN_CAUSES = {
    "input": "input",
    "compile": "compile",
    "checkpoint": "checkpoint",
    "validation": "validation",
    "logging": "logging",
    "collection": "collection",
    "release": "allocate",
    "other": "other",
    "read": "sync",
}
"""Rows of the time ledger that explain an idle device by themselves. In the others the thread was
on its way to the next kernel."""


def kind_of(name: str) -> str:
    """Return whether an activity computes, communicates, or copies from or to the host."""
    if name.startswith(("Memcpy HtoD", "Memcpy DtoH", "CopyHostToDevice", "CopyDeviceToHost")):
        return COPY
    low = name[:MAX_TEXT].lower()
    if "nccl" in low or "nvshmem" in low or low.startswith("memcpy ptop"):
        return COMMUNICATION
    return COMPUTE


def summary(
    activities: Sequence[Activity],
    calls: Sequence[Call],
    marks: Sequence[int],
    host: HostSpans,
    breathe: Callable[[], None] = lambda: None,
    drained: bool = False,
    more: Launches = ALL_RECORDED,
) -> Dict[str, Any]:
    """Return where the time between the first and the last of ``marks`` went, in seconds.

    ``marks`` are the moments at which the host ended a step. The device comes by later: a step of
    the device begins with the first activity that was launched after the mark. A device that had
    nothing to do at the first mark and after the last one is ``drained``: then the window is from
    mark to mark. ``more`` are launches that are no calls. ``breathe()`` is called now and then, so
    that whoever waits for the interpreter gets it.

    Keys: ``seconds`` and ``steps`` of the window; ``kernels`` ``[name, count, seconds, own
    seconds]``, where the own seconds of all add up to the time in which something ran;
    ``left_out`` the same of those that are not named; ``idle`` ``[cause, seconds, gaps, place,
    seconds at it]``; ``communication`` and ``copies`` ``[seconds, own seconds, count]``;
    ``copied_at`` ``[name, place, own seconds]`` of copies, the longest first; ``calls`` ``[name,
    count, seconds]`` of the runtime; ``held_seconds``: for how long threads that launch waited in
    such calls; ``host_step_seconds``: what these threads need for a step if they never wait, null
    where that is not known; ``paused`` ``[row, seconds]`` of what was launched in pauses; ``parts``
    ``[seconds of each part, those of each row of kernels, of what is left out, of each row of
    idle]``. Empty where the trace has no whole step.
    """
    launched = {**{number: start for _, start, _, number, _ in calls if number}, **more.moments}
    ordered = sorted(activities, key=itemgetter(1))
    breathe()
    begins = (drained_begins if drained else step_begins)(ordered, launched, marks)
    if len(begins) < 2 or begins[-1] <= begins[0]:
        return {}
    begin, end = begins[0], begins[-1]
    parts = _Parts(begins)
    inside = [one for one in ordered if one[2] > begin and one[1] < end]
    by_kind: Dict[str, List[Activity]] = {COMPUTE: [], COMMUNICATION: [], COPY: []}
    lists: Dict[str, List[Activity]] = {}
    for one in inside:
        name = one[0]
        if name not in lists:
            lists[name] = by_kind[kind_of(name)]
        lists[name].append(one)
    breathe()
    covered: List[Span] = []
    table: Dict[str, List[Any]] = {}
    sums: Dict[str, List[int]] = {}
    copied: Dict[Tuple[str, str], int] = {}
    for kind in (COMPUTE, COMMUNICATION, COPY):
        where = _places(host) if kind == COPY else None
        sums[kind], covered = _own_times(
            by_kind[kind], covered, begin, end, table, parts, copied, where, breathe
        )
    threads = launching(calls) | more.threads
    held_calls = holding(calls, threads)
    breathe()
    idle = _idle(gaps(covered, begin, end), inside, launched, held_calls, host, parts, breathe)
    names = sorted(table.items(), key=lambda item: (-item[1][2], -item[1][1]))
    kept, rest = names[:MAX_NAMES], names[MAX_NAMES:]
    spent: Dict[str, List[float]] = {}
    for name, start, stop, _, _ in calls:
        if begin <= start < end:
            called = spent.get(name)
            if called is None:
                called = spent[name] = [0, 0.0]
            called[0] += 1
            called[1] += stop - start
    waited = waits(calls, threads, held_calls)
    held = [(max(first, begin), min(last, end)) for first, last in waited]
    breathe()
    own = own_ns(calls, threads, waited, min(marks), max(marks), more.moments.values())
    breathe()
    return {
        "seconds": (end - begin) / 1e9,
        "steps": len(begins) - 1,
        "kernels": [[name[:MAX_TEXT], row[0], _s(row[1]), _s(row[2])] for name, row in kept],
        "left_out": [
            len(rest),
            sum(int(row[0]) for _, row in rest),
            _s(sum(row[1] for _, row in rest)),
            _s(sum(row[2] for _, row in rest)),
        ],
        "idle": idle,
        "communication": [_s(sums[COMMUNICATION][0]), _s(sums[COMMUNICATION][1]),
                          int(sums[COMMUNICATION][2])],
        "copies": [_s(sums[COPY][0]), _s(sums[COPY][1]), int(sums[COPY][2])],
        "copied_at": [
            [name[:MAX_TEXT], place[:MAX_TEXT], _s(own)]
            for (name, place), own in sorted(copied.items(), key=lambda item: -item[1])[:MAX_PLACES]
        ],
        "calls": [
            [name[:MAX_TEXT], row[0], _s(row[1])]
            for name, row in sorted(spent.items(), key=lambda item: -item[1][1])[:16]
        ],
        "held_seconds": _total(held),
        "host_step_seconds": None if own is None else _s(own / (len(marks) - 1)),
        "paused": _paused(inside, launched, host, begin, end),
        "parts": [
            parts.lengths(),
            [parts.of(name) for name, _ in kept],
            parts.of(*(name for name, _ in rest)),
            [parts.of(_IDLE + str(row[0])) for row in idle],
        ],
    }  # fmt: skip


def step_begins(
    ordered: Sequence[Activity], launched: Dict[int, int], marks: Sequence[int]
) -> List[int]:
    """Return when the device began each step whose mark is followed by an activity."""
    marks = sorted(marks)
    firsts: List[Optional[int]] = [None] * len(marks)
    get = launched.get
    for _, start, _, correlation in ordered:
        at = bisect_right(marks, get(correlation, start)) - 1
        if at >= 0 and firsts[at] is None:
            firsts[at] = start  # the activities are in the order of their starts
    found: List[int] = []
    for first in reversed(firsts):
        if first is not None:
            found.append(min(first, found[-1]) if found else first)
        elif found:
            found.append(found[-1])
    return found[::-1]


def drained_begins(
    ordered: Sequence[Activity], launched: Dict[int, int], marks: Sequence[int]
) -> List[int]:
    """Return when the device began each step, and the end of the last one, if it was drained."""
    if not ordered or len(marks) < 2:
        return []
    end = max(marks[-1], max(one[2] for one in ordered))
    inner = step_begins(ordered, launched, marks)[1 : len(marks) - 1] if len(marks) > 2 else []
    inner += [end] * (len(marks) - 2 - len(inner))
    return [marks[0], *inner, end]


def union(spans: Sequence[Span]) -> List[Span]:
    """Return the spans merged into as few as possible, in order."""
    out: List[Span] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            if end > out[-1][1]:
                out[-1] = (out[-1][0], end)
        elif end > start:
            out.append((start, end))
    return out


def gaps(covered: Sequence[Span], begin: int, end: int) -> List[Span]:
    """Return the parts of the window that no span covers."""
    out, until = [], begin
    for start, stop in covered:
        if start >= end:
            break
        if start > until:
            out.append((until, start))
        until = max(until, stop)
    if until < end:
        out.append((until, end))
    return out


def _own_times(
    items: Sequence[Activity],
    above: Sequence[Span],
    begin: int,
    end: int,
    table: Dict[str, List[Any]],
    parts: _Parts,
    copied: Dict[Tuple[str, str], int],
    where: Optional[_Layer],
    breathe: Callable[[], None],
) -> Tuple[List[int], List[Span]]:
    """Add up the activities of one kind; return their sums and the union of ``above`` and them.

    The sums are whole time, own time and count. Of items that run together the first owns the
    time; what ``above`` covers is nobody's here. ``items`` are in the order of their starts,
    ``above`` is a union. ``table`` gets ``[count, whole time, own time]`` by name, ``copied`` the
    own time by name and place where ``where`` is given.
    """
    spans: List[Span] = []
    first = until = begin
    whole_sum = own_sum = at = part = since = before = 0
    for number, (name, start, stop, _) in enumerate(items):
        if start < begin:
            start = begin
        if stop > end:
            stop = end
        whole = stop - start if stop > start else 0
        own = 0
        free = start if start > until else until
        if stop > free:
            own = stop - free
            if above:
                while at < len(above) and above[at][1] <= free:
                    at += 1
                place = at
                while place < len(above) and above[place][0] < stop:
                    own -= min(stop, above[place][1]) - max(free, above[place][0])
                    place += 1
            if start > until:
                if until > first:
                    spans.append((first, until))
                first = start
            until = stop
        row = table.get(name)
        if row is None:
            row = table[name] = [0, 0, 0, parts.row(name)]
        row[0] += 1
        row[1] += whole
        row[2] += own
        whole_sum += whole
        own_sum += own
        if not since <= start < before:
            part, since, before = parts.part_of(start)
        row[3][part] += own
        if where is not None and own:
            for begun, last, _, line in where.within(start, stop):
                if line:
                    key = (name, line)
                    copied[key] = copied.get(key, 0) + min(own, last - begun)
        if number % SLICE == SLICE - 1:
            breathe()
    if until > first:
        spans.append((first, until))
    breathe()
    merged = union([*above, *spans]) if above and spans else [*above, *spans]
    return [whole_sum, own_sum, len(items)], merged


_IDLE = "idle: "
"""The prefix of a cause of idle time in a list that also has names of kernels."""


class _Parts:
    """The window in some parts of whole steps, with the nanoseconds of each row in each of them.

    What runs over the end of a part counts where it began.
    """

    def __init__(self, begins: Sequence[int]) -> None:
        steps = len(begins) - 1
        count = min(steps, MAX_PARTS)
        self._edges = [begins[number * steps // count] for number in range(count + 1)]
        self._sums: Dict[str, List[int]] = {}

    def row(self, name: str) -> List[int]:
        """Return the nanoseconds of a row in each part, to be added to."""
        found = self._sums.get(name)
        if found is None:
            found = self._sums[name] = [0] * (len(self._edges) - 1)
        return found

    def part_of(self, moment: int) -> Tuple[int, int, int]:
        """Return the number of the part that a moment is in, its begin and its end."""
        at = min(max(bisect_right(self._edges, moment) - 1, 0), len(self._edges) - 2)
        return at, self._edges[at], self._edges[at + 1]

    def add(self, name: str, moment: int, spent: int) -> None:
        self.row(name)[self.part_of(moment)[0]] += spent

    def lengths(self) -> List[float]:
        return [_s(b - a) for a, b in zip(self._edges, self._edges[1:])]

    def of(self, *names: str) -> List[float]:
        """Return the seconds of some rows together, part by part."""
        rows = [self._sums[name] for name in names if name in self._sums]
        return [_s(sum(row[at] for row in rows)) for at in range(len(self._edges) - 1)]


class _Layer:
    """Spans that do not overlap, each with a cause, in order."""

    def __init__(self, spans: Sequence[Tuple[int, int, str, str]]) -> None:
        self._spans: List[Tuple[int, int, str, str]] = []
        until = -1
        for start, end, cause, place in sorted(spans):
            if end > max(start, until):
                self._spans.append((max(start, until), end, cause, place))
                until = end
        self._ends = [end for _, end, _, _ in self._spans]

    def __bool__(self) -> bool:
        return bool(self._spans)

    def spans(self) -> List[Span]:
        return [(start, end) for start, end, _, _ in self._spans]

    def within(self, start: int, end: int) -> List[Tuple[int, int, str, str]]:
        found = []
        for number in range(bisect_right(self._ends, start), len(self._spans)):
            first, last, cause, place = self._spans[number]
            if first >= end:
                break
            found.append((max(first, start), min(last, end), cause, place))
        return found


def _idle(
    free: Sequence[Span],
    inside: Sequence[Activity],
    launched: Dict[int, int],
    held_calls: Sequence[Tuple[int, int, str]],
    host: HostSpans,
    parts: _Parts,
    breathe: Callable[[], None],
) -> List[List[Any]]:
    """Return the idle time by cause: ``[cause, seconds, gaps, place, seconds at it]``."""
    held = _Layer([(start, end, cause, "") for start, end, cause in held_calls])
    ends = sorted(end for _, end, cause in held_calls if cause in ("sync", "copy"))
    layers = [
        layer
        for layer in (
            _Layer([(start, end, "collection", "") for start, end in host.collections]),
            _Layer([(start, end, "input", "") for start, end in host.inputs]),
            held,
            _Layer(
                [
                    (one.start, one.end, OWN_CAUSES[one.row], one.place)
                    for one in host.stack_samples
                    if one.row in OWN_CAUSES
                ]
            ),
        )
        if layer
    ]
    starts = [one[1] for one in inside]
    explained = union([span for layer in layers for span in layer.spans()])
    seconds: Dict[str, List[int]] = {}
    # Most gaps are short and of these two: they are added up without a call.
    plain = {"launch": [0, 0], "queue": [0, 0]}
    shares = {name: parts.row(_IDLE + name) for name in plain}
    part = since = before = at = low = spot = 0
    places: Dict[str, Dict[str, int]] = {}
    where = _places(host)

    def book(cause: str, start: int, end: int, counted: Set[str]) -> None:
        row = seconds.setdefault(cause, [0, 0])
        row[0] += end - start
        row[1] += cause not in counted
        counted.add(cause)
        parts.add(_IDLE + cause, start, end - start)
        if cause in ("queue", "launch"):
            return
        for first, last, _, place in where.within(start, end):
            if place:
                kept = places.setdefault(cause, {})
                kept[place] = kept.get(place, 0) + last - first

    for number, (start, end) in enumerate(free):
        while at < len(starts) and starts[at] < end:
            at += 1
        launch: Optional[int] = None
        if at < len(inside) and starts[at] == end:
            launch = launched.get(inside[at][3])
        until = end if launch is None else min(max(launch, start), end)
        while low < len(ends) and ends[low] < start:
            low += 1
        drained = low < len(ends) and ends[low] <= until
        while spot < len(explained) and explained[spot][1] <= start:
            spot += 1
        if not drained and (spot == len(explained) or explained[spot][0] >= until):
            cause = "launch" if until > start else "queue"
            plain[cause][0] += end - start
            plain[cause][1] += 1
            if not since <= start < before:
                part, since, before = parts.part_of(start)
            shares[cause][part] += end - start
            if number % SLICE == SLICE - 1:
                breathe()
            continue
        counted: Set[str] = set()
        rest: List[Span] = [(start, until)] if until > start else []
        for layer in layers:
            left: List[Span] = []
            for first, last in rest:
                for found in layer.within(first, last):
                    book(found[2], found[0], found[1], counted)
                    if found[0] > first:
                        left.append((first, found[0]))
                    first = found[1]
                if last > first:
                    left.append((first, last))
            rest = left
        for first, last in rest:
            book("sync" if drained else "launch", first, last, counted)
        if end > until:  # it was launched already
            book("launch" if until > start else "queue", until, end, counted)
        if number % SLICE == SLICE - 1:
            breathe()
    for cause, (spent, count) in plain.items():
        if count:
            row = seconds.setdefault(cause, [0, 0])
            row[0] += spent
            row[1] += count
    out = []
    for cause, (spent, count) in sorted(seconds.items(), key=lambda item: -item[1][0]):
        best = max(places.get(cause, {}).items(), key=lambda item: item[1], default=("", 0))
        out.append([cause, _s(spent), count, best[0][:MAX_TEXT], _s(best[1])])
    return out


def _places(host: HostSpans) -> _Layer:
    """Return which line the training thread executed, moment by moment."""
    return _Layer([(one.start, one.end, one.row, one.place) for one in host.stack_samples])


def _paused(
    inside: Sequence[Activity], launched: Dict[int, int], host: HostSpans, begin: int, end: int
) -> List[List[Any]]:
    """Return for how long the device executed what was launched in each kind of pause."""
    layer = _Layer(
        [(one.start, one.end, one.row, "") for one in host.stack_samples if one.row in PAUSES]
    )
    spans: Dict[str, List[Span]] = {}
    for _, start, stop, correlation in inside if layer else ():
        moment = launched.get(correlation, start)
        for _, _, row, _ in layer.within(moment, moment + 1):
            spans.setdefault(row, []).append((max(start, begin), min(stop, end)))
    return [[row, _total(found)] for row, found in sorted(spans.items())]


def _total(spans: Sequence[Span]) -> float:
    """Return the seconds that spans cover together."""
    return _s(sum(stop - start for start, stop in union(spans)))


def _s(nanoseconds: float) -> float:
    return round(nanoseconds / 1e9, 9)
