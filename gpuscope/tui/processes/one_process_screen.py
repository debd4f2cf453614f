"""This screen shows everything about one process.

That is who it is, what it holds on which GPU and how it calls that, and its history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll

from ...store.view import by_key
from ...text import styled
from ...text.styled import Line
from ...text.units import window_text
from ..charts.axes import fitted_seconds
from ..charts.line import LineChart
from ..shared.process_trends import living_uses, trainer_in
from ..shell.clock_at import clock_at
from ..shell.keymap import bindings_of
from ..widgets.charted_screen import CHART_ROWS, WINDOWS, ChartedScreen
from ..widgets.pane import set_title
from ..widgets.program import program
from ..widgets.question_dialog import ask
from ..widgets.text import Lines
from . import text as words
from .idle import Idleness
from .process_series import charts_of, least_of, series_of, top_of
from .training_text import memory_lines, training_lines

if TYPE_CHECKING:
    from ...store.view import HostView, ProcView
    from ..shell.session import Session

ASK_SECONDS = 5.0
MOST_CHARTS = 9
WIDEST = 160
"""From so many columns on there are two charts side by side."""
LEAST_CHART_ROWS, BELOW_ROWS, MOST_BELOW = 6, 11, 3
"""A chart below the texts of a narrow screen, and of the widest, has so many rows at least; on the
widest there are so many at most.
"""


class OneProcessScreen(ChartedScreen):
    """The screen of one process, with its charts beside the texts where there is room."""

    DEFAULT_CSS = """
    OneProcessScreen.-widest #right { width: 2fr; layout: grid; grid-size: 2; grid-rows: 1fr; }
    OneProcessScreen #left > .chart { height: 1fr; min-height: 11; }
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
            with Vertical(id="right"):
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
        self._present(words.head(process))
        width = self.terminal[0]
        widest = width >= WIDEST
        self.set_class(widest, "-widest")
        cells = max(30, (width // 3 if widest else width // 2 if self.wide else width) - 5)
        history = self.session.history
        devices = {
            d.id: self._idleness.of_device(d, history) for d in host.devices if d.gone is None
        }
        idle = self._idleness.of_process(
            process, living_uses(process), devices, history, host.wall_seconds
        )
        glyphs = self._does.tokens.glyphs
        does = training_lines(host, process, idle, cells, glyphs)
        trains = trainer_in(host, process) is not None
        about = words.about_lines(host, process, None if trains else idle, cells, True)
        # a narrow screen has no rows to spare for another frame
        self._does.show(does if self.wide else [])
        self._does.display = self.wide and bool(does)
        self._about.show(about if self.wide else does + about)
        memory = memory_lines(host, process, cells, glyphs)
        self._uses.show(words.use_lines(host, process, cells) + memory)
        self._order.show(styled.hang_lines(self._order_said, cells))
        # what the probe says is in the line of each GPU already
        self._order.display = self.wide or not words.cuda_names(host, process)

    def _left_rows(self) -> int:
        """Return the rows that the charts can have below the texts."""
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
        window = WINDOWS[self._window]
        if not self._window:  # nobody has chosen a longer one
            seen = self.session.history(process.id, "cpu_percent", window).seconds
            window = fitted_seconds(seen[-1] - seen[0] if seen else window, window)
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
            left = self._left_rows()
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
