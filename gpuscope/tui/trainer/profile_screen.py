"""This screen looks at a profile closely: what each device did, and a table.

The table is by kernel, collective or CPU operator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ...paths import short_path
from ...process.async_child import Child
from ...store.trace import Table, TimeLine, TraceError, TraceRow, decode_table
from ...text import styled
from ...text.styled import Line, Piece
from ...text.units import MIB, brief_duration_text, count_text, duration_text, percent_text
from ...text.width import cells as text_cells
from ..cells import visible
from ..shell.keymap import bindings_of
from ..theme import Glyphs
from ..widgets.bars import stacked_bar
from ..widgets.full_screen import FullScreen, named_path
from ..widgets.pane import set_title
from ..widgets.table import Column, LiveTable, TableRow
from ..widgets.text import Lines

if TYPE_CHECKING:
    from ..shell.session import Session

MAX_ANSWER_BYTES = 16 * MIB
KINDS = {
    "devices": ("On the GPUs", ("kernel", "memcpy", "memset")),
    "collectives": ("Collectives", ("collective",)),
    "cpu": ("On the CPU", ("op", "annotation")),
}
SORTS = ("self_seconds", "total_seconds", "calls", "longest_seconds")
SORT_NAMES = {
    "self_seconds": "self time",
    "total_seconds": "total time",
    "calls": "calls",
    "longest_seconds": "longest",
}
TOKENS = {
    "kernel": "series1",
    "op": "series1",
    "collective": "series5",
    "memcpy": "series4",
    "memset": "series3",
    "idle": "free",
}
COLUMNS = (
    Column("name", "NAME", 20, flex=1),
    Column("self", "SELF", 9, align="right"),
    Column("share", "SHARE", 6, align="right"),
    Column("total", "TOTAL", 9, align="right", priority=2),
    Column("calls", "CALLS", 8, align="right", priority=1),
    Column("mean", "MEAN", 9, align="right", priority=3),
    Column("longest", "LONGEST", 9, align="right", priority=4),
)
BAR_CELLS = 24


async def load(path: Path) -> Table:
    """Return the table of a trace, made in a child process.

    The child is killed when this is cancelled. Raises TraceError.
    """
    argv = [sys.executable, "-m", "gpuscope.store.trace", str(path)]
    child = await Child.spawn(argv, max_line_bytes=MAX_ANSWER_BYTES)
    try:
        line = await child.lines.readline()
    except ValueError:
        raise TraceError("the trace's table is too large to show") from None
    finally:
        child.kill()
    if not line:
        raise TraceError(
            "the trace could not be read: its reader ended early (too little memory, or killed)"
        )
    return decode_table(line)


class ProfileScreen(FullScreen):
    """The table of a profile, whose keys choose devices, collectives or CPU and sort."""

    DEFAULT_CSS = """
    ProfileScreen #lines { height: auto; }
    ProfileScreen #rows { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("ProfileScreen")]

    def __init__(self, session: Session, path: Path) -> None:
        super().__init__()
        self.path = path
        self._notices = session.notices
        self._table: Table | None = None
        self._kind, self._sort = "", "self_seconds"
        self._lines = Lines([[("reading the trace", "muted")]], id="lines", classes="panel")
        self._rows = LiveTable(COLUMNS, empty="reading", id="rows", classes="panel")

    def compose(self) -> ComposeResult:
        self._lines.border_title = "What it did"
        yield self.head
        yield self._lines
        yield self._rows
        yield self.foot

    def on_mount(self) -> None:
        self.begin(self._load())
        self.set_focus(self._rows)  # now: the next key may be there already
        self.call_after_refresh(self._show)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    async def _load(self) -> None:
        try:
            self._table = await load(self.path)
            self._kind = next((kind for kind in KINDS if self._of(kind)), "cpu")
        except TraceError as error:
            self._lines.show([[("Not shown: ", "warn"), (str(error), "text")]])
            self._rows.show_empty("no table")
        except OSError as error:
            self._lines.show(
                [[("Not shown: ", "warn"), (f"cannot start a process: {error.strerror}", "text")]]
            )
        self._show()

    def _of(self, kind: str) -> list[TraceRow]:
        return (
            [row for row in self._table.rows if row.kind in KINDS[kind][1]]
            if self._table is not None
            else []
        )

    def _show(self) -> None:
        if not self.is_mounted:
            return
        self.say_head([("Profile  ", "bold accent"), *named_path(self.path)])
        self.say_own_keys()
        table = self._table
        if table is None:
            return
        cells = max(30, self._lines.size.width or 70)
        self._lines.show(list(summary(table, cells, self._lines.tokens.glyphs)))
        rows = sorted(self._of(self._kind), key=lambda row: -getattr(row, self._sort))
        together = sum(row.self_seconds for row in rows)
        self._rows.show([_row(number, row, together) for number, row in enumerate(rows)])
        self._rows.show_empty("none in this trace")
        set_title(self._rows, f"{KINDS[self._kind][0]}, by {SORT_NAMES[self._sort]}")

    def action_kind(self) -> None:
        """The next table that has rows."""
        kinds = [kind for kind in KINDS if self._of(kind)]
        if kinds:
            self._kind = (
                kinds[(kinds.index(self._kind) + 1) % len(kinds)]
                if self._kind in kinds
                else kinds[0]
            )
            self._show()

    def action_sort(self, by: int) -> None:
        """Another column."""
        self._sort = SORTS[(SORTS.index(self._sort) + by) % len(SORTS)]
        self._show()

    def action_copy(self) -> None:
        """The path of the trace: it opens in Perfetto and in chrome://tracing."""
        self.app.copy_to_clipboard(str(self.path))
        self._notices.say(f"copied the path: {short_path(self.path)}")


def summary(table: Table, cells: int, glyphs: Glyphs) -> Iterable[Line]:
    """Return a bar for each device and the CPU with its shares in words, then the steps.

    No line is longer than ``cells``. Where the words need the room, there is no bar.
    """
    label = max((text_cells(visible(line.name)) for line in table.lines), default=0)
    bars = [list(_bar(line, label, BAR_CELLS, glyphs)) for line in table.lines]
    if any(styled.cells(pieces) > cells for pieces in bars):
        bars = styled.hang_lines((list(_bar(line, 0, 0, glyphs)) for line in table.lines), cells)
    yield from bars
    if table.steps:
        usual, longest = median(table.steps), max(table.steps)
        text = (
            f"{len(table.steps)} measured, median {duration_text(usual)}, "
            f"max {duration_text(longest)}"
        )
        steps = [(text, "text"), ("  (with the profiler on)", "faint")]
        yield from styled.hang([("steps  ", "muted")], steps, cells)
    counted = count_text(table.events, "event")
    trace = [(counted, "text"), (f"  {table.cut}" if table.cut else "", "warn")]
    yield from styled.hang([("trace  ", "muted")], trace, cells)


def _bar(line: TimeLine, label: int, cells: int, glyphs: Glyphs) -> Iterable[Piece]:
    """Return a line with a name of at least ``label`` cells and a bar of ``cells``."""
    span = line.span_seconds
    parts = [(seconds, TOKENS.get(kind, "other")) for kind, seconds in line.shares.items()]
    name = visible(line.name)
    yield (name + " " * max(0, label - text_cells(name)) + "  ", "title")
    if cells:
        yield from stacked_bar(parts, span or None, cells, glyphs)
        yield ("  ", "text")
    yield (f"{duration_text(span)}: ", "muted")
    for number, (kind, seconds) in enumerate(line.shares.items()):
        share = percent_text(seconds / span) if span > 0 else "–"
        word = {
            "op": "torch operators",
            "idle": "idle" if line.name.startswith("GPU") else "Python, waiting",
        }.get(kind, kind)
        yield (
            f"{' · ' if number else ''}{word} {share}",
            "text" if kind == "idle" else TOKENS.get(kind, "text"),
        )


def _row(number: int, row: TraceRow, together: float) -> TableRow:
    share: Sequence[Piece] = [
        (percent_text(row.self_seconds / together) if together > 0 else "–", "accent")
    ]
    mark = "" if row.kind in ("kernel", "op") else f"[{row.kind}] "
    return TableRow(
        f"{number}:{row.kind}:{row.name}",
        {
            "name": [(mark, "faint"), (row.name, "text")],
            "self": brief_duration_text(row.self_seconds),
            "share": share,
            "total": brief_duration_text(row.total_seconds),
            "calls": f"{row.calls:,}",
            "mean": brief_duration_text(row.total_seconds / row.calls) if row.calls else "–",
            "longest": brief_duration_text(row.longest_seconds),
        },
    )
