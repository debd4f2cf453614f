"""Measure a cell: its time, its peak memory, and what it left behind.

The allocator's counters are read before and after the cell. On CUDA each device is synchronised at
both ends, so that the kernels which the cell launched count as its own. No other wait is added, and
the output says how long this one took.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..probe import cuda, snapshots
from ..probe.history import HistorySwitch
from ..probe.long_requests import Refusal
from ..probe.steps import Steps
from ..process import procfs
from ..report.content import Table
from ..text.units import DASH, KIB, bytes_text, duration_text, signed_bytes_text
from ..wire.frames import Unknown

STATUS, CLEAR = "/proc/self/status", "/proc/self/clear_refs"
RESET_PEAK = b"5"
"""Writing this to /proc/self/clear_refs resets the peak of resident memory; see proc(5)."""
ENTRIES = 100_000
SHOWN_LINES = 8
ROWS = (
    ("allocated", "allocated_bytes", "peak_allocated_bytes"),
    ("reserved", "reserved_bytes", "peak_reserved_bytes"),
)
Counters = Mapping[str, Any]
NameOf = Callable[[str], str]


@dataclass(frozen=True)
class CellOptions:
    """``lines``: record where memory is allocated. ``keep_peak``: leave peak counters alone."""

    lines: bool = False
    keep_peak: bool = False


@dataclass
class CellReading:
    """What was read at one end of a cell: ``devices`` by ordinal, ``host`` resident and peak."""

    devices: dict[int, Counters] = field(default_factory=dict)
    host: dict[str, int] | Unknown = field(default_factory=dict)
    waited_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class MeasuredCell:
    """A cell that is being measured, from :meth:`begin` until :meth:`end`."""

    def __init__(self, options: CellOptions) -> None:
        self._options = options
        self._history: HistorySwitch | None = None
        self._notes: list[str] = []
        self._host_reset = False
        self._before = CellReading()
        self._seconds = self._began = self._cost_seconds = 0.0

    def begin(self) -> None:
        """Read what is there. The cell's time begins at the end of this."""
        started = time.perf_counter()
        self._before = _read()
        if self._options.lines:
            self._record()
        if not self._options.keep_peak:
            self._host_reset = _reset_peaks(self._before)
        self._began = time.perf_counter()
        self._cost_seconds = self._began - started

    def end(self, name_of: NameOf = str) -> list[Table]:
        """Return what the cell came to. ``name_of`` says what a file of a stack is called."""
        unfinished = time.perf_counter()
        after = _read()
        # The wait at the end is for the kernels that the cell itself launched.
        self._seconds = unfinished - self._began + after.waited_seconds
        tables = [self._device(*one) for one in sorted(after.devices.items())]
        if self._history is not None:
            tables += self._lines(name_of)
        self._cost_seconds += time.perf_counter() - unfinished - after.waited_seconds
        return [self._host(after), *tables]

    # ── what the tables contain ──

    def _host(self, after: CellReading) -> Table:
        rows = []
        if isinstance(self._before.host, Unknown) or isinstance(after.host, Unknown):
            why = after.host if isinstance(after.host, Unknown) else self._before.host
            self._notes.append(f"Process memory is unknown: {getattr(why, 'text', '')}.")
        else:
            before, now, most = self._before.host, after.host, after.host["peak"]
            exact = self._host_reset or most > before["peak"]
            peak = bytes_text(most) if exact else f"≤ {bytes_text(most)}"
            rows.append(_row("process memory", before["resident"], now["resident"], peak))
        notes = [*self._before.problems, *after.problems, *self._notes]
        notes.append(f"Measuring took {duration_text(self._cost_seconds)} more.")
        if after.devices:
            before_text = duration_text(self._before.waited_seconds)
            notes.append(
                f"Overhead: CUDA was synchronised once before the cell ({before_text}) and once "
                f"after it ({duration_text(after.waited_seconds)}, part of the cell's time)."
            )
            notes.append(self._about_peaks())
        else:
            notes.append(_why_no_allocator())
            if not self._host_reset:
                notes.append("≤: the process had an equally high peak before the cell.")
        title = f"This cell took {duration_text(self._seconds)}"
        return Table(title, ("", "before", "after", "left behind", "peak"), rows, notes=notes)

    def _about_peaks(self) -> str:
        if self._options.keep_peak:
            return "≤: the peak counters were not reset, and were as high before the cell."
        earlier = [
            f"{bytes_text(found['peak_allocated_bytes'])} on cuda:{ordinal}"
            for ordinal, found in sorted(self._before.devices.items())
            if isinstance(found.get("peak_allocated_bytes"), int)
        ]
        if not earlier:
            return ""
        return (
            f"torch's peak counters were reset at the start of the cell. Before, the peak was "
            f"{', '.join(earlier)}. To keep them: %%gpuscope --keep-peak"
        )

    def _device(self, ordinal: int, after: Counters) -> Table:
        before = self._before.devices.get(ordinal)
        rows, notes = [], []
        for name, column, peak_column in ROWS:
            now, most = after.get(column), after.get(peak_column)
            then = 0 if before is None else before.get(column)
            if not isinstance(now, int) or not isinstance(then, int):
                why = now if isinstance(now, Unknown) else then
                notes.append(f"{name} is unknown: {getattr(why, 'text', 'not reported by torch')}.")
                continue
            earlier = 0 if before is None else before.get(peak_column)
            rows.append(_row(name, then, now, self._peak(most, earlier)))
        if before is None:
            notes.append("CUDA was not in use on this GPU before the cell.")
        allocated = [one for one in rows if one[0] == "allocated" and one[3].startswith("+")]
        if allocated and self._history is None:
            notes.append("What stayed alive, by size and line: %%gpuscope --lines")
        try:
            name = f" {cuda.device_properties(ordinal).name}"
        except Exception:
            name = ""
        return Table(
            f"cuda:{ordinal}{name}",
            ("", "before", "after", "left behind", "peak"),
            rows,
            notes=notes,
        )

    def _peak(self, most: object, earlier: object) -> str:
        if not isinstance(most, int):
            return DASH
        if not self._options.keep_peak or not isinstance(earlier, int) or most > earlier:
            return bytes_text(most)
        return f"≤ {bytes_text(most)}"

    # ── which source lines allocated ──

    def _record(self) -> None:
        history = HistorySwitch(Steps())
        try:
            memory = snapshots.cuda_memory()
            history.refuse_if_not_ours(memory)
            history.switch_on(memory, ENTRIES)
            self._history = history
        except Refusal as error:
            self._notes.append(f"No lines: {error}.")
        except Exception as error:
            self._notes.append(f"No lines: {type(error).__name__}: {error}.")

    def _lines(self, name_of: NameOf) -> list[Table]:
        """Return what is alive that the cell has allocated, by the line that did so."""
        assert self._history is not None
        try:
            memory = snapshots.cuda_memory()
            try:
                found = memory._snapshot()
            finally:
                self._history.switch_off(memory)
            return _alive(found, name_of)
        except Exception as error:
            return [Table("", ("",), [], notes=[f"No lines: {type(error).__name__}: {error}."])]


def _row(name: str, before: int, after: int, peak: str) -> tuple[str, ...]:
    return (name, bytes_text(before), bytes_text(after), signed_bytes_text(after - before), peak)


def _why_no_allocator() -> str:
    if "torch" not in sys.modules:
        return "torch is not imported, so only the process's memory was measured."
    return (
        "torch keeps allocator statistics for CUDA only, which is not in use "
        f"({cuda.why_not().text}). So this is the memory of the whole process, which may include "
        f"freed parts. To find the lines that allocated it, use tracemalloc for Python "
        "objects; nothing records CPU tensors."
    )


def _read() -> CellReading:
    """Wait for each device that is in use, and read the counters."""
    found = CellReading(host=_host_memory())
    if not cuda.initialised():
        return found
    torch: Any = sys.modules["torch"]
    allocators = cuda.Allocators()
    for ordinal in allocators.ordinals():
        began = time.perf_counter()
        try:
            torch.cuda.synchronize(ordinal)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            found.problems.append(f"cuda:{ordinal} could not be synchronised: {reason}")
        found.waited_seconds += time.perf_counter() - began
        found.devices[ordinal] = allocators.read(ordinal) or {}
    return found


def _host_memory() -> dict[str, int] | Unknown:
    try:
        status = procfs.key_values(STATUS, b":")
        return {"resident": status[b"VmRSS"] * KIB, "peak": status[b"VmHWM"] * KIB}
    except (OSError, KeyError) as error:
        return procfs.why(error, STATUS)


def _reset_peaks(before: CellReading) -> bool:
    """Reset the peaks, and return whether the peak of the process could be reset."""
    torch: Any = sys.modules.get("torch")
    for ordinal in before.devices:
        try:
            torch.cuda.reset_peak_memory_stats(ordinal)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            before.problems.append(f"cuda:{ordinal}: its peak could not be reset: {reason}")
    try:
        with open(CLEAR, "wb", buffering=0) as file:
            file.write(RESET_PEAK)
        return True
    except OSError:
        return False


def _alive(snapshot: Mapping[str, Any], name_of: NameOf) -> list[Table]:
    """Return a table of the live blocks that have a stack: those of the cell."""
    from ..snapshot.stacks import StackTable

    stacks = StackTable()
    sums: dict[int, list[int]] = {}
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            frames = block.get("frames")
            if block["state"] == "active_allocated" and frames:
                one = sums.setdefault(stacks.index(frames), [0, 0])
                one[0] += block["size"]
                one[1] += 1
    top = stacks.top(sums, SHOWN_LINES)
    rows = []
    for row in top.rows:
        frame = row.frames[row.headline]
        place = f"{name_of(frame.file)}:{frame.line} {frame.function}"
        rows.append((place, bytes_text(row.bytes), f"{row.count}"))
    notes = ["The cell's time includes the history, which is now off again."]
    if top.other_stacks:
        more = f"{top.other_stacks} more lines allocated {bytes_text(top.other_bytes)}."
        notes.insert(0, more)
    if not rows:
        return [Table("Nothing that the cell allocated is still alive", ("",), [], notes=notes)]
    return [
        Table("Alive, by the line that allocated it", ("", "bytes", "blocks"), rows, notes=notes)
    ]
