"""The difference of two snapshots as text."""

from __future__ import annotations

from collections.abc import Sequence

from ..text.styled import Line
from ..text.units import bytes_text, count_text, signed_bytes_text
from ..text.width import cut
from .drawing import BLOCKS, Charset
from .model import (
    DeviceDiff,
    Diff,
    DiffRow,
    StackRow,
)
from .report_pieces import amount_line, frame_lines, headline, note_lines, pair

MARGIN = 19
"""The cells that stand before what a row says."""


def diff_lines(
    diff: Diff, width: int, glyphs: Charset = BLOCKS, device: int | None = None
) -> list[Line]:
    """Return what grew from one snapshot to the other, by stack or by size."""
    lines: list[Line] = [
        [
            (diff.after.rsplit("/", 1)[-1], "title"),
            (" against ", "muted"),
            (diff.before.rsplit("/", 1)[-1], "title"),
        ],
        *note_lines(diff.notes),
    ]
    for one in diff.devices:
        if device is None or one.device == device:
            lines += [[], *_device_diff(one, width, glyphs)]
    return lines


def _device_diff(one: DeviceDiff, width: int, glyphs: Charset) -> list[Line]:
    change = one.after.allocated_bytes - one.before.allocated_bytes
    lines: list[Line] = [
        [(f"cuda:{one.device}", "title")],
        pair(
            "allocated",
            f"{bytes_text(one.before.allocated_bytes)} before, "
            f"{bytes_text(one.after.allocated_bytes)} after, {signed_bytes_text(change)}",
        ),
        pair(
            "reserved",
            f"{bytes_text(one.before.reserved_bytes)} before, "
            f"{bytes_text(one.after.reserved_bytes)} after",
        ),
        pair(
            "survivors",
            f"{bytes_text(one.survivor_bytes)} in {count_text(one.survivor_count, 'block')} at the "
            "same address",
        ),
        pair("new", f"{bytes_text(one.new_bytes)} in {count_text(one.new_count, 'block')}"),
        pair("gone", f"{bytes_text(one.gone_bytes)} in {count_text(one.gone_count, 'block')}"),
    ]
    if one.rows:
        what = "line of code" if one.by == "stack" else one.by
        lines += [[], [(f"change by {what}", "accent")]]
    for rows in _by_line(one.rows):
        lines += _diff_row(_sum_of(rows), width, glyphs, called=len(rows) == 1)
        if len(rows) > 1:
            lines += [_called(row, width, glyphs) for row in rows]
    if one.other_rows:
        lines.append(
            amount_line(
                signed_bytes_text(one.other_bytes),
                "",
                f"{one.other_rows:,} other rows, most of them unchanged",
            )
        )
    return lines


def _by_line(rows: Sequence[DiffRow]) -> list[list[DiffRow]]:
    """Return the rows by the user's line that they come from, what grew most first.

    One line calls many functions of torch, and each of them allocates.
    """
    groups: dict[object, list[DiffRow]] = {}
    for number, row in enumerate(rows):
        callers = tuple((one.file, one.line, one.function) for one in row.frames[row.headline :])
        groups.setdefault(callers or number, []).append(row)
    return sorted(groups.values(), key=lambda group: -_growth(_sum_of(group)))


def _sum_of(rows: Sequence[DiffRow]) -> DiffRow:
    first = rows[0]
    return DiffRow(
        sum(row.before_bytes for row in rows),
        sum(row.before_count for row in rows),
        sum(row.after_bytes for row in rows),
        sum(row.after_count for row in rows),
        first.frames,
        first.headline,
        first.cut_frames,
        first.block_bytes,
    )


def _growth(row: DiffRow) -> int:
    return row.after_bytes - row.before_bytes


def _called(row: DiffRow, width: int, glyphs: Charset) -> Line:
    """Return what a function that the line calls has of its growth."""
    inner = row.frames[0]
    where = f"in {inner.function} {inner.place}" if row.headline else "in the line itself"
    counts = f"{row.after_count - row.before_count:>+7,}"
    return [
        (" " * MARGIN, ""),
        (f"{signed_bytes_text(_growth(row)):>10}", "text"),
        (counts, "muted"),
        (f"  {cut(where, max(10, width - MARGIN - 19), glyphs.ellipsis)}", "muted"),
    ]


def _diff_row(row: DiffRow, width: int, glyphs: Charset, called: bool = True) -> list[Line]:
    """Return a row; with ``called`` its first line names the innermost call, too."""
    change = f"{signed_bytes_text(_growth(row)):>10}"
    counts = f"{row.after_count - row.before_count:>+7,}"
    if row.block_bytes is not None:
        first: Line = [
            (change, "text"),
            (counts, "muted"),
            (f"  blocks of {bytes_text(row.block_bytes)}", "text"),
        ]
    else:
        frames = row.frames if called else row.frames[row.headline :]
        first = headline(change, counts, frames, row.headline if called else 0, width, glyphs)
    was = (
        f"{bytes_text(row.before_bytes)} in {row.before_count:,} before, "
        f"{bytes_text(row.after_bytes)} in {row.after_count:,} after"
    )
    return [
        first,
        [(" " * MARGIN, ""), (was, "muted")],
        *frame_lines(StackRow(0, 0, row.frames, row.headline), width, glyphs, False),
    ]
