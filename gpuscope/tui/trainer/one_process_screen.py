"""This screen shows everything about one process.

That is who it is, what it holds on which GPU and how it calls that, and its history. Of one that
trains it has what the page of its job has: what is found, what to do, where it is, and its charts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll

from ...model.stalls import find_stall
from ...model.step_parts import step_parts
from ...store.view import by_key
from ...text import styled
from ...text.styled import Line
from ...text.units import window_text
from ..charts.line import LineChart
from ..charts.trends import MOST_ROWS, Trends, is_seen
from ..doctor.cure import steps_lines
from ..processes import text as words
from ..processes.idle import Idleness
from ..processes.process_series import charts_of, least_of, series_of, top_of
from ..processes.training_text import memory_lines, training_lines
from ..shared.host_trends import ROOMY_TREND_ROWS, host_readings
from ..shared.next_step import case_of_job, finding_line
from ..shared.process_trends import living_uses, process_trends, trainer_in
from ..shared.trainer_actions import ask_in
from ..shared.windows import shortest_window
from ..shell.clock_at import clock_at
from ..shell.keymap import bindings_of
from ..widgets.charted_screen import CHART_ROWS, WINDOWS, ChartedScreen
from ..widgets.pane import set_title
from ..widgets.program import program
from ..widgets.question_dialog import ask
from ..widgets.text import Lines
from .hung_stack import hung_lines, stack_title
from .job_charts import JobCharts
from .job_load import title_trends
from .job_text import telling_chart

if TYPE_CHECKING:
    from ...store.view import HostView, ProcView, TrainerView
    from ..background.finding_history import Case
    from ..shell.session import Session

ASK_SECONDS = 5.0
MOST_CHARTS = 9
WIDEST = 160
"""From so many columns on there are two charts side by side."""
LEAST_CHART_ROWS, BELOW_ROWS, MOST_BELOW = 6, 11, 3
"""A chart below the texts of a narrow screen, and of the widest, has so many rows at least; on the
widest there are so many at most.
"""
AXIS_ROWS, FRAME_ROWS = 2, 2
LEAST_STACK_ROWS, FEW_STACK_ROWS, MOST_STACK_ROWS = 6, 3, 24
"""Rows of the stack that the histories leave free at least, and on a narrow screen, and its most.
"""
MOST_ADVICE, FEW_ADVICE_ROWS = 0.5, 6
"""The share of the rows that what to do may take beside the texts, and its rows above them."""


class OneProcessScreen(ChartedScreen):
    """The screen of one process, with its charts beside the texts where there is room."""

    DEFAULT_CSS = """
    OneProcessScreen.-widest #right { width: 2fr; layout: grid; grid-size: 2; grid-rows: 1fr; }
    OneProcessScreen #left > .chart { height: 1fr; min-height: 11; }
    OneProcessScreen.-widest .chart { max-height: 20; }
    OneProcessScreen.-trains #right { layout: vertical; }
    OneProcessScreen JobCharts > .panel { height: 1fr; }
    OneProcessScreen #stack { height: 1fr; min-height: 4; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("OneProcessScreen")]

    def __init__(self, session: Session, key: str) -> None:
        super().__init__(session, key, histories=MOST_CHARTS, charts=MOST_CHARTS - 1)
        self._idleness = Idleness()
        self._does, self._about, self._uses, self._order = (
            Lines(classes="panel") for _ in range(4)
        )
        self._below = [LineChart(classes="panel chart") for _ in range(MOST_BELOW)]
        self._order_said: list[Line] = [[("asking …", "muted")]]
        self._advice, self._trends = Lines(classes="panel"), Trends(classes="panel")
        self._stack = Lines(classes="panel", id="stack")
        self._job = JobCharts(session)
        """The charts of the job of a process that trains, beside the texts."""
        self._stack_rows = LEAST_STACK_ROWS

    def compose(self) -> ComposeResult:
        panels = (
            (self._does, "What it does"),
            (self._about, "Process"),
            (self._uses, "On the GPUs"),
            (self._order, "CUDA device numbers"),
        )
        for panel, title in panels:
            panel.border_title = title
        yield self.head
        with Horizontal(id="columns"):
            with VerticalScroll(id="left", can_focus=False):
                for panel, _ in panels:
                    yield panel
                for chart in self._below:
                    chart.display = False
                    yield chart
                self._trends.display = self._stack.display = False
                yield self._trends
                yield self._stack
            with Vertical(id="right"):
                self._advice.border_title = "Findings: what to do"
                self._advice.display = self._job.display = False
                yield self._advice
                yield self._job
                yield from self._charts
        yield self.foot

    # that of the base is called as well: Textual calls each class's own
    def on_mount(self) -> None:
        self.begin(self._ask_order())

    def _find_process(self) -> tuple[HostView | None, ProcView | None]:
        host = self.session.host
        return host, by_key(host.processes, self._key) if host is not None else None

    def _show(self) -> None:
        host, process = self._find_process()
        if host is None or process is None:
            self._missing("Process")
            return
        self._present(words.head(host, process))
        self.set_class(self.terminal[0] >= WIDEST, "-widest")
        cells = max(30, self._left_cells - 5)
        history = self.session.history
        devices = {
            d.id: self._idleness.of_device(d, history) for d in host.devices if d.gone is None
        }
        idle = self._idleness.of_process(
            process, living_uses(process), devices, history, host.wall_seconds
        )
        glyphs = self._does.tokens.glyphs
        trainer = trainer_in(host, process)
        trains = trainer is not None
        case = self._case_of(host, trainer)
        line = finding_line(case, glyphs)
        does = styled.hang(line[:1], line[1:], cells) if line else []
        if case is not None and not self.wide:  # else it has a panel of its own
            does += self._advice_lines(host, case, cells, FEW_ADVICE_ROWS, True)
        does += training_lines(host, process, idle, cells, glyphs)
        about = words.about_lines(host, process, None if trains else idle, cells, True)
        # a narrow screen has no rows to spare for another frame
        self._does.show(does if self.wide else [])
        self._does.display = self.wide and bool(does)
        self._about.show(about if self.wide else does + about)
        memory = memory_lines(host, process, cells, glyphs)
        self._uses.show(words.use_lines(host, process, cells) + memory)
        self._order.show(styled.hang_lines(self._order_said, cells))
        self._uses.display = bool(host.devices)
        # what the probe says is in the line of each GPU already
        self._order.display = self._uses.display and not words.cuda_names(host, process)
        self._show_job(host, trainer, case)
        self._show_stack(trainer)

    @property
    def _left_cells(self) -> int:
        """The columns of the texts with their frame."""
        width = self.terminal[0]
        return width // 3 if width >= WIDEST else width // 2 if self.wide else width

    def _case_of(self, host: HostView, trainer: TrainerView | None) -> Case | None:
        """Return the gravest finding about the job of a trainer, None where all is well."""
        job = host.job_of(trainer)
        return case_of_job(host, job, self.session.doctor.cases) if job is not None else None

    def _advice_lines(
        self, host: HostView, case: Case, cells: int, most: int, brief: bool = False
    ) -> list[Line]:
        table = self.session.doctor.table
        row = table.get(case.finding.pitfall) if table is not None and not brief else None
        lines = list(steps_lines(case.finding, row, bool(host.badge), cells, brief))
        return styled.first_rows(lines, most, cells)

    def _show_job(self, host: HostView, trainer: TrainerView | None, case: Case | None) -> None:
        """Show what to do about the job of a trainer, and place its charts.

        Both hide without a trainer, and where nothing stands beside the texts.
        """
        job = host.job_of(trainer) if self.wide else None
        trains = trainer is not None and job is not None
        self.set_class(trains, "-trains")
        self._job.display = self._trends.display = trains
        self._advice.display = trains and case is not None
        if trainer is None or job is None:
            return
        height, cells = self.terminal[1] - 2, self.terminal[0] - self._left_cells - 4
        advice: list[Line] = []
        if case is not None:
            most = int(height * MOST_ADVICE) - FRAME_ROWS
            advice = self._advice_lines(host, case, cells, most)
            self._advice.show(advice)
        known = ["stack"] if self.session.replay is None else []
        known += ["loss"] if trainer.number("loss") is not None else []
        parts = step_parts([trainer], host, self.session.history)
        known += ["step"] if parts is not None else []
        moving = self._job.memory_moves(trainer, host.sampled_seconds or 0.0)
        known += ["memory"] if moving else []
        left = height - (len(advice) + FRAME_ROWS if advice else 0)
        hangs = find_stall(job.trainers) is not None
        telling = telling_chart(host, job, self.session.history)
        self._job.fit_to(cells + 4, left, hangs, known, telling)

    def _show_stack(self, trainer: TrainerView | None) -> None:
        """Show where a trainer is, below its texts: it can be asked unless this is a recording."""
        panel, left = self._stack, self._left_rows()
        asked = trainer is not None and self.session.replay is None
        shown = self._job.display and "stack" in self._job.shown
        fits = self.wide or left >= FEW_STACK_ROWS + FRAME_ROWS
        panel.display = asked and fits and not shown
        if trainer is None or not panel.display:
            return
        if not self.wide:
            both = left - LEAST_CHART_ROWS
            panel.styles.height = both if both >= LEAST_STACK_ROWS + FRAME_ROWS else left
        else:
            panel.styles.height = "1fr"
        set_title(panel, f"{stack_title(trainer)}, now")
        if panel.size.height:
            most = MOST_STACK_ROWS if self.wide else panel.size.height
            lines = hung_lines(self.session, trainer, most, panel.size.width)
            if len(lines) > self._stack_rows:  # it grows, and does not go up and down by every look
                self._stack_rows = len(lines)
                self.call_after_refresh(self._draw)
            panel.show(lines[: panel.size.height])

    def _draw_job(self, host: HostView, process: ProcView, trainer: TrainerView) -> None:
        """Draw the charts of the job of a trainer, and the histories of its process in strips."""
        for chart in (*self._charts, *self._below):
            chart.display = False
        self._job.draw(host, trainer)
        if (job := host.job_of(trainer)) is not None:
            self._job.show_texts(host, job, trainer)
        window = self._job.seconds
        trends = process_trends(host, process, window, self.session.history)
        left = self._left_rows() - AXIS_ROWS - FRAME_ROWS
        least = LEAST_STACK_ROWS + FRAME_ROWS if self._stack.display else 0
        whole = self._stack_rows + FRAME_ROWS if self._stack.display else 0
        if left - whole >= ROOMY_TREND_ROWS * len(trends):
            trends += host_readings(self.session, host, window)
        room = left - least
        if least:  # the first ones say most, and the stack more than the others
            trends = trends[: max(room, 1)]
        wanted = sum(MOST_ROWS if is_seen(one) else 1 for one in trends) + len(trends) - 1
        rows = max(min(wanted, room), len(trends), left - whole)
        self._trends.styles.height = rows + AXIS_ROWS + FRAME_ROWS
        title_trends(self._trends, self.session, host, trainer, window)
        self._trends.show(trends, window, host.sampled_seconds, clock_at(self.session, host))

    def _left_rows(self) -> int:
        """Return the rows that the stack and the charts can have below the texts."""
        panels = (self._does, self._about, self._uses, self._order)
        return self.terminal[1] - 2 - sum(one.rows + 2 for one in panels if one.display)

    async def _ask_order(self) -> None:
        from ...store.pending_requests import SourceError

        host, process = self._find_process()
        if host is None or process is None:
            return
        value: Mapping[str, Any] = {}
        try:
            if not words.cuda_names(host, process):
                args = {"pid": process.definition.pid, "start": process.definition.start}
                value = await ask(
                    self.session,
                    "environment",
                    args,
                    ASK_SECONDS,
                    "a recording has no environment",
                )
        except SourceError as error:
            self._order_said = [[("unknown: ", "warn"), (error.what, "text")]]
        else:
            variables = value.get("environment")
            environment = (
                {str(k): str(v) for k, v in variables.items()}
                if isinstance(variables, dict)
                else {}
            )
            self._order_said = words.order_lines(host, process, environment)
        self._update()

    def _draw(self) -> None:
        host, process = self._find_process()
        if not self.is_attached or host is None or process is None:
            return
        trainer = trainer_in(host, process)
        if trainer is not None and self.wide:
            self._draw_job(host, process, trainer)
            return
        window = WINDOWS[self._window]
        if not self._window:  # nobody has chosen a longer one
            seen = self.session.history(process.id, "cpu_percent", window).seconds
            window = shortest_window(seen[-1] - seen[0] if seen else window, window)
        names = charts_of(host, process)
        self._histories = len(names)
        for chart, number in self._visible(self.terminal[1] - 2):
            what = names[number]
            set_title(chart, f"{what}, {window_text(window)}")
            found = list(series_of(host, process, what, window, self.session.history))
            clock = clock_at(self.session, host)
            now, least, top = host.sampled_seconds, least_of(what), top_of(what, found)
            chart.show(found, window, least, top, now=now, clock=clock)

    def _visible(self, rows: int) -> Sequence[tuple[LineChart, int]]:
        """Return the charts with the numbers of their histories, those below the texts last."""
        if not self.wide:
            stack = self._stack.styles.height if self._stack.display else None
            left = self._left_rows() - int(stack.value if stack is not None else 0)
            if stack is not None and left < LEAST_CHART_ROWS:  # the stack has the page to its end
                for chart in self._charts:
                    chart.display = False
                return ()
            fills = left >= LEAST_CHART_ROWS
            self._charts[0].styles.height = left if fills else CHART_ROWS
        across = 2 if self.terminal[0] >= WIDEST else 1
        below = self._below[: self._count_below()] if across > 1 else []
        for chart in self._below:
            chart.display = chart in below
        found = super()._visible(rows * across)[: self._histories - len(below)]
        if len(found) % across and len(found) > 1:
            found = found[:-1]
        for chart in self._charts[len(found) :]:
            chart.display = False
        first = self._chart + len(found)
        numbers = ((first + at) % self._histories for at in range(len(below)))
        return [*found, *zip(below, numbers, strict=False)]

    def _count_below(self) -> int:
        """Return how many charts stand below the texts: what is left fills rows of two."""
        left, count = self._left_rows(), self._histories
        fits = (n for n in range(MOST_BELOW, 0, -1) if n * BELOW_ROWS <= left)
        return next((n for n in fits if n < count and (count - n) % 2 == 0), 0)

    # ── keys ──

    def action_zoom(self, by: int) -> None:
        """Show a longer or shorter time on the charts."""
        if not self._job.display:
            super().action_zoom(by)
            return
        self._job.zoom(by)
        self._draw()

    def action_chart(self, by: int) -> None:
        """Show the next history."""
        if not self._job.display:
            super().action_chart(by)
            return
        self._job.turn()
        self.moved()

    def action_act(self, name: str) -> None:
        """Ask the trainer in this process."""
        host, process = self._find_process()
        if host is not None and process is not None:
            if not self.refused(self.session, f"act('{name}')"):
                ask_in(program(self.app), name, host, process)
            self._show()

    def action_signal(self) -> None:
        """Ask which signal to send."""
        _, process = self._find_process()
        if process is not None and not self.refused(self.session, "signal"):
            program(self.app).open("signal", process)
            self._show()

    def action_environment(self) -> None:
        """What it was started with, as far as an allow-list goes."""
        _, process = self._find_process()
        if process is not None and not self.refused(self.session, "environment"):
            program(self.app).open("environment", process)
