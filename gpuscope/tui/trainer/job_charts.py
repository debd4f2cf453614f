"""These are the charts and the stack in the lower part of the job screen.

They are of the rank under the cursor. Which of them are shown, and where, depends on the room and
on whether the job hangs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.containers import Grid
from textual.widget import Widget

from ...model.ranks import name_of
from ...model.step_time import SPLIT, split_of
from ...store.view import History
from ...text.units import bytes_text, duration_text, window_text
from ...wire.frames import Unknown
from ..charts.chart_series import at_moments
from ..charts.line import LineChart, Series
from ..charts.stacked import Layer, Peak, StackedChart, Units
from ..memory.timeline import ticks
from ..overview.job_rows import SPLIT_TOKENS
from ..widgets.pane import set_title
from ..widgets.text import Lines

if TYPE_CHECKING:
    from ...store.view import AllocView, Entity, HostView, TrainerView
    from ..shell.session import Session

WINDOWS = (60.0, 300.0, 600.0, 1800.0, 3600.0, 4 * 3600.0)
"""Seconds that the charts show."""
USUAL_WINDOW = 2
WIDE = 100
"""From so many columns on there are two charts side by side."""
LEAST_ROWS, USUAL_ROWS = 6, 8
"""A chart with its frame is at least so high: the only one, and one of several."""
MOST_LINES = 2
"""Lines of charts at most: lower ones say little."""
LEAST_SPAN = 0.05
"""Of a loss that hardly changes: its axis spans so much of it, or noise looks like a mountain."""
COLUMNS = 100
"""The charts are drawn again when time has moved by one of so many columns."""
CALM = ("step", "loss", "memory", "events")
HANGS = ("stack", "step", "loss", "memory")
"""What is shown first where there is little room."""
STANDS_SECONDS, LONGEST_STEP_SECONDS = 15.0, 600.0
"""No step for so long, and for three usual ones: the trainer stands."""
PEAK_SECONDS = 10.0
"""Of how long before the highest memory is shown at each moment, at least."""
NS = 1e9
LOOK_SECONDS = 3.0
"""So often it is looked how much is known, for the time that the charts show."""


class TimeChart(StackedChart):
    """Stacked parts of a time, in nanoseconds."""

    UNITS: ClassVar[Units] = (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))


def arrange(width: int, height: int, order: Sequence[str], first: int = 0) -> list[list[str]]:
    """Return the lines of panels that ``width`` by ``height`` cells have room for.

    ``first`` is how far ``order`` was turned, so that each panel can be the first.
    """
    turned = [order[(place + first) % len(order)] for place in range(len(order))]
    across = 2 if width >= WIDE else 1
    lines = min(height // USUAL_ROWS or height // LEAST_ROWS, len(order) // across, MOST_LINES)
    shown = turned[: across * lines]
    return [shown[at : at + across] for at in range(0, len(shown), across)]


class JobCharts(Grid):
    """The lower part of the job screen."""

    DEFAULT_CSS = """
    JobCharts { height: 1fr; grid-rows: 1fr; }
    JobCharts > .panel { height: 1fr; }
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.stack, self.events = Lines(classes="panel"), Lines(classes="panel")
        self._loss = LineChart(classes="panel")
        self._step, self._memory = TimeChart(classes="panel"), StackedChart(classes="panel")
        self._panels: dict[str, Widget] = {
            "step": self._step,
            "loss": self._loss,
            "memory": self._memory,
            "events": self.events,
            "stack": self.stack,
        }
        self._window: int | None = None  # as long as is known, until somebody chooses
        self._usual: tuple[object, int] = (None, 0)
        self._first = 0
        self._arranged: list[list[str]] = [[]]
        self._drawn: object = None
        self._seconds = WINDOWS[0]

    def compose(self) -> ComposeResult:
        for panel in self._panels.values():
            panel.display = False
            yield panel

    def turn(self, hangs: bool) -> None:
        """Let the next panel be the first, where not all have room."""
        self._first = (self._first + 1) % len(HANGS if hangs else CALM)

    def zoom(self, by: int) -> None:
        """Show a longer or a shorter time."""
        now = self._usual[1] if self._window is None else self._window
        self._window = min(max(now + by, 0), len(WINDOWS) - 1)

    def _shown_seconds(self, trainer: TrainerView, now: float) -> float:
        """Return the time that the charts show.

        It is ten minutes, or less while less is known: a chart that is nearly empty says little.
        """
        if self._window is not None:
            return WINDOWS[self._window]
        due = (trainer.key, int(now / LOOK_SECONDS))
        if self._usual[0] != due:
            known = self.session.history(trainer.id, "step", WINDOWS[USUAL_WINDOW]).seconds
            span = now - known[0] if known else 0.0
            fits = (at for at in range(USUAL_WINDOW) if WINDOWS[at] >= span)
            self._usual = (due, next(fits, USUAL_WINDOW))
        return WINDOWS[self._usual[1]]

    @property
    def shown(self) -> set[str]:
        """The names of the panels that have room."""
        return {name for line in self._arranged for name in line}

    def fit_to(self, width: int, height: int, hangs: bool) -> None:
        """Place the panels that ``height`` lines have room for, and hide the others."""
        lines = arrange(width, height, HANGS if hangs else CALM, self._first)
        if lines == self._arranged:
            return
        self._arranged, self._drawn = lines, None
        self.display = bool(lines)
        for name, panel in self._panels.items():
            panel.display = name in self.shown
        if lines:
            self.styles.grid_size_columns = len(lines[0])
            self.styles.grid_size_rows = len(lines)
            places = [name for line in lines for name in line]
            rank = {id(self._panels[name]): place for place, name in enumerate(places)}
            self.sort_children(key=lambda child: rank.get(id(child), len(rank)))

    # ── drawing ──

    def draw(self, host: HostView, trainer: TrainerView) -> None:
        """Draw the charts of this rank where they would differ from what is there."""
        now = host.sampled_seconds
        window = self._seconds = self._shown_seconds(trainer, now or 0.0)
        ago = self.session.ago_seconds
        column = int((now or 0.0) / (window / COLUMNS))
        gone = trainer.gone is not None
        key = (column, ago, window, trainer.key, gone, self.size, self.app.theme, len(host.marks))
        if key == self._drawn:
            return
        self._drawn = key
        if "loss" in self.shown:
            self._draw_loss(host, trainer, window, ago)
        if "step" in self.shown:
            self._draw_step(host, trainer, window, ago)
        if "memory" in self.shown:
            self._draw_memory(host, trainer, window, ago)

    def clear(self) -> None:
        """There is no rank to draw."""
        self._drawn = None

    def _over(self, what: str, trainer: TrainerView) -> str:
        rank = f" of {name_of(trainer)}" if trainer.definition.rank is not None else ""
        return f"{what}{rank} over {window_text(self._seconds)}"

    def _draw_loss(self, host: HostView, trainer: TrainerView, window: float, ago: float) -> None:
        same = [
            t
            for t in host.trainers
            if t.definition.job and t.definition.job == trainer.definition.job
        ]
        telling = next((t for t in (trainer, *same) if t.number("loss") is not None), trainer)
        loss = telling.number("loss")
        history = while_it_steps(
            self.session.history(telling.id, "loss", window),
            self.session.history(telling.id, "step", window),
        )
        set_title(
            self._loss,
            self._over(f"Loss {loss:.4g}" if loss is not None else "Loss", telling),
        )
        self._loss.show_empty(missing(telling, "loss", "no loss seen yet"))
        line = Series("loss", "series1", history.seconds, history.values)
        now = host.sampled_seconds
        low, high = loss_axis(history.values)
        known = any(value is not None for value in history.values)
        self._loss.show([line] if known else [], window, low, high, now=now, ago=ago)

    def _draw_step(self, host: HostView, trainer: TrainerView, window: float, ago: float) -> None:
        parts = {
            name: self.session.history(trainer.id, f"{name}_seconds", window) for name in SPLIT
        }
        moments = max((one.seconds for one in parts.values()), key=len, default=())
        steps = self.session.history(trainer.id, "step", window)
        layers = [
            Layer(SPLIT_TOKENS[name], name, nanoseconds(while_it_steps(history, steps)))
            for name, history in parts.items()
            if len(history) == len(moments)
        ]
        self._step.show_empty(missing(trainer, "step_seconds", "no step has ended yet"))
        now, whole = split_of(trainer), trainer.number("step_seconds")
        what = f"Step {duration_text(sum(now.values()))}" if now else "Step"
        if not any(value is not None for layer in layers for value in layer.values):
            # an older recording, or a step that is not taken apart: how long it takes is known
            history = self.session.history(trainer.id, "step_seconds", window)
            values = nanoseconds(while_it_steps(history, steps))
            layers, moments = [Layer("other", "not broken down", values)], history.seconds
            what = f"Step {duration_text(whole)}" if whole is not None else "Step"
        self._step.show(
            layers,
            moments,
            window,
            None,
            host.sampled_seconds,
            self._over(what, trainer),
            ticks=ticks(host.marks, {trainer.id}),
            steps=steps,
            ago=ago,
        )

    def _draw_memory(self, host: HostView, trainer: TrainerView, window: float, ago: float) -> None:
        allocator = next(
            (a for a in trainer.allocators if a.definition.ordinal >= 0),
            trainer.allocators[0] if trainer.allocators else None,
        )
        peak = None
        on_cpu = allocator is None or allocator.definition.ordinal < 0
        if on_cpu:
            layers, moments = self._process_layers(host, trainer, allocator, window)
            what = "Memory of the process"
            self._memory.show_empty("the memory of this process is not known yet")
        else:
            assert allocator is not None
            layers, moments = self._allocator_layers(allocator, window)
            what = "Highest memory"
            top = allocator.number("peak_allocated_bytes")
            peak = Peak(top, f"peak so far {bytes_text(top)}") if top else None
            self._memory.show_empty(
                missing(allocator, "allocated_bytes", "the allocator was not read yet")
            )
        ids = {trainer.id, *(a.id for a in trainer.allocators)}
        self._memory.show(
            layers,
            moments,
            window,
            None,
            host.sampled_seconds,
            self._over(what, trainer),
            ticks=ticks(host.marks, ids),
            steps=self.session.history(trainer.id, "step", window),
            peak=peak,
            ago=ago,
        )

    def _allocator_layers(
        self, allocator: AllocView, window: float
    ) -> tuple[list[Layer], Sequence[float]]:
        held = self.session.history(allocator.id, "allocated_bytes", window)
        reserved = self.session.history(allocator.id, "reserved_bytes", window).values
        highest = recent_peaks(held, max(PEAK_SECONDS, window / COLUMNS))
        cached = [
            max(0.0, whole - part) if whole is not None and part is not None else None
            for part, whole in zip(highest, reserved, strict=True)
        ]
        layers = [Layer("allocated", "allocated", highest), Layer("cached", "cached", cached)]
        return layers, held.seconds

    def _process_layers(
        self, host: HostView, trainer: TrainerView, allocator: AllocView | None, window: float
    ) -> tuple[list[Layer], Sequence[float]]:
        """Return what a process holds on the CPU, where torch keeps no account.

        What the probe counts are parameters, gradients and states; the rest is the process's.
        """
        if trainer.process is None:
            return [], ()
        whole = self.session.history(trainer.process, "rss_bytes", window)
        layers, known = [], [0.0] * len(whole)
        for label, token, column in COUNTED if allocator is not None else ():
            assert allocator is not None
            history = self.session.history(allocator.id, column, window)
            values = [value or 0.0 for value in at_moments(history, whole.seconds)]
            known = [one + other for one, other in zip(known, values, strict=True)]
            layers.append(Layer(token, label, values))
        rest = [
            None if size is None else max(0.0, size - part)
            for size, part in zip(whole.values, known, strict=True)
        ]
        return [*layers, Layer("other", "rest of the process", rest)], whole.seconds


COUNTED = (
    ("parameters", "allocated", "parameter_bytes"),
    ("gradients", "cached", "gradient_bytes"),
    ("optimizer state", "outside", "optimizer_state_bytes"),
)


def while_it_steps(history: History, steps: History) -> History:
    """Return a history that is unknown where for long no step had ended.

    A reading of a trainer that stands is that of its last step: a chart of it would go on as if
    it trained. What is missing for a moment only stays as it was.
    """
    values: list[float | None] = []
    last: float | None = None
    moved, before = -math.inf, None
    at, usual = 0, STANDS_SECONDS
    for moment, value in zip(history.seconds, history.values, strict=True):
        while at < len(steps) and steps.seconds[at] <= moment:
            step = steps.values[at]
            if step is not None and step != before:
                if before is not None:
                    apart = (steps.seconds[at] - moved) / max(step - before, 1)
                    usual = max(STANDS_SECONDS, 3 * min(apart, LONGEST_STEP_SECONDS))
                moved, before = steps.seconds[at], step
            at += 1
        last = value if value is not None else last
        values.append(last if moment - moved <= usual else None)
    return History(history.seconds, tuple(values))


def recent_peaks(history: History, seconds: float) -> list[float | None]:
    """Return for each moment the most of the ``seconds`` before.

    A reading is of a random moment of a step; only the highest of several says what steps need.
    """
    out: list[float | None] = []
    kept: deque[tuple[float, float]] = deque()  # falling: what may still be the highest
    for moment, value in zip(history.seconds, history.values, strict=True):
        while kept and kept[0][0] < moment - seconds:
            kept.popleft()
        if value is not None:
            while kept and kept[-1][1] <= value:
                kept.pop()
            kept.append((moment, value))
        out.append(kept[0][1] if kept and value is not None else None)
    return out


def loss_axis(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the ends of the axis of a loss, None where the data choose them."""
    known = [value for value in values if value is not None]
    if not known:
        return None, None
    low, high = min(known), max(known)
    least = LEAST_SPAN * max(abs(low), abs(high))
    if not 0 < least < math.inf or high - low >= least:
        return None, None
    middle = (low + high) / 2
    return middle - least / 2, middle + least / 2


def nanoseconds(history: History) -> list[float | None]:
    """Return the values of a history of seconds in nanoseconds."""
    return [None if value is None else max(0.0, value) * NS for value in history.values]


def missing(entity: Entity, column: str, otherwise: str) -> str:
    """Return why there is no reading of a column."""
    reason = entity.reading(column)
    return reason.text if isinstance(reason, Unknown) and reason.text else otherwise
