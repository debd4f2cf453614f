"""Compare two snapshots of one training by stack, in the child process.

Where stacks were not recorded, blocks are compared by size.
"""

from __future__ import annotations

from collections import defaultdict

from .blocks import BlockTable
from .model import MAX_FRAMES, DeviceDiff, Diff, DiffRow, Note, Totals
from .stacks import NO_STACK, Place, StackTable, frames_of, headline
from .views import Snapshot

Key = tuple[Place, ...]
_UNKNOWN: Key = ()


def compare(before: Snapshot, after: Snapshot, top: int) -> Diff:
    """Compare ``after`` with ``before``, device by device.

    A device that is only in one of them is compared with an empty one.
    """
    diff = Diff(before.summary.path, after.summary.path, [])
    diff.notes += [Note(note.code, f"before: {note.text}") for note in before.notes]
    for device in sorted(set(before.live) | set(after.live)):
        old, new = before.live.get(device, BlockTable()), after.live.get(device, BlockTable())
        by_stack = _has_stacks(old) and _has_stacks(new)
        if not by_stack and (_has_stacks(old) or _has_stacks(new)):
            text = f"cuda:{device}: only one of the two has stacks, so rows are by block size"
            diff.notes.append(Note("no_frames", text))
        diff.devices.append(_device(device, old, new, before, after, by_stack, top))
    return diff


def _has_stacks(live: BlockTable) -> bool:
    return not live.stack or any(stack != NO_STACK for stack in live.stack)


def _device(
    device: int,
    old: BlockTable,
    new: BlockTable,
    before: Snapshot,
    after: Snapshot,
    by_stack: bool,
    top: int,
) -> DeviceDiff:
    by_stack = by_stack and bool(old.stack or new.stack)
    sums: dict[object, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    blocks: list[dict[tuple[int, int], object]] = []
    for number, (live, table) in enumerate(((old, before.stacks), (new, after.stacks))):
        keys = _keys(live, table, by_stack)
        for size, key in zip(live.size, keys, strict=True):
            row = sums[key]
            row[2 * number] += size
            row[2 * number + 1] += 1
        blocks.append(dict(zip(zip(live.address, live.size, strict=True), keys, strict=True)))
    survivors = [block for block, key in blocks[1].items() if blocks[0].get(block, block) == key]
    kept = sum(size for _, size in survivors)
    rows = sorted(sums.items(), key=lambda item: (-(item[1][2] - item[1][0]), -item[1][2]))
    changed = [item for item in rows if item[1][0] != item[1][2] or item[1][1] != item[1][3]]
    # The largest growth comes first; the largest shrinkage is taken from the other end.
    shrunk = [item for item in changed[top:] if item[1][2] < item[1][0]]
    shown = changed[:top] + shrunk[-max(1, top // 2) :]
    return DeviceDiff(
        device=device,
        by="stack" if by_stack else "size",
        before=before.totals.get(device) or Totals(),
        after=after.totals.get(device) or Totals(),
        rows=[_row(key, values, by_stack) for key, values in shown],
        other_rows=len(rows) - len(shown),
        other_bytes=sum(v[2] - v[0] for _, v in rows) - sum(v[2] - v[0] for _, v in shown),
        survivor_bytes=kept,
        survivor_count=len(survivors),
        new_bytes=sum(new.size) - kept,
        new_count=len(new.size) - len(survivors),
        gone_bytes=sum(old.size) - kept,
        gone_count=len(old.size) - len(survivors),
    )


def _keys(live: BlockTable, table: StackTable, by_stack: bool) -> list[object]:
    if not by_stack:
        return list(live.size)
    return [table.places[stack] if stack >= 0 else _UNKNOWN for stack in live.stack]


def _row(key: object, values: list[int], by_stack: bool) -> DiffRow:
    row = DiffRow(values[0], values[1], values[2], values[3])
    if isinstance(key, tuple):
        row.frames, row.headline = frames_of(key), headline(key[:MAX_FRAMES])
        row.cut_frames = max(0, len(key) - MAX_FRAMES)
    elif isinstance(key, int) and not by_stack:
        row.block_bytes = key
    return row
