"""This screen shows everything about one process.

That is who it is, what it holds on which GPU and how it calls that, and its history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll

from ...text import styled
from ...text.styled import Line
from ...text.units import window_text
from ..shell.keymap import bindings_of
from ..widgets.charted_screen import WINDOWS, ChartedScreen
from ..widgets.pane import set_title
from ..widgets.program import program
from ..widgets.question_dialog import ask
from ..widgets.text import Lines
from . import text as words
from .idle import Idleness
from .process_series import CHARTS, series_of, top_of

if TYPE_CHECKING:
    from ...store.view import HostView, ProcView
    from ..shell.session import Session

ASK_SECONDS = 5.0


class OneProcessScreen(ChartedScreen):
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("OneProcessScreen")]

    def __init__(self, session: Session, key: str) -> None:
        super().__init__(session, key, histories=len(CHARTS), charts=len(CHARTS))
        self._idleness = Idleness()
        self._about, self._uses, self._order = (Lines(classes="panel") for _ in range(3))
        self._order_said: list[Line] = [[("asking …", "muted")]]
        self._asking: asyncio.Task[None] | None = None

    def compose(self) -> ComposeResult:
        panels = (
            (self._about, "Process"),
            (self._uses, "On the GPUs"),
            (self._order, "CUDA's numbers for them"),
        )
        for panel, title in panels:
            panel.border_title = title
        yield self.head
        with Horizontal(id="columns"):
            with VerticalScroll(id="left", can_focus=False):
                for panel, _ in panels:
                    yield panel
            with Vertical(id="right"):
                yield from self._charts
        yield self.foot

    # that of the base is called as well: Textual calls each class's own
    def on_mount(self) -> None:
        self._asking = asyncio.get_running_loop().create_task(self._ask_order())

    def on_unmount(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    def _find_process(self) -> tuple[HostView | None, ProcView | None]:
        host = self.session.host
        return host, next(
            (p for p in host.processes if p.key == self._key), None
        ) if host is not None else None

    def _show(self) -> None:
        host, process = self._find_process()
        if host is None or process is None:
            self._missing("Process")
            return
        self._present(words.head(process))
        width = self.terminal[0]
        cells = max(30, (width // 2 if self.wide else width) - 5)
        history = self.session.history
        devices = {
            d.id: self._idleness.of_device(d, history) for d in host.devices if d.gone is None
        }
        idle = self._idleness.of_process(
            process, words.living_uses(process), devices, history, host.wall_seconds
        )
        self._about.show(words.about_lines(host, process, idle, cells))
        self._uses.show(words.use_lines(host, process, cells))
        self._order.show(styled.hang_lines(self._order_said, cells))

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
        for chart, number in self._visible(self.terminal[1] - 2):
            what = CHARTS[number]
            set_title(chart, f"{what}, {window_text(window)}")
            found = list(series_of(host, process, what, window, self.session.history))
            ago = self.session.ago_seconds
            chart.show(found, window, 0.0, top_of(what), now=host.sampled_seconds, ago=ago)

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
