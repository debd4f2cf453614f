"""Below the list of processes: what is known of the one under the cursor, and its course."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from ...text.units import window_text
from ..charts.load_lanes import gpu_lanes
from ..charts.load_strips import LoadStrips
from ..charts.trends import MOST_ROWS, Trends, is_seen
from ..shared.event_rows import event_lines
from ..shared.process_trends import process_trends, trainer_in
from ..shared.windows import shortest_window
from ..shell.clock_at import clock_at
from ..widgets.pane import set_title
from ..widgets.row_shares import Want, share_rows
from ..widgets.text import Lines
from . import text as words
from .training_text import memory_lines, training_lines

if TYPE_CHECKING:
    from ...store.view import HistoryOf, HostView, ProcView, TrainerView
    from ...text.styled import Line
    from ..shell.session import Session
    from .idle import Idle

WINDOWS = (60.0, 300.0)
"""Seconds of the charts: the longer one where there is so much history."""
LEAST_ROWS = 8
"""Rows that the texts need with their frame; with fewer nothing is shown."""
MOST_SPARE = 8
"""So many rows more for the histories are better than blank ones in the list."""
MOST_EVENTS, EDGES = 6, 4
"""Lines of what happened, and the cells of a frame with its padding."""
LOAD_FRAME = 4
"""Rows of the load of the GPUs besides their lanes: its frame, and its axis."""
LEAST_TREND_ROWS, AXIS_ROWS, FRAME_ROWS = 5, 2, 2
"""The histories have so many rows with their frame at least, of which an axis takes two."""
THREE_COLUMNS, TWO_COLUMNS = 150, 90
DRAWN_SECONDS = 2.0
"""The histories are drawn no more often, as those of other screens."""


class ProcessDetails(Vertical):
    """Texts side by side and, where there are more rows, histories and what happened below."""

    DEFAULT_CSS = """
    ProcessDetails { height: auto; }
    ProcessDetails #texts > * { width: 1fr; height: 1fr; }
    """

    def __init__(self, session: Session) -> None:
        super().__init__(id="details")
        self.session = session
        self._about, self._memory, self._training = (Lines(classes="panel") for _ in range(3))
        self._trends = Trends(classes="panel")
        self._events, self._load = Lines(classes="panel"), LoadStrips(classes="panel")
        self._happened: list[Line] = []
        self._lanes = 0
        self._drawn: tuple[object, ...] = ()
        self._told: list[list[Line]] = []
        self._wanted = LEAST_TREND_ROWS
        """Rows in which a line is free between any two histories, with their frame."""

    def compose(self) -> ComposeResult:
        titles = ("Process", "On the GPUs", "What it does")
        for panel, title in zip((self._about, self._memory, self._training), titles, strict=True):
            panel.border_title = title
        with Horizontal(id="texts"):
            yield self._about
            yield self._memory
            yield self._training
        self._events.border_title = "What happened"
        yield self._load
        yield self._trends
        yield self._events

    def fit_to(self, width: int, rows: int) -> int:
        """Take what can be used of ``rows``; return how many these are, 0 to be hidden."""
        wide, texts = width >= THREE_COLUMNS, self._texts_rows()
        lines = len(self._trends.labels) + AXIS_ROWS + FRAME_ROWS
        lines = lines if lines <= rows - texts else LEAST_TREND_ROWS
        load = self._lanes + LOAD_FRAME if self._lanes and wide else 0
        happened = min(len(self._happened), MOST_EVENTS) + FRAME_ROWS if wide else 0
        given = share_rows(
            rows,
            (
                Want(texts, LEAST_ROWS),
                Want(self._wanted, lines, self._wanted + MOST_SPARE),
                Want(happened),
                Want(load),
            ),
        )
        given = given if given[0] else [0] * len(given)
        self._memory.display, self._training.display = width >= TWO_COLUMNS, wide
        texts_row = self.query_one("#texts")
        panels = (texts_row, self._trends, self._events, self._load)
        for panel, high in zip(panels, given, strict=True):
            panel.display, panel.styles.height = high > 0, high
        self.display = given[0] > 0
        self.styles.height = sum(given)
        return sum(given)

    def _texts_rows(self) -> int:
        return max(LEAST_ROWS - 2, *map(len, self._told)) + 2

    def show(self, host: HostView, process: ProcView, idle: Idle, width: int) -> None:
        """Write the texts of one process."""
        columns = 1 + (width >= TWO_COLUMNS) + (width >= THREE_COLUMNS)
        cells = max(30, width // columns - 5)
        glyphs = self._about.tokens.glyphs
        trainer = trainer_in(host, process)
        self._lanes = len(host.devices) if len(host.devices) > 1 else 0
        self._show_events(host, trainer, width)
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

    def _show_events(self, host: HostView, trainer: TrainerView | None, width: int) -> None:
        """Write what happened to the job of the process, or else to the whole host."""
        job = host.job_of(trainer)
        session = self.session
        past = session.frozen_view.past(host.key) is not None or session.replay
        until = host.wall_seconds if past else None
        found = session.happened.on(host).of_job(job.key if job is not None else None, until)
        set_title(self._events, "What happened to its job" if job is not None else "What happened")
        glyphs, now = self._events.tokens.glyphs, host.wall_seconds
        self._happened = event_lines(found, glyphs, MOST_EVENTS, max(width - EDGES, 30), now)
        self._events.show(self._happened)

    def draw(self, host: HostView, process: ProcView, history: HistoryOf) -> None:
        """Draw the histories, at most when time has moved on by a column or so."""
        moment = int((host.sampled_seconds or 0.0) / DRAWN_SECONDS)
        clock = clock_at(self.session, host)
        key = (process.key, moment, clock is None, self.size, self.app.theme)
        if not self.display or key == self._drawn:
            return
        self._drawn = key
        known = history(process.id, "cpu_percent", WINDOWS[1]).seconds
        seconds = known[-1] - known[0] if known else WINDOWS[0]
        window = shortest_window(seconds, WINDOWS[1])
        if self._load.display:
            lanes = gpu_lanes(self.session.history, host, host.devices, window, 1)
            set_title(self._load, f"GPU utilisation, {window_text(window)}")
            self._load.show(lanes, window, host.sampled_seconds, clock)
        trends = process_trends(host, process, window, history)
        rows = [MOST_ROWS if is_seen(one) else 1 for one in trends]
        self._wanted = sum(rows) + len(rows) - 1 + AXIS_ROWS + FRAME_ROWS
        set_title(self._trends, f"Last {window_text(window)}")
        self._trends.show(trends, window, host.sampled_seconds, clock)
