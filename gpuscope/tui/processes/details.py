"""Below the list of processes: what is known of the one under the cursor, and its course."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from ...text.units import window_text
from ..charts.axes import fitted_seconds
from ..charts.load_lanes import gpu_lanes
from ..charts.load_strips import LoadStrips
from ..charts.trends import MOST_ROWS, Trends, moves
from ..shared.event_rows import event_lines
from ..shell.clock_at import clock_at
from ..widgets.pane import set_title
from ..widgets.text import Lines
from . import text as words
from .process_trends import process_trends
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
    ProcessDetails #courses { height: 1fr; }
    ProcessDetails #courses > * { height: 1fr; }
    ProcessDetails #courses > Trends { width: 2fr; }
    ProcessDetails #courses > Lines { width: 1fr; }
    """

    def __init__(self, session: Session) -> None:
        super().__init__(id="details")
        self.session = session
        self._about, self._memory, self._training = (Lines(classes="panel") for _ in range(3))
        self._courses, self._trends = Horizontal(id="courses"), Trends(classes="panel")
        self._events, self._load = Lines(classes="panel"), LoadStrips(classes="panel")
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
        with self._courses:
            yield self._trends
            yield self._events

    def fit_to(self, width: int, rows: int) -> int:
        """Take what can be used of ``rows``; return how many these are, 0 to be hidden."""
        texts = min(self._texts_rows(), rows) if rows >= LEAST_ROWS else 0
        left = rows - texts if texts else 0
        drawn = min(left, self._wanted) if left >= LEAST_TREND_ROWS else 0
        self.display = texts > 0
        self._memory.display = width >= TWO_COLUMNS
        self._training.display = width >= THREE_COLUMNS
        self.query_one("#texts").styles.height = texts
        self._courses.display = drawn > 0
        # the list needs no more rows than it has: the load of all GPUs has them
        load = self._lanes + LOAD_FRAME if self._lanes and width >= THREE_COLUMNS else 0
        load = load if load <= left - drawn else 0
        self._load.display = load > 0
        self._load.styles.height = load
        drawn += load
        if drawn and left - drawn <= MOST_SPARE:
            drawn = left
        self._events.display = width >= THREE_COLUMNS
        if self.display:
            self.styles.height = texts + drawn
        return texts + drawn

    def _texts_rows(self) -> int:
        return max(LEAST_ROWS - 2, *map(len, self._told)) + 2

    def show(self, host: HostView, process: ProcView, idle: Idle, width: int) -> None:
        """Write the texts of one process."""
        columns = 1 + (width >= TWO_COLUMNS) + (width >= THREE_COLUMNS)
        cells = max(30, width // columns - 5)
        glyphs = self._about.tokens.glyphs
        trainer = words.trainer_in(host, process)
        self._lanes = len(host.devices) if len(host.devices) > 1 else 0
        self._show_events(host, trainer)
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

    def _show_events(self, host: HostView, trainer: TrainerView | None) -> None:
        """Write what happened to the job of the process, or else to the whole host."""
        if not self._events.display:
            return
        job = host.job_of(trainer)
        session = self.session
        past = session.frozen_view.past(host.key) is not None or session.replay
        until = host.wall_seconds if past else None
        found = session.happened.on(host).of_job(job.key if job is not None else None, until)
        set_title(self._events, "What happened to its job" if job is not None else "What happened")
        height, width = self._events.size.height, self._events.size.width
        self._events.show(event_lines(found, self._events.tokens.glyphs, height, width))

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
        window = WINDOWS[1] if seconds > WINDOWS[0] * 1.5 else fitted_seconds(seconds, WINDOWS[0])
        if self._load.display:
            lanes = gpu_lanes(self.session.history, host, host.devices, window, 1)
            set_title(self._load, f"Utilisation by GPU, mean at right, {window_text(window)}")
            self._load.show(lanes, window, host.sampled_seconds, clock)
        trends = process_trends(host, process, window, history)
        rows = [MOST_ROWS if moves(one.history) else 1 for one in trends]
        self._wanted = sum(rows) + len(rows) - 1 + AXIS_ROWS + FRAME_ROWS
        set_title(self._trends, f"Over {window_text(window)}")
        self._trends.show(trends, window, host.sampled_seconds, clock)
