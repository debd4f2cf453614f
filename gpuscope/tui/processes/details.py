"""Below the list of processes: what is known of the one under the cursor, and its course."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from ...text.units import window_text
from ..charts.axes import fitted_seconds
from ..charts.line import LineChart, one_if_alike
from ..shell.clock_at import clock_at
from ..widgets.pane import set_title
from ..widgets.text import Lines
from . import text as words
from .process_series import charts_of, least_of, series_of, top_of
from .training_text import memory_lines, training_lines

if TYPE_CHECKING:
    from ...store.view import HistoryOf, HostView, ProcView
    from ...text.styled import Line
    from ..shell.session import Session
    from .idle import Idle

WINDOWS = (60.0, 300.0)
"""Seconds of the charts: the longer one where there is so much history."""
LEAST_ROWS = 8
"""Rows that the texts need with their frame; with fewer nothing is shown."""
CHART_ROWS, MOST_CHART_ROWS, USUAL_CHART_ROWS = 9, 24, 12
"""A row of charts has so many lines at least and at most; another begins where each has the usual.
"""
ROWS = 3
THREE_COLUMNS, TWO_COLUMNS = 150, 90
DRAWN_SECONDS = 2.0
"""The charts are drawn no more often, as those of other screens: there are up to nine."""


class ProcessDetails(Vertical):
    """Texts side by side and, where there are more rows, charts below them."""

    DEFAULT_CSS = """
    ProcessDetails { height: auto; }
    ProcessDetails #texts > * { width: 1fr; height: 1fr; }
    ProcessDetails .courses { height: 1fr; }
    ProcessDetails .courses > * { width: 1fr; height: 1fr; }
    """

    def __init__(self, session: Session) -> None:
        super().__init__(id="details")
        self.session = session
        self._about, self._memory, self._training = (Lines(classes="panel") for _ in range(3))
        self._rows = [Horizontal(classes="courses") for _ in range(ROWS)]
        self._charts = [[LineChart(classes="panel") for _ in range(3)] for _ in self._rows]
        self._drawn: tuple[object, ...] = ()
        self._told: list[list[Line]] = []
        self._trains = self._uses = False

    def compose(self) -> ComposeResult:
        titles = ("Process", "On the GPUs", "What it does")
        for panel, title in zip((self._about, self._memory, self._training), titles, strict=True):
            panel.border_title = title
        with Horizontal(id="texts"):
            yield self._about
            yield self._memory
            yield self._training
        for row, charts in zip(self._rows, self._charts, strict=True):
            with row:
                yield from charts

    def fit_to(self, width: int, rows: int) -> int:
        """Take what can be used of ``rows``; return how many these are, 0 to be hidden."""
        texts = min(self._texts_rows(), rows) if rows >= LEAST_ROWS else 0
        left = rows - texts if texts else 0
        drawn = min(left // CHART_ROWS, 2)
        drawn = ROWS if left >= ROWS * USUAL_CHART_ROWS and width >= THREE_COLUMNS else drawn
        drawn = min(drawn, ROWS if self._trains and self._uses else 2 if self._uses else 1)
        charts = min(left, drawn * MOST_CHART_ROWS) if drawn else 0
        self.display = texts > 0
        self._memory.display = width >= TWO_COLUMNS
        self._training.display = width >= THREE_COLUMNS
        self.query_one("#texts").styles.height = texts
        for at, row in enumerate(self._rows):
            row.display = at < drawn
        for row_of_charts in self._charts:
            for at, chart in enumerate(row_of_charts):
                chart.display = width >= (0, TWO_COLUMNS, THREE_COLUMNS)[at]
        if self.display:
            self.styles.height = texts + charts
        return texts + charts

    def _texts_rows(self) -> int:
        return max(LEAST_ROWS - 2, *map(len, self._told)) + 2

    def show(self, host: HostView, process: ProcView, idle: Idle, width: int) -> None:
        """Write the texts of one process."""
        columns = 1 + (width >= TWO_COLUMNS) + (width >= THREE_COLUMNS)
        cells = max(30, width // columns - 5)
        glyphs = self._about.tokens.glyphs
        trainer = words.trainer_in(host, process)
        self._trains, self._uses = trainer is not None, bool(words.living_uses(process))
        about = words.about_lines(host, process, idle if trainer is None else None, cells)
        uses = words.use_lines(host, process, cells) + memory_lines(host, process, cells, glyphs)
        does = training_lines(host, process, idle, cells, glyphs)
        if columns < 3:
            about = about + does if columns == 2 else does + about + uses
        set_title(self._about, f"Process {process.definition.pid}")
        self._told = [about, uses, does][:columns]
        for panel, lines in zip(
            (self._about, self._memory, self._training), (about, uses, does), strict=True
        ):
            panel.show(lines)

    def draw(self, host: HostView, process: ProcView, history: HistoryOf) -> None:
        """Draw the charts that have room, at most when time has moved on by a column or so."""
        moment = int((host.sampled_seconds or 0.0) / DRAWN_SECONDS)
        clock = clock_at(self.session, host)
        key = (process.key, moment, clock is None, self.size, self.app.theme)
        if not self.display or not self._rows[0].display or key == self._drawn:
            return
        self._drawn = key
        names = charts_of(host, process)
        known = history(process.id, "cpu_percent", WINDOWS[1]).seconds
        seconds = known[-1] - known[0] if known else WINDOWS[0]
        window = WINDOWS[1] if seconds > WINDOWS[0] * 1.5 else fitted_seconds(seconds, WINDOWS[0])
        for number, (row, charts) in enumerate(zip(self._rows, self._charts, strict=True)):
            for chart, what in zip(charts, names[3 * number :], strict=False):
                if not (row.display and chart.display):
                    continue
                set_title(chart, f"{what}, {window_text(window)}")
                lines = list(series_of(host, process, what, window, history))
                found = one_if_alike(lines, f"{len(lines)} GPUs alike")
                now, least, top = host.sampled_seconds, least_of(what), top_of(what)
                chart.show(found, window, least, top, now=now, clock=clock)
