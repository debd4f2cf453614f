"""Write a snapshot as lines of styled text, for the verb and for the screen."""

from __future__ import annotations

from collections.abc import Sequence

from ..text import styled
from ..text.clock import DATE_AND_SECOND, clock_text
from ..text.styled import Line
from ..text.units import bytes_text, count_text, duration_text
from ..text.width import cut
from .drawing import BLOCKS, Charset, area, bar, column_of, flow_map
from .model import (
    At,
    Between,
    Bucket,
    DeviceTrace,
    SnapshotDevice,
    Stacks,
    Summary,
    Totals,
)
from .report_pieces import (
    LABEL_CELLS,
    MORE_FRAMES,
    amount_line,
    blocks_text,
    frame_lines,
    headline,
    note_lines,
    pair,
)

MAP_ROWS = 8
AREA_ROWS = 6
_PROGRAM = (
    ("step", "step"),
    ("pid", "pid"),
    ("host", "on"),
    ("torch_version", "torch"),
    ("thread", "thread"),
)


def summary_lines(
    summary: Summary, width: int, glyphs: Charset = BLOCKS, device: int | None = None
) -> list[Line]:
    """Return the whole report, ``width`` cells wide; ``device`` leaves out the others."""
    lines = header(summary, glyphs)
    for one in summary.devices:
        if device is None or one.device == device:
            lines += [[], *device_lines(one, width, glyphs)]
    return lines


def header(summary: Summary, glyphs: Charset = BLOCKS) -> list[Line]:
    """Say what the file is, when it was written, the allocator's settings, and what is missing."""
    kind = "record of an out-of-memory error" if summary.record else "allocator snapshot"
    packed = f", compressed from {bytes_text(summary.read_bytes)}" if summary.compressed else ""
    lines: list[Line] = [
        [
            (summary.path.rsplit("/", 1)[-1], "title"),
            (f"  {kind}, {bytes_text(summary.file_bytes)}{packed}", "muted"),
        ]
    ]
    if summary.taken_us is not None:
        moment = clock_text(summary.taken_us / 1e6, DATE_AND_SECOND)
        lines.append(pair("newest entry", moment))
    plain = {
        key: value for key, value in summary.settings.items() if value not in ("", "{}", "None")
    }
    conf = [value for key, value in plain.items() if "ALLOC_CONF" in key]
    if conf:
        lines.append(pair("settings", conf[0]))
    elif plain:
        lines.append(
            pair("settings", ", ".join(f"{key}={value}" for key, value in list(plain.items())[:6]))
        )
    return lines + record_lines(summary, glyphs) + note_lines(summary.notes)


def record_lines(summary: Summary, glyphs: Charset = BLOCKS) -> list[Line]:
    """Return the error of a record: the request, the free memory, and the place in the program."""
    record = summary.record
    if not record:
        return []

    def amount(key: str) -> str:
        value = record.get(key)
        return bytes_text(value if isinstance(value, int) else None, glyphs.dash)

    lines: list[Line] = []
    if "requested_bytes" in record:
        words = (
            f"{amount('requested_bytes')} requested, {amount('free_bytes')} of "
            f"{amount('total_bytes')} free"
        )
        lines.append(
            [
                (f"{'oom':<{LABEL_CELLS}} ", "bad"),
                (f"{words} on cuda:{record.get('device', '?')}", "text"),
            ]
        )
    frames = summary.stack[summary.headline : summary.headline + 1 + MORE_FRAMES]
    if frames:
        places = [f"{frame.function} {frame.place}" for frame in frames]
        lines.append(pair("raised at", f"  {glyphs.arrow} ".join(places)))
    if "statistics.allocated_bytes.all.current" in record:
        allocated, reserved = (
            amount(f"statistics.{name}_bytes.all.current") for name in ("allocated", "reserved")
        )
        lines.append(
            pair(
                "statistics",
                f"{allocated} allocated, {reserved} reserved, as the allocator counts them",
            )
        )
    known = [(name, record[key]) for key, name in _PROGRAM if record.get(key) not in (None, "")]
    if known:
        lines.append(pair("program", ", ".join(f"{name} {value}" for name, value in known)))
    return lines


def device_lines(device: SnapshotDevice, width: int, glyphs: Charset = BLOCKS) -> list[Line]:
    lines: list[Line] = [
        [(f"cuda:{device.device}", "title")],
        *totals_lines(device, width, glyphs),
    ]
    for title, part in (
        ("fragmentation", fragmentation_lines(device, width, glyphs)),
        ("live blocks by size", histogram_lines(device.sizes, width, glyphs)),
        ("live bytes by stack", stack_lines(device.stacks, width, glyphs)),
        ("over time", trace_lines(device.trace, width, glyphs) if device.trace is not None else []),
    ):
        if part:
            lines += [[], [(title, "accent")], *part]
    if device.notes:
        lines += [[], *note_lines(device.notes)]
    return lines


def totals_lines(device: SnapshotDevice, width: int, glyphs: Charset = BLOCKS) -> list[Line]:
    """Return the reserved bytes and their parts."""
    totals = device.totals
    cells = max(10, min(40, width - 74))
    room = width - LABEL_CELLS - 12 - cells - 2
    lines: list[Line] = []
    for name, value, token, text in rows_of_totals(totals):
        share = value / totals.reserved_bytes if totals.reserved_bytes else 0.0
        lines.append(
            [
                (f"{name:<{LABEL_CELLS}}", "muted"),
                (f"{bytes_text(value):>10}  ", "text"),
                (bar(share, cells, glyphs), token),
                (f"  {cut(text, room, glyphs.ellipsis)}", "muted"),
            ]
        )
    rounding = totals.active_bytes - totals.requested_bytes
    lines.append(pair("rounding", f"{bytes_text(rounding)} more than requested"))
    for pool in device.pools:
        if pool.private:
            words = (
                f"{bytes_text(pool.reserved_bytes)} reserved, "
                f"{bytes_text(pool.allocated_bytes)} allocated"
            )
            lines.append(pair("pool " + pool.name, f"{words}, {pool.segments} segments"))
    return lines


def rows_of_totals(totals: Totals) -> list[tuple[str, int, str, str]]:
    """Return what is reserved, and what it consists of: name, bytes, token, and what that is.

    Parts that are empty are left out, except what is allocated.
    """
    rows = [
        ("reserved", totals.reserved_bytes, "text", f"{totals.segments:,} segments"),
        ("allocated", totals.allocated_bytes, "allocated", blocks_text(totals.allocated_blocks)),
        (
            "pending",
            totals.pending_bytes,
            "warn",
            f"{blocks_text(totals.pending_blocks)}, freed but in use by a stream",
        ),
        (
            "split",
            totals.inactive_split_bytes,
            "cached",
            "free, inside segments that are partly in use",
        ),
        (
            "page bound",
            totals.page_bound_bytes,
            "cached",
            "free, inside pages that are partly in use",
        ),
        ("releasable", totals.releasable_bytes, "cached", "whole free segments and pages"),
    ]
    return [row for row in rows if row[1] or row[0] in ("reserved", "allocated")]


def fragmentation_lines(
    device: SnapshotDevice, width: int, glyphs: Charset = BLOCKS, rows: int = MAP_ROWS
) -> list[Line]:
    """Draw the map of the default pool, then of the private ones, and the largest free run.

    The map of the default pool has about ``rows`` rows.
    """
    found = device.fragmentation
    lines: list[Line] = []
    for private, title in ((False, ""), (True, "private pools")):
        chosen = [segment for segment in device.segments if segment.private is private]
        drawn, scale = flow_map(chosen, width, max(1, rows // 3) if private else rows, glyphs)
        if drawn:
            lines += ([[(title, "muted")]] if title else []) + drawn
            lines += [] if private else legend_lines(drawn, scale, width, glyphs)
    if found.free_bytes:
        text = (
            f"{bytes_text(found.free_bytes)} in {count_text(found.free_blocks, 'block')}; the "
            f"largest is {bytes_text(found.largest_free_bytes)}"
        )
        percent = f" (fragmentation {found.percent:.0f} %)" if found.percent is not None else ""
        lines.append(pair("free", text + percent))
        by_size = ", ".join(
            f"{row.count:,} of {bytes_text(row.low_bytes)}+" for row in reversed(found.by_size[-6:])
        )
        lines.append(pair("by size", by_size))
    elif device.totals.reserved_bytes:
        lines.append(pair("free", "nothing"))
    return lines


def legend_lines(
    drawn: Sequence[Line], scale: int, width: int, glyphs: Charset = BLOCKS
) -> list[Line]:
    """Return what the characters of a map mean, as far as it has them, and how much a cell is.

    That is one line where it fits, else two: no entry is parted.
    """
    seen = {char for line in drawn for text, _ in line for char in text}
    entries = [
        [(chars, token), (f" {words}", "muted")]
        for chars, token, words in (
            (glyphs.full, "allocated", "live"),
            (glyphs.shades, "allocated", "partly"),
            (glyphs.pending, "warn", "pending"),
            (glyphs.free, "cached", "free"),
            (glyphs.edge, "faint", "next segment"),
        )
        if seen & set(chars)
    ]
    size: Line = [(f"one cell = {bytes_text(scale)}", "muted")]
    for gap in ("  ", " "):
        legend = [piece for entry in entries for piece in ((gap, "muted"), *entry)][1:]
        if styled.cells(legend) + styled.cells(size) + 2 <= width:
            return [[*legend, ("  ", "muted"), *size]]
    return [legend, size]


def histogram_lines(buckets: Sequence[Bucket], width: int, glyphs: Charset = BLOCKS) -> list[Line]:
    """Draw a bar for each power of two, its length by bytes."""
    most = max((bucket.bytes for bucket in buckets), default=0)
    cells = max(10, min(50, width - 40))
    return [
        [
            (f"{bytes_text(bucket.low_bytes) + '+':>{LABEL_CELLS}}  ", "muted"),
            (bar(bucket.bytes / most if most else 0.0, cells, glyphs), "allocated"),
            (f"{bytes_text(bucket.bytes):>10}", "text"),
            (f"  {bucket.count:,}", "muted"),
        ]
        for bucket in reversed(buckets)
    ]


def stack_lines(
    stacks: Stacks, width: int, glyphs: Charset = BLOCKS, full: bool = False
) -> list[Line]:
    """Return two lines per stack: bytes, blocks and the headline; then the frames outside of it.

    ``full`` adds all frames, one per line.
    """
    lines: list[Line] = []
    for row in stacks.rows:
        lines.append(
            headline(
                f"{bytes_text(row.bytes):>10}",
                f"{row.count:>7,}",
                row.frames,
                row.headline,
                width,
                glyphs,
            )
        )
        lines += frame_lines(row, width, glyphs, full)
    if stacks.other_stacks:
        text = f"{stacks.other_stacks:,} other stacks"
        lines.append(amount_line(bytes_text(stacks.other_bytes), f"{stacks.other_count:,}", text))
    if stacks.unknown_count:
        lines.append(
            amount_line(
                bytes_text(stacks.unknown_bytes),
                f"{stacks.unknown_count:,}",
                "without a recorded stack",
            )
        )
    return lines


def trace_lines(
    trace: DeviceTrace, width: int, glyphs: Charset = BLOCKS, rows: int = AREA_ROWS
) -> list[Line]:
    """Draw the allocated bytes as an area, marks below it, reserved bytes and the peak in words.

    The area has so many ``rows``.
    """
    line = trace.timeline
    top = max([*line.allocated.high, 1])
    columns = max(10, min(width - LABEL_CELLS - 2, 160))
    lines: list[Line] = []
    for number, text in enumerate(area(line.allocated, columns, rows, top, glyphs)):
        label = bytes_text(top) if number == 0 else "0" if number == rows - 1 else ""
        lines.append([(f"{label:>{LABEL_CELLS}} ", "muted"), (text, "allocated")])
    marks = [" "] * columns
    signs = {"oom": glyphs.oom, "snapshot": glyphs.snapshot}
    for mark in sorted(trace.marks, key=lambda mark: mark.action == "oom"):
        marks[column_of(mark.index, line.index, columns)] = signs.get(mark.action, glyphs.other)
    if any(sign != " " for sign in marks):
        lines.append([(" " * (LABEL_CELLS + 1), "muted"), ("".join(marks), "bad")])
    span = ""
    if trace.first_us is not None and trace.last_us is not None:
        span = f" in {duration_text((trace.last_us - trace.first_us) / 1e6)}"
    lines.append(pair("trace", f"{trace.entries:,} entries{span}; requested bytes"))
    if line.reserved.high:
        low, high = min(line.reserved.low), max(line.reserved.high)
        lines.append(pair("reserved", f"{bytes_text(low)} to {bytes_text(high)}"))
    if line.active.high and max(line.active.high) > top:
        lines.append(
            pair(
                "active",
                f"up to {bytes_text(max(line.active.high))} with blocks awaiting free",
            )
        )
    for mark in [mark for mark in trace.marks if mark.action == "oom"][-3:]:
        text = (
            f"entry {mark.index:,}: {bytes_text(mark.size_bytes)} requested, "
            f"{bytes_text(mark.free_bytes)} free on the GPU"
        )
        lines.append([(f"{'oom':<{LABEL_CELLS}}", "bad"), (text, "text")])
    if trace.peak is not None:
        lines += [[], [("live at the peak", "accent")], *at_lines(trace.peak, width, glyphs, 5)]
    return lines


def at_lines(at: At, width: int, glyphs: Charset = BLOCKS, rows: int | None = None) -> list[Line]:
    """Return what was live at a moment."""
    total = bytes_text(at.allocated_bytes) if at.allocated_bytes is not None else "an unknown total"
    words = f"after entry {at.index:,}: {total} in {count_text(at.count, 'block')}"
    if at.reserved_bytes is not None:
        words += f", {bytes_text(at.reserved_bytes)} reserved"
    stacks = at.stacks
    if rows is not None and len(stacks.rows) > rows:
        rest = stacks.rows[rows:]
        stacks = Stacks(
            stacks.rows[:rows],
            stacks.other_bytes + sum(row.bytes for row in rest),
            stacks.other_count + sum(row.count for row in rest),
            stacks.other_stacks + len(rest),
            stacks.unknown_bytes,
            stacks.unknown_count,
        )
    return [[(words, "text")], *stack_lines(stacks, width, glyphs)]


def between_lines(between: Between, width: int, glyphs: Charset = BLOCKS) -> list[Line]:
    """Return what was allocated in a range and is still live after it."""
    span = f" ({duration_text(between.seconds)})" if between.seconds is not None else ""
    words = (
        f"entries {between.first:,} to {between.last:,}{span}: {bytes_text(between.bytes)} in "
        f"{between.count:,} blocks allocated and still live; {bytes_text(between.freed_bytes)} "
        f"of the earlier live blocks is freed"
    )
    return [[(words, "text")], *stack_lines(between.stacks, width, glyphs)]
