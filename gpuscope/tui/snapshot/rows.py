"""This module makes of a snapshot's summary the lines, rows and curves of its screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...snapshot.model import (
    FULL_CELL,
    At,
    Bucket,
    DeviceDiff,
    DiffRow,
    Frame,
    Segment,
    SnapshotDevice,
    StackRow,
    Stacks,
    Summary,
)
from ...text.styled import Line, Piece
from ...text.units import (
    bytes_text,
    count_text,
    duration_text,
    percent_text,
    signed_bytes_text,
)
from ..charts.moments import Band
from ..shared.stack_text import frame_pieces
from ..theme import Glyphs
from ..widgets.bars import Bar
from ..widgets.table import Cell, Column, TableRow

SEGMENT_COLUMNS = (
    Column("size", "SEGMENT", 9, align="right"),
    Column("held", "LIVE", 9, align="right", priority=2),
    Column("gap", "LARGEST GAP", 11, align="right", priority=1),
    Column("pool", "POOL", 8, priority=3),
    Column("map", "MAP", 20, flex=1),
)
STACK_COLUMNS = (
    Column("bytes", "LIVE", 9, align="right"),
    Column("share", "SHARE", 6, align="right"),
    Column("count", "BLOCKS", 8, align="right", priority=1),
    Column("where", "ALLOCATED AT", 24, flex=1),
)
SIZE_COLUMNS = (
    Column("size", "BLOCKS OF", 20, align="right"),
    Column("count", "BLOCKS", 9, align="right", priority=1),
    Column("bytes", "BYTES", 9, align="right"),
    Column("bar", "", 12, flex=1, most=80),
)
DIFF_COLUMNS = (
    Column("change", "CHANGE", 10, align="right"),
    Column("before", "BEFORE", 9, align="right", priority=2),
    Column("after", "AFTER", 9, align="right"),
    Column("count", "BLOCKS", 9, align="right", priority=1),
    Column("where", "ALLOCATED AT", 24, flex=1),
)
VIEWS = {
    "map": "1 Map",
    "stacks": "2 Stacks",
    "sizes": "3 Sizes",
    "time": "4 Over time",
    "diff": "5 Compare",
}
COLUMNS: dict[str, Sequence[Column]] = {
    "map": SEGMENT_COLUMNS,
    "stacks": STACK_COLUMNS,
    "sizes": SIZE_COLUMNS,
    "time": STACK_COLUMNS,
    "diff": DIFF_COLUMNS,
}
MAP_EIGHTHS = 7
"""The eighths of a row that a filled cell of a map has, so that rows do not run together."""
NO_STACK = "no stack recorded: history was off then"


def _out_of_memory(device: SnapshotDevice) -> Iterable[Line]:
    """Yield what the last allocation that failed asked for, and whether it failed for pieces."""
    marks = device.trace.marks if device.trace is not None else []
    failed = next((mark for mark in reversed(marks) if mark.action == "oom"), None)
    if failed is None or not failed.size_bytes:
        return
    line: Line = [
        ("out of memory: ", "bad"),
        (f"{bytes_text(failed.size_bytes)} requested", "title"),
    ]
    if failed.free_bytes is not None:
        line.append((f", {bytes_text(failed.free_bytes)} free on the GPU", "text"))
    inside, largest = device.totals.inactive_bytes, device.fragmentation.largest_free_bytes
    if inside >= failed.size_bytes > largest:
        line.append((f"; {bytes_text(inside)} free inside, but in pieces", "warn"))
    yield line


def headline(device: SnapshotDevice) -> Iterable[Line]:
    """Return what a device's allocator holds, and how its free bytes lie."""
    yield from _out_of_memory(device)
    t, f = device.totals, device.fragmentation
    yield [
        ("reserved ", "muted"),
        (bytes_text(t.reserved_bytes), "title"),
        (f" in {count_text(t.segments, 'segment')}", "muted"),
        ("   allocated ", "muted"),
        (bytes_text(t.allocated_bytes), "allocated"),
        (f" in {count_text(t.allocated_blocks, 'block')}", "muted"),
        *(
            (("   awaiting free ", "muted"), (bytes_text(t.pending_bytes), "cached"))
            if t.pending_bytes
            else ()
        ),
    ]
    share = percent_text(f.percent / 100) if f.percent is not None else "–"
    yield [
        ("free inside ", "muted"),
        (bytes_text(t.inactive_bytes), "text"),
        (" = releasable ", "muted"),
        (bytes_text(t.releasable_bytes), "text"),
        (" + inactive split ", "muted"),
        (bytes_text(t.inactive_split_bytes), "text"),
        *(
            ((" + bound to pages ", "muted"), (bytes_text(t.page_bound_bytes), "text"))
            if t.page_bound_bytes
            else ()
        ),
    ]
    yield [
        ("largest free run ", "muted"),
        (bytes_text(f.largest_free_bytes), "text"),
        ("   fragmentation ", "muted"),
        (share, "warn" if f.percent is not None and f.percent >= 50 else "text"),
        *(
            ((f"   free in private pools {bytes_text(f.private_free_bytes)}", "muted"),)
            if f.private_free_bytes
            else ()
        ),
    ]


def notes(summary: Summary, device: SnapshotDevice | None) -> Iterable[Line]:
    """Return what is missing or odd, and what an out-of-memory record says."""
    for note in [*summary.notes, *(device.notes if device is not None else ())]:
        yield [("note: ", "warn"), (note.text, "muted")]
    for key, value in list(summary.record.items())[:12]:
        yield [(f"{key}: ", "faint"), (str(value), "muted")]


# ── the map ──


@dataclass(frozen=True, slots=True)
class MapBar:
    """The map of a segment, as wide as its column.

    It shows the bytes that are held, those that wait for another stream, and those that are
    free.
    """

    live: tuple[int, ...]
    pending: tuple[int, ...]

    def draw(self, width: int, glyphs: Glyphs) -> Line:
        out: Line = []
        for cell in range(width):
            live, pending = _mean(self.live, cell, width), _mean(self.pending, cell, width)
            text, token = _cell(live, pending, glyphs)
            if out and out[-1][1] == token:
                out[-1] = (out[-1][0] + text, token)
            else:
                out.append((text, token))
        return out


def _mean(shares: Sequence[int], cell: int, width: int) -> float:
    """Return the mean share of what one cell of a row stands for, 0..1."""
    if not shares:
        return 0.0
    first = cell * len(shares) // width
    last = max(first + 1, (cell + 1) * len(shares) // width)
    return sum(shares[first:last]) / (last - first) / FULL_CELL


def _cell(live: float, pending: float, glyphs: Glyphs) -> Piece:
    held = live + pending
    if held <= 0:
        return glyphs.track, "free"
    token = "cached" if pending > live else "allocated"
    if token in glyphs.patterns or not glyphs.eighths:
        return (glyphs.fill(token), token) if held >= 0.5 else (glyphs.track, token)
    return glyphs.up[max(1, min(MAP_EIGHTHS, round(held * 8)))], token


def map_legend(glyphs: Glyphs) -> str:
    """Return what the cells of the maps mean, as this terminal draws them."""
    live, free = (_cell(share, 0.0, glyphs)[0] for share in (1.0, 0.0))
    return f"{live} live  {free} free · each at full width"


def segment_rows(device: SnapshotDevice) -> list[TableRow]:
    """A row a segment, the largest first, then those without a map of their own as one."""
    segments = sorted(device.segments, key=lambda segment: (-segment.bytes, segment.address))
    rows = [_segment_row(segment) for segment in segments]
    if device.folded_segments:
        text = f"{device.folded_segments:,} more segments, {bytes_text(device.folded_bytes)}"
        rows.append(TableRow("folded", {"size": "", "map": [(text, "muted")]}))
    return rows


def _segment_row(segment: Segment) -> TableRow:
    kind = "expand." if segment.expandable else "large" if segment.large else "small"
    return TableRow(
        f"{segment.address:x}:{segment.stream}",
        {
            "size": bytes_text(segment.bytes),
            "held": bytes_text(segment.allocated_bytes),
            "gap": bytes_text(segment.largest_free_bytes) if segment.largest_free_bytes else "–",
            "pool": [
                (
                    f"graph {segment.pool}" if segment.private else kind,
                    "series4" if segment.private else "muted",
                )
            ],
            "map": MapBar(tuple(segment.live), tuple(segment.pending)),
        },
    )


# ── stacks ──


def where(frames: Sequence[Frame], at: int) -> Line:
    """Return the place of a stack, such as ``train.py:88 step``, and what it called in the end.

    The place is that of the frame that says most; one line of it may call many things.
    """
    if not frames:
        return [(NO_STACK, "faint")]
    frame = frames[at] if 0 <= at < len(frames) else frames[0]
    line = [(frame.place, "title"), (f" {frame.function}", "muted")]
    if frame is not frames[0]:
        line.append((f"  in {frames[0].function} {frames[0].place}", "faint"))
    return line


def stack_rows(stacks: Stacks) -> list[TableRow]:
    """Return who holds most, then what has no row of its own."""
    total = sum(row.bytes for row in stacks.rows) + stacks.other_bytes + stacks.unknown_bytes
    rows = [
        _stack_row(str(number), row.bytes, row.count, where(row.frames, row.headline), total)
        for number, row in enumerate(stacks.rows)
    ]
    if stacks.other_stacks or stacks.other_bytes:
        text: Line = [(f"{stacks.other_stacks:,} other stacks", "muted")]
        rows.append(_stack_row("other", stacks.other_bytes, stacks.other_count, text, total))
    if stacks.unknown_count:
        rows.append(
            _stack_row(
                "unknown", stacks.unknown_bytes, stacks.unknown_count, [(NO_STACK, "faint")], total
            )
        )
    return rows


def _stack_row(key: str, size: int, count: int, text: Line, total: int) -> TableRow:
    share = percent_text(size / total) if total > 0 else "–"
    cells: dict[str, Cell] = {
        "bytes": bytes_text(size),
        "share": [(share, "accent")],
        "count": f"{count:,}",
        "where": text,
    }
    return TableRow(key, cells)


def stack_text(row: StackRow | DiffRow) -> Iterable[Line]:
    """Return all frames, innermost first, the one that says most marked."""
    if not row.frames:
        yield [(NO_STACK, "muted")]
    for index, frame in enumerate(row.frames):
        found = (frame.file, frame.line, frame.function)
        yield list(frame_pieces(found, index == row.headline))
    if row.cut_frames:
        yield [(f"  {row.cut_frames} outer frames are left out", "faint")]


# ── sizes ──


def size_rows(device: SnapshotDevice) -> list[TableRow]:
    """Held blocks by size, then free ones: a histogram by bytes."""
    rows = [*_histogram("held", device.sizes, "allocated")]
    free = device.fragmentation.by_size
    if free:
        rows += [
            TableRow("free", {"size": [("FREE BLOCKS", "muted")]}),
            *_histogram("free", free, "cached"),
        ]
    return rows


def _histogram(name: str, buckets: Sequence[Bucket], token: str) -> Iterable[TableRow]:
    most = max((bucket.bytes for bucket in buckets), default=0)
    for bucket in buckets:
        cells: dict[str, Cell] = {
            "size": f"{bytes_text(bucket.low_bytes)} – {bytes_text(2 * bucket.low_bytes)}",
            "count": f"{bucket.count:,}",
            "bytes": bytes_text(bucket.bytes),
            "bar": Bar(((bucket.bytes, token),), most or None),
        }
        yield TableRow(f"{name}:{bucket.low_bytes}", cells)


# ── time ──


def curve_of(device: SnapshotDevice) -> Band:
    """Return the line of allocated bytes over the trace; empty without one."""
    trace = device.trace
    if trace is None or not trace.timeline.index:
        return Band((), ())
    line = trace.timeline
    marked = [mark.index for mark in trace.marks if mark.action == "oom"]
    ooms = frozenset(
        next((i for i, last in enumerate(line.index) if last >= index), 0) for index in marked
    )
    size = min(len(line.index), len(line.allocated.low), len(line.allocated.high))
    return Band(tuple(line.allocated.low[:size]), tuple(line.allocated.high[:size]), ooms)


def peak_bucket(curve: Band) -> int:
    """Return where most was allocated."""
    return max(range(len(curve.high)), key=lambda i: curve.high[i], default=0)


def moment_title(at: At, device: SnapshotDevice) -> str:
    """Return which event of the trace a moment is, and how much was allocated then."""
    first = device.trace.first_us if device.trace is not None else None
    since = ""
    if at.time_us is not None and first is not None:
        since = f", {duration_text((at.time_us - first) / 1e6)} after the first"
    known = at.allocated_bytes is not None
    level = f"{bytes_text(at.allocated_bytes)} allocated" if known else "level not known"
    return f"Event {at.index:,}{since}: {level} in {count_text(at.count, 'block')}"


# ── differences ──


def diff_head(diff: DeviceDiff) -> Iterable[Line]:
    """Return how much more or less, and what stayed."""
    change = diff.after.allocated_bytes - diff.before.allocated_bytes
    before, after = bytes_text(diff.before.allocated_bytes), bytes_text(diff.after.allocated_bytes)
    yield [
        ("allocated ", "muted"),
        (f"{before} → {after}  ", "text"),
        (signed_bytes_text(change), "warn" if change > 0 else "ok"),
    ]
    blocks = count_text(diff.survivor_count, "block")
    yield [
        ("stayed ", "muted"),
        (f"{bytes_text(diff.survivor_bytes)} in {blocks}", "text"),
        ("   new ", "muted"),
        (f"{bytes_text(diff.new_bytes)} in {diff.new_count:,}", "text"),
        ("   gone ", "muted"),
        (f"{bytes_text(diff.gone_bytes)} in {diff.gone_count:,}", "text"),
    ]


def diff_rows(diff: DeviceDiff) -> list[TableRow]:
    """Return what grew most first."""
    rows = []
    for number, row in enumerate(diff.rows):
        change = row.after_bytes - row.before_bytes
        text = (
            where(row.frames, row.headline)
            if row.block_bytes is None
            else [
                (f"blocks of {bytes_text(row.block_bytes)}", "title"),
                (" (no stacks recorded)", "faint"),
            ]
        )
        cells: dict[str, Cell] = {
            "change": [(signed_bytes_text(change), "warn" if change > 0 else "ok")],
            "before": bytes_text(row.before_bytes),
            "after": bytes_text(row.after_bytes),
            "count": f"{row.after_count - row.before_count:+,}",
            "where": text,
        }
        rows.append(TableRow(str(number), cells))
    if diff.other_rows:
        cells = {
            "change": signed_bytes_text(diff.other_bytes),
            "where": [(f"{diff.other_rows:,} others", "muted")],
        }
        rows.append(TableRow("other", cells))
    return rows
