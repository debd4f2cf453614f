"""The panels of the tab about time, and which of them has how much room on this terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from ...store.view import DeviceView, HostView, TrainerView
from ...text import styled
from ...text.styled import Line
from ..charts.load_strips import LoadStrips
from ..charts.stacked import TimeChart
from ..charts.strips import Painted
from ..charts.trends import Trends
from ..overview.finding_list import FindingList
from ..overview.process_panel import ProcessPanel
from ..shared.event_rows import event_lines
from ..shell.session import Session
from ..widgets.pane import WAITING, Pane, set_title
from ..widgets.row_shares import Want, share_rows
from ..widgets.table import LiveTable
from ..widgets.text import Lines
from .rows import GPU, KERNELS, SPLIT, gpu_rows, with_names
from .text import in_brief
from .without_ledger import LEAST_STRIP_ROWS, STRIP_FRAME, fitted_strip_rows, lanes_of, strip_rows

if TYPE_CHECKING:
    from ...model.look import Look

WIDE = 100
"""Columns from which on the chart stands beside the table."""
WIDEST, TALL = 160, 44
"""Columns and rows from which on the details stand at the right, and kernels in the list."""
LEFT_CELLS, LEFT_SHARE = 78, 0.625
"""The table has half of the columns, or more where that is fewer than it has use for."""
AROUND_ROWS = 3
"""Of the terminal: status line, tabs, footer."""
HEAD_EDGES = 4
FRAME_ROWS = 3
"""Of a table besides its rows: its border and its headings."""
CHART_ROWS, MOST_CHART_ROWS = 7, 14
"""The least and the most rows of the history with its frame, where others can use them: a higher
one shows no more.
"""
DETAIL_ROWS, BRIEF_DETAIL_ROWS = 9, 4
"""The least rows of all that is known of a row, and of its fix and its gain alone."""
MOST_DETAIL_ROWS = 18
EVENT_ROWS = 8
LEAST_PROCESS_ROWS, PROCESS_ROWS = 6, 8
"""The least rows of the list of processes with its frame, and those that are kept for it."""


class TimePanels(Pane):
    """The rows of the clock at the left, and their history, the ranks and the GPU around them.

    The load of the GPUs is below, as wide as the terminal.
    """

    DEFAULT_CSS = """
    TimePanels #time-head { padding: 0 2; }
    TimePanels #time-body, TimePanels #time-left, TimePanels #time-right { height: 1fr; }
    TimePanels #time-left, TimePanels #time-right { width: 1fr; }
    TimePanels.narrow #time-body { layout: vertical; }
    TimePanels #time-findings { padding: 0 1; }
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._head = Lines([[(WAITING, "muted")]], id="time-head")
        self._zoomed: float | None = None  # seconds that the charts show, where somebody chose
        self._clock = LiveTable((), lit=True, id="time-rows", classes="panel")
        self._steps = LiveTable((), id="time-steps", classes="panel")
        self._detail = Lines(counts_rest=True, id="time-detail", classes="panel")
        self._beside = Lines(id="time-beside", classes="panel")
        self._code = Lines(counts_rest=True, id="time-code", classes="panel")
        self._look: Look | None = None
        self._gpu = LiveTable((), id="time-gpu", classes="panel")
        self._findings = FindingList(id="time-findings", classes="panel")
        self._ranks = LiveTable((), id="time-ranks", classes="panel")
        self._left, self._right = Vertical(id="time-left"), Vertical(id="time-right")
        self._body = Horizontal(id="time-body")
        self._layers = TimeChart(id="time-history", classes="panel")
        self._lines = Trends(id="time-steps-history", classes="panel")
        self._chart: TimeChart | Trends = self._layers
        """The history of what a step is made of; of how long it takes where no more is known."""
        self._load = LoadStrips(id="time-load", classes="panel")
        self._load.may_be_high = True
        self._load_rows = 0
        self._processes = ProcessPanel(session)
        self._events = Lines(id="time-events", classes="panel")
        self._devices: Sequence[DeviceView] = ()
        self._aside: tuple[str, Sequence[Line]] = ("", ())
        """The title and the lines of what a large terminal shows below the details of a row."""
        self._brief = False
        """Whether the details are only those that say what to do."""
        self._drawn_ranks: Sequence[TrainerView] = ()
        """The GPUs whose load is drawn; without any, the ranks whose processes' load is."""
        self._terminal = (120, 40)
        self._below: Painted | None = None
        """What stands below the rows on a narrow terminal; None: the chart, where it has room."""

    def compose(self) -> ComposeResult:
        self._clock.border_title = "Where the time goes"
        self._findings.border_title = "Findings"
        self._events.border_title = "What happened"
        yield self._head
        with self._body:
            with self._left:
                yield self._clock
                yield self._steps
                yield self._detail
                yield self._code
                yield self._gpu
                yield self._findings
            with self._right:
                yield self._layers
                yield self._lines
                yield self._ranks
                yield self._beside
        yield self._load
        yield self._processes
        yield self._events
        hidden: tuple[Widget, ...] = (
            *(self._detail, self._beside, self._gpu, self._findings, self._ranks, self._steps),
            *(self._load, self._processes, self._events, self._lines, self._code),
        )
        for panel in hidden:
            panel.display = False

    # ── what depends on the room ──

    def _bring_up_to_date(self, host: HostView, job: str | None) -> None:
        """List the processes, and what happened to a job; without one, to all of the host."""
        self._processes.bring_up_to_date(host)
        past = self.session.frozen_view.past(host.key) is not None or self.session.replay
        found = self.session.happened.on(host).of_job(job, host.wall_seconds if past else None)
        size = EVENT_ROWS, self._terminal[0] - HEAD_EDGES
        glyphs = self._events.tokens.glyphs
        self._events.show(event_lines(found, glyphs, *size, host.wall_seconds))

    def _about(self, table: LiveTable, key: str) -> tuple[str, list[Line]]:
        """Return the heading and the lines for a row of the clock or of the GPU."""
        raise NotImplementedError

    def _show_gpu(self, room: int = 0) -> None:
        """Show what the look found, with its kernels where so many rows have place for some."""
        look = self._look
        if look is None:
            self._gpu.show([])
            return
        rows = gpu_rows(look, self._gpu.tokens.glyphs, room)
        names = with_names((row.words for row in look.rows), GPU)
        self._gpu.show_columns(KERNELS if any("/" in row.key for row in rows) else names)
        self._gpu.show(rows)

    def _show_detail(self) -> None:
        """Show what is known of the row under the cursor; where there is room, more below it."""
        set_title(self._code, self._aside[0])
        self._code.show(self._aside[1])
        for panel, cells in self._detail_panels():
            if panel.display:
                heading, lines = self._about(self._clock, self._clock.cursor_key or "")
                set_title(panel, heading)
                if self._brief and panel is self._detail:
                    panel.show([styled.cut(line, cells - 4) for line in in_brief(lines) or lines])
                else:
                    panel.show(styled.hang_lines(lines, cells - 4))

    def _detail_panels(self) -> tuple[tuple[Lines, int], ...]:
        left = self._left_cells()
        return (self._detail, left), (self._beside, self._terminal[0] - left)

    # ── room ──

    def fit_to(self, width: int, height: int) -> None:
        self._terminal = (width, height)
        self._share_out()

    def _share_out(self) -> None:
        """Give each panel its place.

        The rows come first. What is left beside or below them is for the history, the ranks, the
        GPU and the findings; a tall terminal has room for the details of the row under the cursor.
        """
        if not self._chart.is_mounted:
            return  # still starting, or leaving already
        wide = self._terminal[0] >= WIDE
        self.set_class(not wide, "narrow")
        room = self._terminal[1] - AROUND_ROWS - self._head.rows
        if self._has_ledger:
            self._place(self._steps, 0)
            self._place(self._events, 0)
            needed = len(self._clock.rows) + FRAME_ROWS
            (self._share_wide if wide else self._share_narrow)(room, needed, self._lists())
        else:
            self._share_without_ledger(room, wide)
        self._show_detail()

    @property
    def _has_ledger(self) -> bool:
        return bool(self._clock.rows) and not self._clock.rows[0].key.startswith(SPLIT)

    def _share_without_ledger(self, room: int, wide: bool) -> None:
        """Give each panel its place where there is no ledger."""
        raise NotImplementedError

    def _lists(self) -> dict[Painted, int]:
        """Return how many rows each list would fill, 0 for one that is empty."""
        looked = sum("/" not in row.key for row in self._gpu.rows)
        return {
            self._gpu: looked + FRAME_ROWS if looked else 0,
            self._findings: self._findings.rows + 2 if self._findings.rows else 0,
            self._ranks: len(self._ranks.rows) + FRAME_ROWS if self._ranks.rows else 0,
        }

    def _left_cells(self) -> int:
        """Return how many columns the table has: all, unless the chart stands beside it."""
        columns = self._terminal[0]
        if columns < WIDE:
            return columns
        return max(columns // 2, min(LEFT_CELLS, int(columns * LEFT_SHARE)))

    def _share_wide(self, room: int, needed: int, lists: dict[Painted, int]) -> None:
        """Place the panels in two columns, with the load of the GPUs below both.

        The columns are as high as the list of rows, the ranks and what else they show need; on a
        large terminal the details are at the right, and a look has its kernels at the left.
        """
        large = self._terminal[0] >= WIDEST and room >= TALL
        if large and self._look is not None:  # its kernels have room too
            self._show_gpu(room)
            lists[self._gpu] = len(self._gpu.rows) + FRAME_ROWS
        findings, ranks = lists[self._findings], lists[self._ranks]
        if not large and self._spare_for_detail(room, needed, lists[self._gpu]):
            findings = 0  # the sentences above say the same: the chosen row says what to do
        traced = large and bool(lists[self._gpu])  # then the details stand at the right
        details = self._detail_rows() if traced else 0
        # without a look the lines of code of a row come before the load of the host
        about = DETAIL_ROWS if lists[self._gpu] else self._detail_rows()
        left = needed + findings + max(lists[self._gpu], about)
        if large and not traced:
            left = needed + findings + self._detail_rows() + len(self._aside[1]) + 2
        chart = min(max(left - ranks - details, CHART_ROWS + 4), MOST_CHART_ROWS)
        body = min(max(left, chart + ranks + details), room)
        lanes, least = (
            lanes_of(self._devices, self._drawn_ranks),
            max(len(self._devices), 1) + 1 + STRIP_FRAME,
        )
        if room - body < least and room - least >= max(needed + findings, CHART_ROWS):
            body = room - least
        load, processes, events = self._share_below(room - body, lanes)
        body = room - load - processes - events
        self._spread(body if load else 0)
        self._place(self._load, load)
        self._place(self._processes, processes)
        self._place(self._events, events)
        self._place(self._findings, findings)
        self._left.display = self._right.display = True
        self._right.styles.height = self._left.styles.height = "1fr"
        self._left.styles.width = self._left_cells()
        left = body - needed - findings
        self._show_gpu(left - FRAME_ROWS if large else 0)
        gpu = lists[self._gpu] if lists[self._gpu] <= left else max(left, 0)
        gpu = gpu if gpu > FRAME_ROWS + 1 else 0
        detail = left - gpu >= DETAIL_ROWS and not (large and gpu)
        self._brief = not detail and not findings and not large and left >= BRIEF_DETAIL_ROWS
        if self._brief:
            detail, gpu = True, gpu if gpu + BRIEF_DETAIL_ROWS <= left else left - BRIEF_DETAIL_ROWS
            gpu = gpu if gpu > FRAME_ROWS else 0
        self._place(self._clock, needed if detail or gpu else "1fr")
        below = bool(large and detail and self._aside[1]) and left > self._detail_rows() + 2
        self._place(self._detail, (self._detail_rows() if below else "1fr") if detail else 0)
        self._place(self._code, "1fr" if below else 0)
        self._place(self._gpu, gpu if detail else "1fr" if gpu else 0)
        self._place(self._chart, "1fr")
        self._place(self._ranks, min(ranks, body // 3 if large else max(body - CHART_ROWS, 0)))
        self._place(self._beside, details)

    def _detail_rows(self) -> int:
        """Return the rows in which the details of any row are whole: they stay when it moves."""
        cells = self._left_cells() - HEAD_EDGES
        abouts = (self._about(self._clock, row.key)[1] for row in self._clock.rows)
        longest = max((len(styled.hang_lines(lines, cells)) for lines in abouts), default=0)
        return min(max(longest + 2, DETAIL_ROWS), MOST_DETAIL_ROWS)

    def _spare_for_detail(self, room: int, needed: int, gpu: int) -> bool:
        """Return whether there is room for the details of a row once no findings are listed.

        Beside a look at the GPU, these are the lines that say what to do.
        """
        load = max(len(self._devices), 1) + 1 + STRIP_FRAME
        least = min(gpu, FRAME_ROWS + 2)
        return room - load - needed - least >= (BRIEF_DETAIL_ROWS if gpu else DETAIL_ROWS)

    def _share_below(self, room: int, lanes: int) -> tuple[int, int, int]:
        """Return the rows of the load, the processes and what happened, of ``room`` rows.

        The load has a line for each lane first, then the lists come, and then lanes that stand
        apart. What none of them can use is left over.
        """
        listed, told = len(self._processes.rows), max(self._events.rows, 1) + 2
        least, most = lanes + STRIP_FRAME, strip_rows(lanes)
        lines = min(least, room) if room >= LEAST_STRIP_ROWS else 0
        load, processes, events = share_rows(
            room,
            (
                Want(lines, most=most),
                Want(listed + FRAME_ROWS if listed else 0, PROCESS_ROWS),
                Want(told, LEAST_PROCESS_ROWS),
            ),
        )
        return self._fitted_load(load), processes, events

    def _fitted_load(self, rows: int) -> int:
        """Return how many of so many rows the load fills: none of it is blank at its top."""
        lanes = lanes_of(self._devices, self._drawn_ranks)
        return fitted_strip_rows(rows, lanes, len(self._devices))

    def _spread(self, height: int) -> None:
        """Give the columns so many rows; with 0 they have all that is left."""
        self._body.display = True
        self._body.styles.height = height or "1fr"

    def _share_narrow(self, room: int, needed: int, lists: dict[Painted, int]) -> None:
        self._show_gpu()
        for one in (self._beside, self._detail, self._code, self._processes):
            self._place(one, 0)
        below, rest = self._below, max(room - needed, 0)
        high = lists.get(below, 0) if below is not None else 0
        if below is self._chart or below is self._load:
            high = room // 2
        elif not high:
            # nobody asked for the chart: it has what the rows leave
            below, high = (self._chart, rest) if rest >= CHART_ROWS else (None, 0)
        high = max(rest, min(high, max(room // 2, CHART_ROWS))) if high else 0
        self._put_below(below, high, room)
        self._brief = not high and rest >= BRIEF_DETAIL_ROWS  # rows that no chart has room in
        self._place(self._clock, needed if self._brief else room - high)
        self._place(self._detail, "1fr" if self._brief else 0)

    def _put_below(self, below: Painted | None, high: int, room: int) -> None:
        """Place one of the panels in the last ``high`` rows, and hide the others."""
        for one in (self._gpu, self._findings):
            self._place(one, high if one is below else 0)
        self._place(self._load, high if below is self._load else 0)
        self._left.display = True
        self._right.display = below in (self._chart, self._ranks)
        self._left.styles.height = room - high if self._right.display else "1fr"
        self._left.styles.width = "1fr"
        self._right.styles.height = "1fr"
        self._spread(0)
        for panel in (self._chart, self._ranks):
            self._place(panel, "1fr" if panel is below else 0)

    def _draw_lines(self, lines: bool) -> None:
        """Let the history be one of lines, or one of layers."""
        before, self._chart = self._chart, self._lines if lines else self._layers
        if before is not self._chart:
            before.display = False
            self._below = self._chart if self._below is before else self._below

    def _place(self, panel: Widget, height: int | str) -> None:
        """Give a panel so many rows; with 0 it is hidden."""
        panel.display = height != 0
        if height != 0:
            panel.styles.height = height
        if panel is self._load and isinstance(height, int):
            self._load_rows = height
