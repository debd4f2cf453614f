"""The difference of two snapshots as text."""

from __future__ import annotations

from ..text.styled import Line
from ..text.units import bytes_text, signed_bytes_text
from .drawing import BLOCKS, Charset
from .model import (
    DeviceDiff,
    Diff,
    DiffRow,
    StackRow,
)
from .report_pieces import amount_line, frame_lines, headline, note_lines, pair


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
            f"{bytes_text(one.survivor_bytes)} in {one.survivor_count:,} blocks at the same "
            "address",
        ),
        pair("new", f"{bytes_text(one.new_bytes)} in {one.new_count:,} blocks"),
        pair("gone", f"{bytes_text(one.gone_bytes)} in {one.gone_count:,} blocks"),
    ]
    if one.rows:
        lines += [[], [(f"change by {one.by}", "accent")]]
    for row in one.rows:
        lines += _diff_row(row, width, glyphs)
    if one.other_rows:
        lines.append(
            amount_line(
                signed_bytes_text(one.other_bytes),
                "",
                f"{one.other_rows:,} other rows, most of them unchanged",
            )
        )
    return lines


def _diff_row(row: DiffRow, width: int, glyphs: Charset) -> list[Line]:
    change = f"{signed_bytes_text(row.after_bytes - row.before_bytes):>10}"
    counts = f"{row.after_count - row.before_count:>+7,}"
    if row.block_bytes is not None:
        first: Line = [
            (change, "text"),
            (counts, "muted"),
            (f"  blocks of {bytes_text(row.block_bytes)}", "text"),
        ]
    else:
        first = headline(change, counts, row.frames, row.headline, width, glyphs)
    was = (
        f"{bytes_text(row.before_bytes)} in {row.before_count:,} before, "
        f"{bytes_text(row.after_bytes)} in {row.after_count:,} after"
    )
    return [
        first,
        [(" " * 19, ""), (was, "muted")],
        *frame_lines(StackRow(0, 0, row.frames, row.headline), width, glyphs, False),
    ]
