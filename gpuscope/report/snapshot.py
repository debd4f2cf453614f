"""Make the chapter of an allocator snapshot or of the record of an out-of-memory error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from ..doctor.finding import Report
from ..doctor.redaction import DocumentRedactor
from ..snapshot.model import (
    FULL_CELL,
    Bucket,
    DeviceTrace,
    Segment,
    Series,
    SnapshotDevice,
    StackRow,
    Stacks,
    Summary,
)
from ..snapshot.report import header, record_lines, rows_of_totals
from ..text.clock import clock_text
from ..text.styled import plain
from ..text.units import bytes_text, count_text, duration_text, percent_text
from . import findings
from .content import (
    BarRow,
    Chapter,
    Code,
    Curve,
    Figure,
    Figures,
    Map,
    MapRow,
    Part,
    Piece,
    Section,
    Sentences,
    Strip,
    Table,
    Timeline,
    TimeMark,
    Tone,
    Waterfall,
)
from .timelines import offset_of

MAX_STACKS = 20
MAX_FULL_STACKS = 8
MAX_DEVICES = 16
MAX_SEGMENTS = 32
CALLERS = 3
SOURCE = "torch's allocator snapshot"
MARK_TONES: Mapping[str, Tone] = {"oom": "bad", "snapshot": "ok"}


def chapter(summary: Summary, report: Report, name: str) -> Chapter:
    when = ""
    if summary.taken_us is not None:
        when = clock_text(summary.taken_us / 1e6, "%Y-%m-%d %H:%M:%S")
    kind = "Record of an out-of-memory error" if summary.record else "Allocator snapshot"
    facts = [("File", plain(header(summary)[0]).removeprefix(name).strip())]
    facts += [("Newest entry", when)] if when else []
    sections = []
    record = [" ".join(plain(line).split()) for line in record_lines(summary)]
    if record:
        sections.append(Section("The error", [Sentences(record, source=SOURCE, when=when)]))
    if report.findings or report.problems:
        sections.append(findings.section(report, when))
    for device in summary.devices[:MAX_DEVICES]:
        sections.append(_device(device, when, len(summary.devices) > 1))
    settings = _settings(summary)
    if settings is not None:
        sections.append(Section("Environment", [settings]))
    notes = [note.text for note in summary.notes]
    problems = [] if summary.complete else ["Only a part of the file could be read.", *notes]
    if summary.complete and notes:
        sections.append(Section("Notes", [Sentences(notes, "muted")]))
    return Chapter(name, kind, sections, facts, problems)


def _settings(summary: Summary) -> Table | None:
    redact = DocumentRedactor().text
    rows = [
        (key, redact(value))
        for key, value in summary.settings.items()
        if value not in ("", "{}", "None")
    ]
    known = {"torch_version": "torch", "python_version": "Python"}
    rows += [
        (name, redact(str(summary.record[key])))
        for key, name in known.items()
        if summary.record.get(key) not in (None, "")
    ]
    title = "Settings of the allocator"
    folded = len(rows) > 8
    return Table(title, ("Setting", "Value"), rows, source=SOURCE, folded=folded) if rows else None


def _device(device: SnapshotDevice, when: str, several: bool) -> Section:
    totals, free = device.totals, device.fragmentation
    figures = [
        Figure("reserved", bytes_text(totals.reserved_bytes), f"{totals.segments:,} segments"),
        Figure(
            "allocated", bytes_text(totals.allocated_bytes), f"{totals.allocated_blocks:,} blocks"
        ),
    ]
    if free.free_bytes:
        note = f"of {bytes_text(free.free_bytes)} free in {free.free_blocks:,} runs"
        figures.append(Figure("largest free run", bytes_text(free.largest_free_bytes), note))
    if free.percent is not None:
        note = "of the free memory is outside the largest run"
        figures.append(Figure("fragmentation", percent_text(free.percent / 100), note))
    parts: list[Part] = [Figures(figures, source=SOURCE, when=when), _totals(device, when)]
    parts += [_map(device, when)] if device.segments else []
    if device.trace is not None:
        parts += _trace(device.trace, when)
    parts += _stacks(device.stacks, "Live bytes by stack", when)
    if device.sizes:
        parts.append(_sizes(device.sizes, when))
    notes = [note.text for note in device.notes]
    parts += [Sentences(notes, "muted")] if notes else []
    return Section(f"Memory of cuda:{device.device}" if several else "Memory", parts)


def _totals(device: SnapshotDevice, when: str) -> Waterfall:
    totals = device.totals
    whole = totals.reserved_bytes or 1
    bars = [
        BarRow(name, bytes_text(size), size / whole, token, False, text)
        for name, size, token, text in rows_of_totals(totals)
        if name != "reserved"
    ]
    rounding = totals.active_bytes - totals.requested_bytes
    notes = [f"Rounding: {bytes_text(rounding)} more than requested."]
    total = BarRow(
        "reserved", bytes_text(totals.reserved_bytes), 1.0 if totals.reserved_bytes else None
    )
    return Waterfall("What is reserved", bars, total, notes, source=SOURCE, when=when)


def _map(device: SnapshotDevice, when: str) -> Map:
    """Return where in its largest segments the allocator has live blocks."""
    segments = sorted(device.segments, key=lambda one: -one.bytes)[:MAX_SEGMENTS]
    longest = segments[0].bytes
    rows = [
        MapRow(
            bytes_text(one.bytes),
            f"{bytes_text(one.bytes - one.allocated_bytes - one.pending_bytes)} free",
            one.bytes / longest,
            _pieces(one, one.bytes / longest),
            f"{one.blocks:,}, the largest free one {bytes_text(one.largest_free_bytes)}"
            + (f"; private pool {one.pool}" if one.private else ""),
        )
        for one in segments
    ]
    legend = {"allocated": "live", "partly": "partly live", "pending": "pending", "free": "free"}
    left = len(device.segments) - len(segments) + device.folded_segments
    notes = [f"{left:,} smaller segments are left out."] if left else []
    return Map(
        "The segments", ("Segment", "Free", "Blocks"), rows, legend, notes, source=SOURCE, when=when
    )


def _pieces(one: Segment, whole: float) -> list[Piece]:
    """Return the parts of a segment that are not free; cells that are alike are one part."""
    kinds = []
    for live, pending in zip(one.live, one.pending, strict=False):
        kinds.append(
            "pending" if pending > live else "allocated" if live >= FULL_CELL
            else "partly" if live else ""
        )  # fmt: skip
    found, at = [], 0
    for kind, cells in groupby(kinds):
        count = len(list(cells))
        if kind:
            begin, end = at / len(kinds) * whole, (at + count) / len(kinds) * whole
            found.append(Piece(begin, end, kind))
        at += count
    return found


def _sizes(sizes: Sequence[Bucket], when: str) -> Waterfall:
    whole = sum(one.bytes for one in sizes) or 1
    bars = [
        BarRow(f"{bytes_text(one.low_bytes)} or more", bytes_text(one.bytes), one.bytes / whole,
            "allocated", False, f"{one.count:,} blocks")
        for one in reversed(sizes)
    ]  # fmt: skip
    return Waterfall("Live blocks by size", bars, source=SOURCE, when=when)


def _stacks(stacks: Stacks, title: str, when: str) -> list[Part]:
    if not stacks.rows:
        return []
    rows = [_stack_row(one) for one in stacks.rows[:MAX_STACKS]]
    rest = stacks.rows[MAX_STACKS:]
    other = stacks.other_bytes + sum(one.bytes for one in rest)
    if other:
        count = stacks.other_count + sum(one.count for one in rest)
        others = f"{stacks.other_stacks + len(rest):,} other stacks"
        rows.append((bytes_text(other), f"{count:,}", others, ""))
    if stacks.unknown_count:
        without = (bytes_text(stacks.unknown_bytes), f"{stacks.unknown_count:,}")
        rows.append((*without, "without a recorded stack", ""))
    head = ("Bytes", "Blocks", "Allocated in", "Called from")
    table = Table(title, head, rows, (0, 1), source=SOURCE, when=when)
    lines: list[str] = []
    for one in stacks.rows[:MAX_FULL_STACKS]:
        if one.frames:
            lines += [f"{bytes_text(one.bytes)} in {count_text(one.count, 'block')}"]
            lines += [f"    {frame.function}  {frame.place}" for frame in one.frames]
            lines += [f"    {one.cut_frames} outer frames are left out"] * bool(one.cut_frames)
    full = Code(f"The {MAX_FULL_STACKS} largest in full, innermost first", lines, folded=True)
    return [table, full] if lines else [table]


def _stack_row(one: StackRow) -> tuple[str, ...]:
    frames = one.frames[one.headline :]
    places = [f"{frame.function} {frame.place}" for frame in frames[: CALLERS + 1]]
    first = places[0] if places else "no stack"
    return (bytes_text(one.bytes), f"{one.count:,}", first, " ← ".join(places[1:]))


# ── over time ──


def _trace(trace: DeviceTrace, when: str) -> list[Part]:
    line = trace.timeline
    if not line.allocated.high:
        return []
    timed = len(line.time_us) == len(line.index) and trace.first_us is not None
    begin = trace.first_us or 0
    seconds = (line.time_us[-1] - begin) / 1e6 if timed else 0.0
    timed = timed and seconds > 0
    top = max(max(one.high, default=0) for one in (line.allocated, line.active, line.reserved))
    curves = []
    for token, name, series in (
        ("cached", "reserved", line.reserved),
        ("allocated", "allocated, as requested", line.allocated),
    ):
        if series.high:
            curves.append(_curve(series, line.time_us if timed else [], begin, token, name))
    marks = [
        TimeMark(at, mark.text or mark.action, MARK_TONES.get(mark.action, ""))
        for mark in trace.marks
        if (at := _place(mark.time_us if timed else None, begin, seconds, mark.index, trace))
        is not None
    ]
    strip = Strip(
        "device", curves, 0.0, float(top or 1), ("0 B", bytes_text(top)),
        bytes_text(line.allocated.high[-1]),
    )  # fmt: skip
    span = f" in {duration_text(seconds)}" if timed else ", evenly spaced: torch recorded no times"
    local = begin / 1e6 + offset_of(begin / 1e6) if timed else None
    notes = [f"{trace.entries:,} recorded allocations and releases{span}."]
    notes += [
        f"Out of memory: {bytes_text(mark.size_bytes)} requested, {bytes_text(mark.free_bytes)} "
        "free on the GPU."
        for mark in trace.marks[-3:]
        if mark.action == "oom"
    ]
    chart = Timeline(
        "Over time", [strip], seconds, local, marks, notes, source=SOURCE,
        when="lowest to highest of each interval; at the right the last value",
    )  # fmt: skip
    peak = trace.peak
    if peak is None:
        return [chart]
    title = f"Live at the peak of {bytes_text(peak.allocated_bytes)}"
    return [chart, *_stacks(peak.stacks, title, when)]


def _curve(series: Series, times: Sequence[int], begin: int, token: str, name: str) -> Curve:
    """Return a series of buckets of equally many entries as one of equally long intervals."""
    count = len(series.high)
    if not times:
        return Curve(token, list(map(float, series.low)), list(map(float, series.high)), name)
    whole = max(times[-1] - begin, 1)
    low: list[float | None] = [None] * count
    high: list[float | None] = [None] * count
    first = 0
    for number, ends in enumerate(times):
        last = min(max(int((ends - begin) / whole * count), first), count - 1)
        for place in range(first, last + 1):
            below, above = low[place], high[place]
            here = float(series.low[number]), float(series.high[number])
            low[place] = here[0] if below is None else min(below, here[0])
            high[place] = here[1] if above is None else max(above, here[1])
        first = last
    return Curve(token, low, high, name)


def _place(
    time_us: int | None, begin: int, seconds: float, index: int, trace: DeviceTrace
) -> float | None:
    if time_us is not None and seconds > 0:
        return min(max((time_us - begin) / 1e6 / seconds, 0.0), 1.0)
    return index / trace.entries if trace.entries else None
