"""The panels of the tab about time, and which of them has how much room on this terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from ...text import styled
from ...text.styled import Line
from ..charts.stacked import TimeChart
from ..charts.strips import Painted
from ..overview.finding_list import FindingList
from ..shell.session import Session
from ..widgets.pane import WAITING, Pane, set_title
from ..widgets.table import LiveTable
from ..widgets.text import Lines
from .rows import GPU, KERNELS, SPLIT, gpu_rows, with_names

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
CHART_ROWS = 7
DETAIL_ROWS = 9


class TimePanels(Pane):
    """The rows of the clock at the left, and their history, the ranks and the GPU around them."""

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
        self._clock = LiveTable((), lit=True, id="time-rows", classes="panel")
        self._detail = Lines(id="time-detail", classes="panel")
        self._beside = Lines(id="time-beside", classes="panel")
        self._look: Look | None = None
        self._gpu = LiveTable((), id="time-gpu", classes="panel")
        self._findings = FindingList(id="time-findings", classes="panel")
        self._ranks = LiveTable((), id="time-ranks", classes="panel")
        self._right = Vertical(id="time-right")
        self._chart = TimeChart(id="time-history", classes="panel")
        self._chart.legend_elsewhere = "as in the rows"
        self._terminal = (120, 40)
        self._below: Painted | None = None
        """What stands below the rows on a narrow terminal; None: the chart, where it has room."""

    def compose(self) -> ComposeResult:
        self._clock.border_title = "Where the time goes"
        self._findings.border_title = "Findings"
        yield self._head
        with Horizontal(id="time-body"):
            with Vertical(id="time-left"):
                yield self._clock
                yield self._detail
                yield self._gpu
                yield self._findings
            with self._right:
                yield self._chart
                yield self._ranks
                yield self._beside
        for panel in (self._detail, self._beside, self._gpu, self._findings, self._ranks):
            panel.display = False

    # ── what depends on the room ──

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
        """Show what is known of the row under the cursor."""
        left = self._left_cells()
        for panel, cells in ((self._detail, left), (self._beside, self._terminal[0] - left)):
            if panel.display:
                heading, lines = self._about(self._clock, self._clock.cursor_key or "")
                set_title(panel, heading)
                panel.show(styled.hang_lines(lines, cells - 4))

    # ── room ──

    def fit_to(self, width: int, height: int) -> None:
        self._terminal = (width, height)
        self._share_out()

    def _share_out(self) -> None:
        """Give each panel its place.

        The rows come first. What is left beside or below them is for the history, the ranks, the
        GPU and the findings; a tall terminal has room for the details of the row under the cursor.
        """
        if not self._right.is_mounted:
            return  # still starting, or leaving already
        wide = self._terminal[0] >= WIDE
        self.set_class(not wide, "narrow")
        room = self._terminal[1] - AROUND_ROWS - self._head.rows
        needed = len(self._clock.rows) + FRAME_ROWS
        known = bool(self._clock.rows) and not self._clock.rows[0].key.startswith(SPLIT)
        looked = sum("/" not in row.key for row in self._gpu.rows)
        lists: dict[Painted, int] = {
            self._gpu: looked + FRAME_ROWS if looked else 0,
            self._findings: self._findings.rows + 2 if self._findings.rows else 0,
            self._ranks: len(self._ranks.rows) + FRAME_ROWS if self._ranks.rows else 0,
        }
        if wide:
            self._share_wide(room, needed, known, lists)
        else:
            self._share_narrow(room, needed, known, lists)
        self._show_detail()

    def _left_cells(self) -> int:
        """Return how many columns the table has where the chart stands beside it."""
        columns = self._terminal[0]
        return max(columns // 2, min(LEFT_CELLS, int(columns * LEFT_SHARE)))

    def _share_wide(self, room: int, needed: int, known: bool, lists: dict[Painted, int]) -> None:
        if self._look is not None and self._terminal[0] >= WIDEST and room >= TALL:
            self._share_widest(room, needed, lists)
            return
        self._show_gpu()
        self._place(self._beside, 0)
        left = room - needed - lists[self._findings]
        gpu = lists[self._gpu] if lists[self._gpu] <= left else max(left, 0)
        gpu = gpu if gpu > FRAME_ROWS + 1 else 0
        detail = known and left - gpu >= DETAIL_ROWS
        filled = detail or gpu
        self._place(self._clock, needed if filled and known else "1fr")
        self._place(self._detail, "1fr" if detail else 0)
        self._place(self._gpu, gpu if detail else "1fr" if gpu else 0)
        self._place(self._findings, lists[self._findings])
        self._halve(known)
        self._place(self._chart, "1fr")
        self._place(self._ranks, min(lists[self._ranks], max(room - CHART_ROWS, 0)))

    def _share_widest(self, room: int, needed: int, lists: dict[Painted, int]) -> None:
        """Give a large terminal the kernels of a look at the left, and the details at the right.

        The chart needs no more than a part of the height.
        """
        gpu = room - needed - lists[self._findings]
        self._show_gpu(gpu - FRAME_ROWS)
        self._place(self._clock, needed)
        self._place(self._detail, 0)
        self._place(self._gpu, "1fr")
        self._place(self._findings, lists[self._findings])
        self._halve(True)
        ranks = min(lists[self._ranks], room // 3)
        self._place(self._chart, "1fr")
        self._place(self._ranks, ranks)
        self._place(self._beside, max(DETAIL_ROWS, min(room // 3, room - ranks - CHART_ROWS)))

    def _halve(self, known: bool) -> None:
        """Stand the chart beside the rows, where there is something to draw."""
        self._right.display = known
        self._right.styles.height = "1fr"
        left_half = self.query_one("#time-left")
        left_half.styles.height = "1fr"
        left_half.styles.width = self._left_cells() if known else "1fr"

    def _share_narrow(self, room: int, needed: int, known: bool, lists: dict[Painted, int]) -> None:
        self._show_gpu()
        self._place(self._beside, 0)
        below, rest = self._below, max(room - needed, 0)
        high = lists.get(below, 0) if below is not None else 0
        if below is self._chart:
            high = room // 2
        elif not high:
            # nobody asked for the chart: it has what the rows leave
            below, high = (self._chart, rest) if rest >= CHART_ROWS else (None, 0)
        high = max(rest, min(high, max(room // 2, CHART_ROWS))) if high else 0
        self._place(self._clock, room - high if known else "1fr")
        self._place(self._detail, 0)
        for one in (self._gpu, self._findings):
            self._place(one, high if one is below else 0)
        self._right.display = known and below in (self._chart, self._ranks)
        left = self.query_one("#time-left")
        left.styles.height = room - high if self._right.display else "1fr"
        left.styles.width = "1fr"
        self._right.styles.height = "1fr"
        for panel in (self._chart, self._ranks):
            self._place(panel, "1fr" if panel is below else 0)

    def _place(self, panel: Widget, height: int | str) -> None:
        """Give a panel so many rows; with 0 it is hidden."""
        panel.display = height != 0
        if height != 0:
            panel.styles.height = height
