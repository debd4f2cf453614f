"""Turn a loaded pickle into a summary, in the child process.

What later requests need is kept; the rest is freed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..process import procfs
from ..text.units import KIB, bytes_text
from ..wire.clean import clean
from .blocks import BlockTable, DeviceBlocks, TooManyBlocks, device_view, has_stacks, read_segments
from .columns import ACTIONS, OTHER, Columns, read_trace
from .history import SegmentTable, table_of
from .model import DeviceTrace, Note, SnapshotDevice, Stacks, Summary, Totals
from .moments import Moments
from .record import MAX_PAIRS, MAX_TEXT, pairs, read_record
from .stacks import StackTable
from .unpickle import Loaded, Unreadable, check_root, load

MAX_DEVICES = 64
_KNOWN_KEYS = {
    "segments", "device_traces", "allocator_settings", "external_annotations", "host_segments",
    "host_traces", "gpuscope", "traces",
}  # fmt: skip


class Snapshot:
    """One file: its summary, and per device the live blocks and the trace as columns.

    The trace is left out where ``traces`` is False.
    """

    def __init__(
        self,
        path: str,
        top: int,
        say: Callable[[float], None],
        more_memory: Callable[[], None],
        traces: bool = True,
    ) -> None:
        self.stacks = StackTable()
        self.live: dict[int, BlockTable] = {}
        self.totals: dict[int, Totals] = {}
        self.moments: dict[int, Moments] = {}
        # For devices with a trace: whether it is complete.
        self.segments: dict[int, tuple[SegmentTable, bool]] = {}
        self.notes: list[Note] = []
        began = time.perf_counter()
        loaded = load(path, say, more_memory)
        read = time.perf_counter()
        self.summary = self._lay_out(path, loaded, top, traces)
        self.summary.seconds = {"read": read - began, "lay_out": time.perf_counter() - read}

    def _lay_out(self, path: str, loaded: Loaded, top: int, traces: bool) -> Summary:
        root = check_root(loaded)
        loaded.root = None
        budget = loaded.read_bytes // 2 + 1000  # one reference to a block takes at least two bytes
        try:
            found = read_segments(root.get("segments"), self.stacks, budget)
            entries = _traces(root, budget) if traces else {}
            pinned = read_segments(root.get("host_segments"), StackTable(), budget)
        except TooManyBlocks:
            raise Unreadable(
                "hostile",
                "this pickle repeats the same lists: more blocks than a file of its size can hold.",
            ) from None
        summary = Summary(
            path=clean(path),
            file_bytes=loaded.file_bytes,
            read_bytes=loaded.read_bytes,
            compressed=loaded.packed,
            protocol=loaded.protocol,
            complete=not loaded.problem,
            devices=[],
            settings={
                key: str(value) for key, value in pairs(root.get("allocator_settings")).items()
            },
            record=pairs(root.get("gpuscope")),
            notes=self.notes,
        )
        complete = read_record(root.get("gpuscope"), summary) and not loaded.problem
        self._note_whole(root, loaded, found)
        for host in pinned.values():
            text = (
                f"pinned host memory: {bytes_text(host.totals.reserved_bytes)} in "
                f"{host.totals.segments:,} blocks, {bytes_text(host.totals.active_bytes)} of it "
                f"in use. It is host memory: no total of a GPU includes it."
            )
            self.notes.append(Note("pinned", text))
        numbers = sorted(set(found) | {number for number, rows in entries.items() if rows})
        for number in numbers[:MAX_DEVICES]:
            here = found.get(number) or DeviceBlocks(number)
            summary.devices.append(self._device(here, entries.get(number), top, complete))
        if len(numbers) > MAX_DEVICES:
            self.notes.append(
                Note("folded", f"{len(numbers) - MAX_DEVICES} more GPUs are left out")
            )
        newest = [
            one.trace.last_us
            for one in summary.devices
            if one.trace is not None and one.trace.last_us is not None
        ]
        summary.taken_us = max(newest, default=None)
        return summary

    def sized(self, device: int, low: int, top: int) -> Stacks:
        """Return which stacks hold the live blocks of at least ``low`` bytes and less than twice.

        ``low`` is a power of two, as in :class:`~gpuscope.snapshot.model.Bucket`.
        """
        live = self.live.get(device, BlockTable())
        sums: dict[int, list[int]] = {}
        for size, stack in zip(live.size, live.stack, strict=True):
            if low <= max(size, 1) < 2 * low:
                row = sums.setdefault(stack, [0, 0])
                row[0] += size
                row[1] += 1
        return self.stacks.top(sums, top)

    def _note_whole(
        self, root: dict[str, Any], loaded: Loaded, found: dict[int, DeviceBlocks]
    ) -> None:
        def say(code: str, text: str) -> None:
            self.notes.append(Note(code, text))

        if loaded.problem:
            what = {
                "truncated": f"the file ends after {loaded.read_bytes:,} bytes, in the middle of "
                "a value",
                "memory": f"memory reached its limit after {loaded.read_bytes:,} bytes of the "
                f"pickle",
                "damaged": f"the file is damaged near byte {loaded.read_bytes:,} "
                f"({clean(loaded.text, MAX_TEXT)})",
            }[loaded.problem]
            whole = sum(here.totals.segments for here in found.values())
            shown = (
                f"{whole:,} whole segments and the part of the traces that was read are shown; "
                f"the newest entries are missing"
            )
            say(loaded.problem, f"{what}: {shown}.")
        unknown = [
            clean(str(key), 40)
            for key in list(root)[:MAX_PAIRS]
            if not isinstance(key, str) or key not in _KNOWN_KEYS
        ]
        if unknown:
            say("unknown_key", f"unknown keys are left out: {', '.join(unknown[:8])}")
        if found and any(here.live.stack for here in found.values()) and not has_stacks(found):
            text = (
                "no block has a stack: the history of allocations was off "
                "(torch.cuda.memory._record_memory_history()). Sizes, fragmentation and totals "
                "are complete."
            )
            say("no_frames", text)
        if self.stacks.malformed:
            say(
                "malformed",
                f"{self.stacks.malformed:,} stacks are not lists of frames: shown as unknown",
            )

    def _device(
        self, here: DeviceBlocks, entries: list[Any] | None, top: int, complete: bool
    ) -> SnapshotDevice:
        view = device_view(here, self.stacks, top)
        view.complete = complete
        self.live[here.device] = here.live
        self.totals[here.device] = here.totals

        def say(code: str, text: str) -> None:
            view.notes.append(Note(code, text))

        if here.malformed:
            say("malformed", f"{here.malformed:,} segments or blocks are invalid and left out")
        if here.mismatched:
            say(
                "mismatch",
                f"{here.mismatched:,} segments do not add up: their own sums differ from "
                "their blocks'",
            )
        for state, count in here.unknown_states.most_common(5):
            say(
                "unknown_state",
                f"{count:,} blocks are in an unknown state ({state}): counted as free",
            )
        if view.folded_segments:
            say("folded", f"{view.folded_segments:,} small segments are not in the map")
        if not entries:
            say(
                "no_trace",
                "no trace: the history of allocations was off. There is nothing to show over time.",
            )
            return view
        columns = read_trace(entries, self.stacks)
        try:
            # The segments of a file that ended early do not describe the moment at which its trace
            # ends.
            final = here.live if complete and here.totals.segments else None
            moments = Moments(
                here.device,
                columns,
                self.stacks,
                final,
                here.totals.reserved_bytes if final else None,
            )
        except ValueError:
            say("malformed", "the sizes in the trace are invalid: it is left out")
            return view
        self.moments[here.device] = moments
        self.segments[here.device] = (table_of(here), final is not None)
        view.trace = _trace(moments, columns, top)
        view.notes += _trace_notes(moments, columns, complete)
        return view


def _traces(root: dict[str, Any], budget: int) -> dict[int, list[Any]]:
    """Return each device's entries; a list that occurs twice is used once.

    Raises :class:`TooManyBlocks`.
    """
    traces = root.get("device_traces", root.get("traces"))
    out: dict[int, list[Any]] = {}
    seen: set[int] = set()
    if isinstance(traces, (list, tuple)):
        for number, one in enumerate(traces[:4096]):
            if isinstance(one, list) and id(one) not in seen:
                seen.add(id(one))
                out[number] = one
        if sum(map(len, out.values())) > budget:
            raise TooManyBlocks
    return out


def _trace(moments: Moments, columns: Columns, top: int) -> DeviceTrace:
    counts = {name: columns.code.count(code) for code, name in enumerate(ACTIONS)}
    actions = {name: count for name, count in counts.items() if count}
    if columns.code.count(OTHER):
        actions["other"] = columns.code.count(OTHER)
    return DeviceTrace(
        entries=len(columns),
        first_us=columns.time_at(0),
        last_us=columns.time_at(len(columns) - 1),
        actions=actions,
        timeline=moments.timeline,
        marks=columns.marks,
        dropped_marks=columns.dropped_marks,
        before_bytes=moments.before_bytes,
        peak=moments.at(moments.peak_index, top),
    )


def _trace_notes(moments: Moments, columns: Columns, complete: bool) -> list[Note]:
    notes = []
    if moments.before_bytes:
        text = (
            f"{bytes_text(moments.before_bytes)} were allocated before the trace's first entry: "
            f"recording started after the training did, or the oldest entries were dropped. "
            f"Those freed since have no stack."
        )
        notes.append(Note("before", text))
    if moments.before_bytes is None and not moments.complaints:
        why = "the file is not complete" if not complete else "there are no segments for it"
        notes.append(
            Note(
                "level",
                f"the level of the lines is unknown ({why}): they start at the lowest possible",
            )
        )
    notes += [Note("level", text) for text in moments.complaints]
    if columns.malformed:
        notes.append(
            Note(
                "malformed",
                f"{columns.malformed:,} entries of the trace are invalid and ignored",
            )
        )
    for action, count in columns.unknown_actions.most_common(5):
        notes.append(
            Note(
                "unknown_action",
                f"{count:,} entries with an unknown action: {action}",
            )
        )
    if not columns.time:
        notes.append(Note("times", "the trace has no times: moments are given by entry or share"))
    return notes


def peak_rss_bytes() -> int | None:
    """Return the child's own peak of resident memory in bytes.

    ``getrusage`` would include what its parent held when it forked.
    """
    try:
        peak = procfs.key_values("/proc/self/status", b":").get(b"VmHWM")
    except OSError:
        return None
    return None if peak is None else peak * KIB
