"""Tab 3: the demo trainer: switches, its loss, and what each setting cost, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from ...lab.config import TOGGLES
from ...store.view import HostView
from ..actions import BY_NAME
from ..cells import bytes_text, seconds_text
from ..keymap import shown
from ..session import Session
from ..widgets.lab_panel import Switches, run_columns, run_row
from ..widgets.table import LiveTable
from ..widgets.text import Lines, wrap
from .pane import Pane

if TYPE_CHECKING:
    from ..charts.line import LineChart
    from ..labruns import LabRuns

Piece = tuple[str, str]
WIDE, TWO_COLUMNS = 100, 64
SERIES = ("series1", "series2", "series3", "series4")


class Button(Static):
    """A word to click that carries out an action."""

    def __init__(self, action: str) -> None:
        super().__init__(f" {BY_NAME[action].label} ({shown(BY_NAME[action].keys[0])}) ", classes="button")
        self._action = action

    async def on_click(self) -> None:
        await self.screen.action_do(self._action)  # type: ignore[attr-defined]


class LabPane(Pane):
    """Switches at the left, loss and runs at the right; one below the other where the terminal is narrow."""

    DEFAULT_CSS = """
    LabPane #lab-body { height: 1fr; }
    LabPane #lab-left { width: 40; }
    LabPane.narrow #lab-left { width: 36; }
    LabPane #lab-right { width: 1fr; }
    LabPane #lab-state { padding: 0 2; }
    LabPane #buttons { height: 1; padding: 0 1; margin: 0 0 1 0; }
    LabPane .button { width: auto; height: 1; margin: 0 1; background: $gs-selected; color: $gs-title; }
    LabPane #loss { height: 3fr; }
    LabPane #runs { height: 2fr; }
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._switches = Switches(self.runs.config, id="switches", classes="panel")
        self._state = Lines(id="lab-state")
        self._right = Vertical(id="lab-right")
        self._table = LiveTable(run_columns(()), empty="no run yet", cursor=False, id="runs", classes="panel")
        self._loss: LineChart | None = None

    @property
    def runs(self) -> LabRuns:
        """The runs of this session: they outlive a visit to this tab."""
        return self.session.labs

    def compose(self) -> ComposeResult:
        self._switches.border_title, self._table.border_title = "Demo trainer", "Runs"
        self._switches.styles.height = len(TOGGLES) + 2
        with Horizontal(id="lab-body"):
            with Vertical(id="lab-left"):
                yield self._switches
                with Horizontal(id="buttons"):
                    yield Button("lab_run")
                    yield Button("lab_stop")
                yield self._state
            with self._right:
                yield self._table

    # ── numbers ──

    def show(self, host: HostView | None) -> None:
        runs = self.runs
        running = runs.current.config if runs.current and runs.state in ("starting", "running") else None
        self._switches.show(runs.config, running)
        self._state.show(self._words(max(20, self._state.size.width or 33), host))
        everything = list(runs.runs)
        self._table.show_columns(run_columns(everything))
        self._table.show([run_row(run, everything, run is runs.current) for run in everything])

    def _words(self, width: int, host: HostView | None) -> list[list[Piece]]:
        runs, run = self.runs, self.runs.current
        token = {"running": "ok", "failed": "bad"}.get(runs.state, "muted")
        lines: list[list[Piece]] = [
            [("state    ", "muted"), (runs.state, token), (f"  pid {runs.pid}" if runs.pid else "", "faint")]
        ]
        if runs.dirty:
            lines += wrap([("* changed: ", "warn"), ("r restarts with these switches", "muted")], width)
        if run is not None and run.step:
            lines += self._figures(host)
        for text in runs.failure:
            lines += wrap([(text, "bad" if text == runs.failure[0] else "text")], width)
        toggle = self._switches.current
        note = toggle.help
        if toggle.on_cpu and run is not None and run.device == "cpu":
            note += f". On the CPU: {toggle.on_cpu}"
        return [*lines, [], *wrap([(f"{toggle.name}: ", "text"), (note, "muted")], width)]

    def _figures(self, host: HostView | None) -> list[list[Piece]]:
        run = self.runs.current
        assert run is not None
        self._take_peak(host)
        facts = [
            ("step", f"{run.step:,}" + (f"  {run.skipped} skipped" if run.skipped else "")),
            ("loss", "not finite" if run.loss is None else f"{run.loss:.4f}"),
            ("pace", f"{run.samples_per_second:,.0f} samples/s" if run.samples_per_second else "–"),
            ("per step", seconds_text(run.step_seconds) if run.step_seconds else "–"),
            (
                "peak",
                bytes_text(run.peak_bytes)
                if run.peak_bytes
                else "not counted on a CPU"
                if run.device == "cpu"
                else "–",
            ),
        ]
        return [[(f"{name:9}", "muted"), (value, "text")] for name, value in facts]

    def _take_peak(self, host: HostView | None) -> None:
        """The peak of a run in progress is what the probe in it reads from torch."""
        run = self.runs.current
        trainer = next((t for t in host.trainers if t.definition.pid == self.runs.pid), None) if host else None
        if run is not None and trainer is not None:
            peaks = [p for a in trainer.allocators if (p := a.number("peak_allocated_bytes")) is not None]
            run.peak_bytes = max(peaks, default=run.peak_bytes)

    # ── charts ──

    def show_charts(self, host: HostView | None) -> None:
        from ..charts.line import LineChart, Series

        if not self._right.is_mounted:
            return
        if self._loss is None:
            self._loss = LineChart(empty="the loss appears here", id="loss", classes="panel")
            self._loss.border_title = "Loss over steps"
            self._right.mount(self._loss, before=self._table)
        shown = list(self.runs.runs)[-len(SERIES) :][::-1]
        series = [
            Series(f"run {run.letter}", token, list(run.steps), list(run.losses))
            for run, token in zip(shown, SERIES, strict=False)
            if run.steps
        ]
        self._loss.show(series, None, None, None, "", x="steps")

    # ── room and keys ──

    def fit_to(self, width: int, height: int) -> None:
        self.set_class(width < WIDE, "narrow")
        self._right.display = width >= TWO_COLUMNS

    def take_focus(self) -> None:
        self._switches.focus(scroll_visible=False)

    def _redraw(self) -> None:
        self.show(self.session.host)

    def do_down(self) -> None:
        """The next switch."""
        self._switches.move(1)
        self._redraw()

    def do_up(self) -> None:
        """The previous switch."""
        self._switches.move(-1)
        self._redraw()

    def do_lab_next(self) -> None:
        """Change the switch under the cursor."""
        self.runs.turn(self._switches.current, 1)
        self._redraw()

    def do_lab_previous(self) -> None:
        """Change it back."""
        self.runs.turn(self._switches.current, -1)
        self._redraw()

    def do_lab_run(self) -> None:
        """Start, or restart with these switches."""
        self.runs.start()
        self._redraw()

    def do_lab_stop(self) -> None:
        """Stop the trainer."""
        self.runs.stop()
        self._redraw()

    def on_switches_turned(self, event: Switches.Turned) -> None:
        event.stop()
        self.runs.turn(event.toggle, event.by)
        self._redraw()
