"""These are the charts and the stack in the lower part of the job screen.

They are of the rank under the cursor. Which of them are shown, and where, depends on the room and
on whether the job hangs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Grid
from textual.widget import Widget

from ...model.device_state import mute
from ...model.ranks import name_of
from ...model.step_parts import step_parts
from ...model.time_ledger import JUDGED_SECONDS, of_trainer
from ...model.valid_history import while_it_answers, while_it_steps
from ...store.view import History, by_id
from ...text.units import bytes_text, window_text
from ...text.width import cells as text_cells
from ..charts.axes import loss_axis
from ..charts.chart_series import process_layers, thin
from ..charts.line import LineChart, Series
from ..charts.load_strips import LoadStrips
from ..charts.spark import is_steady
from ..charts.stack_columns import Layer
from ..charts.stacked import Peak, StackedChart, TimeChart
from ..charts.trends import Trends, moves
from ..memory.timeline import ticks
from ..shared.event_rows import event_lines
from ..shared.job_rows import loss_piece
from ..shared.job_series import PEAK_SECONDS, loss_course, missing, recent_peaks
from ..shared.step_split import tokens_of
from ..shared.windows import (
    LONG_WINDOWS,
    WINDOWS,
    reach_of,
    span_of_steps,
    window_of,
    window_of_load,
)
from ..shell.clock_at import clock_at
from ..widgets.pane import set_title
from ..widgets.text import Lines
from .hung_stack import hung_lines, stack_title
from .job_load import draw_load, draw_trends, ranks_of, since_looked
from .job_pace import draw_pace
from .step_layers import measured, of_ledger

if TYPE_CHECKING:
    from ...store.view import AllocView, HostView, JobView, TrainerView
    from ..shell.session import Session

USUAL_SECONDS = WINDOWS[-1]
"""So much the charts show at most, until somebody chooses more."""
WIDE, WIDEST = 100, 160
"""From so many columns on there are two charts side by side, and three."""
LEAST_ROWS, USUAL_ROWS = 6, 8
"""A chart with its frame is at least so high: the only one, and one of several."""
MOST_LINES, TALL_ROWS, EVENTS_ROWS, LEAST_EVENTS_ROWS = 2, 36, 8, 4
"""Lines of charts at most, for lower ones say little, and from how many rows on what happened has a
line of its own below them, of so many rows at most and at least.
"""
FRAME_ROWS, AXIS_ROWS = 2, 2
UNIT_CELLS = 7
"""What the unit and the corners take of a title."""
USUAL_PANELS = 4
COLUMNS = 100
"""The charts are drawn again when time has moved by one of so many columns."""
TEXTS = ("stack", "cure", "held", "events")
BELOW_TEXTS = 18
"""Rows of a line of charts that texts above it leave, however long they are."""
STACK_ROWS, HELD_ROWS = 12, 8
"""Lines of a stack, and of a memory that says little, that have room where texts stand beside each
other.
"""
STEADY_MEMORY = 0.05
"""A memory of a process that changes by no more of its largest value is worth no chart."""
YOUNG_SHARE, LATE_SHARE = 0.25, 0.1
"""A memory of which less of the time is known says little; and a chart that begins so much later
than the steps says since when it is.
"""
BROAD = ("step", "memory", "load", "trends", "cure")
"""What a wide terminal shows: what moves has a chart, what does not has a line of one."""
CALM = ("step", "loss", "memory", "pace", "events")
HANGS = ("stack", "step", "loss", "memory", "events")
CALM_WITHOUT_LOSS = ("step", "pace", "memory", "events")
HANGS_WITHOUT_LOSS = ("stack", "step", "pace", "memory", "events")
"""What is shown first where there is little room."""
LOOK_SECONDS = 3.0
"""How often the charts check how much is known of the time that they show."""


def arrange(width: int, height: int, order: Sequence[str], first: int = 0) -> list[list[str]]:
    """Return the lines of panels that ``width`` by ``height`` cells have room for.

    ``first`` is how far ``order`` was turned, so that each panel can be the first. What happened
    stands below all others where these have room: it is long, and not high.
    """
    across = 2 if width >= WIDE else 1
    if across == 2 and height >= TALL_ROWS:
        charts = [name for name in order if name != "events"]
        across = 3 if width >= WIDEST else across
        texts = [name for name in TEXTS if name in order or name == "events"]
        if across > 2 and "cure" in texts:
            # texts beside each other are as high as the longest, and the charts have the rest
            charts = [name for name in charts if name not in texts]
            in_line = len(texts) if len(charts) > across else across
            rows = [charts[at : at + in_line] for at in range(0, len(charts), in_line)]
            return [texts, *rows]
        charts = [name for name in charts if name != "held"]
        if across == 2 and "stack" in charts and "memory" not in charts:
            charts.remove("stack")
            rows = [charts[at : at + across] for at in range(0, len(charts), across)]
            return [["stack", "events"], *rows]
        below = ["held", "events"] if "held" in order else ["events"]
        alone = across > 2 and "cure" not in charts  # two texts stand well beside each other
        if alone and across < len(charts) < 2 * across:  # what happened is not high
            across -= len(charts) == across + 1
            return [charts[:across], charts[across:], below]
        if len(charts) < 2 * across:
            return [charts[:across], [*charts[across:], *below]]
        turned = [charts[(place + first) % len(charts)] for place in range(len(charts))]
        return [turned[:across], turned[across : 2 * across], below]
    turned = [order[(place + first) % len(order)] for place in range(len(order))]
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
        self._loss, self._pace = LineChart(classes="panel"), LineChart(classes="panel")
        self._step, self._memory = TimeChart(classes="panel"), StackedChart(classes="panel")
        self._load, self._trends = LoadStrips(classes="panel"), Trends(classes="panel")
        self.cure = Lines(counts_rest=True, classes="panel")
        self._panels: dict[str, Widget] = {
            "step": self._step,
            "loss": self._loss,
            "memory": self._memory,
            "held": self._memory,
            "pace": self._pace,
            "events": self.events,
            "stack": self.stack,
            "load": self._load,
            "trends": self._trends,
            "cure": self.cure,
        }
        self._window: float | None = None  # as long as is known, until somebody chooses
        self._usual: tuple[object, float] = (None, 0.0)
        self._first = 0
        self._order: Sequence[str] = CALM
        self._arranged: list[list[str]] = [[]]
        self._drawn: object = None
        self._moment: float | None = None
        self._events_rows = 0
        self._seconds, self._moving = USUAL_SECONDS, False
        self._memory_moves = False

    def compose(self) -> ComposeResult:
        for panel in dict.fromkeys(self._panels.values()):
            panel.display = False
            yield panel

    def turn(self) -> None:
        """Let the next panel be the first, where not all have room."""
        self._first = (self._first + 1) % len(self._order)

    def zoom(self, by: int) -> None:
        """Show a longer or a shorter time."""
        now = self._seconds
        beyond = [one for one in LONG_WINDOWS if (one > now if by > 0 else one < now)]
        self._window = (min if by > 0 else max)(beyond, default=now)

    def _shown_seconds(self, host: HostView, trainer: TrainerView) -> float:
        """Return the time that the charts show: ten minutes, or less while less is known."""
        if self._window is not None:
            return self._window
        due = (trainer.key, int((host.sampled_seconds or 0.0) / LOOK_SECONDS))
        if self._usual[0] != due:
            self._usual = (due, window_of(self.session, host, trainer))
        return self._usual[1]

    def knows_loss(self, host: HostView, job: JobView) -> bool:
        """Return whether a rank tells its loss, or told it before it was none."""
        return loss_course(host, job.trainers, self._history, self._seconds) is not None

    def loss_moves(self, host: HostView, job: JobView) -> bool:
        """Return whether the loss of a job is worth a chart: once it is, the chart stays."""
        if not self._moving:
            found = loss_course(host, job.trainers, self._history, self._seconds)
            self._moving = found is not None and moves(found[1])
        return self._moving

    def memory_moves(self, trainer: TrainerView, now: float) -> bool:
        """Return whether the memory of a trainer is worth a chart: once it is, the chart stays.

        That of a process has to change; that of a GPU is worth one once enough of it is known.
        """
        if not self._memory_moves:
            allocator = _allocator_of(trainer)
            on_gpu = allocator is not None and allocator.definition.ordinal >= 0
            if on_gpu and allocator is not None:
                past = self._history(allocator.id, "allocated_bytes", self._seconds)
            else:
                process = trainer.process if trainer.process is not None else -1
                past = self._history(process, "rss_bytes", self._seconds)
            known = now - past.seconds[0] if past.seconds else 0.0
            enough = known >= YOUNG_SHARE * self._seconds
            self._memory_moves = enough and (on_gpu or not is_steady(past.values, STEADY_MEMORY))
        return self._memory_moves

    @property
    def seconds(self) -> float:
        """How long a time the charts show."""
        return self._seconds

    @property
    def shown(self) -> set[str]:
        """The names of the panels that have room."""
        return {name for line in self._arranged for name in line}

    def fit_to(
        self,
        width: int,
        height: int,
        hangs: bool,
        known: Collection[str] = ("stack", "step"),
        telling: str = "",
    ) -> None:
        """Place the panels that ``height`` lines have room for, and hide the others.

        ``known`` says what there is to show: ``loss`` that a rank reports one, ``step`` its parts,
        ``stack`` that stacks can be asked for. A panel without readings is no use of the room.
        ``load`` that it is on GPUs, ``cure`` that there is something to do about it, ``moving``
        that its loss changes, ``memory`` that its memory says more than a line could.
        ``telling`` shows what is wrong with the job: it comes first, behind
        the stack of a hang.
        """
        loss, memory = "loss" in known, "memory" in known or telling == "memory"
        if width >= WIDEST and height >= TALL_ROWS:
            others = ("stack",) if hangs and "stack" in known else ()
            wanted = (*others, *BROAD, *(["loss"] if loss and "moving" in known else []))
            optional = ("step", "load", "cure")
            self._order = [name for name in wanted if name in known or name not in optional]
        elif hangs:
            self._order = HANGS if loss else HANGS_WITHOUT_LOSS
            if "stack" not in known:  # a recording has none
                self._order = [name for name in self._order if name != "stack"]
        else:
            self._order = CALM if loss else CALM_WITHOUT_LOSS
        if width < WIDEST and "step" not in known and self._order in (CALM, CALM_WITHOUT_LOSS):
            self._order = [name for name in self._order if name != "step"]  # the pace says it
        if not memory:  # a line of the readings says how much it is
            self._order = [name for name in self._order if name != "memory"]
            beside = {"stack", "cure"} & {*self._order}
            two_lines = width < WIDEST and loss and "stack" not in beside  # of charts, four in all
            if width < WIDE or height < TALL_ROWS or two_lines:
                self._order.append("memory")
            elif len(beside) < (2 if width >= WIDEST else 1):
                self._order.append("held")
        if telling:
            self._order = [*self._order, *([telling] if telling not in self._order else [])]
            before = {"stack": 0, telling: 1}
            self._order = sorted(self._order, key=lambda name: before.get(name, 2))
        lines = arrange(width, height, self._order, self._first % len(self._order))
        told = min(max(self.events.rows + 2, LEAST_EVENTS_ROWS), EVENTS_ROWS)
        texts = [at for at, line in enumerate(lines) if set(line) <= {*TEXTS} and len(lines) > 1]
        if texts and lines[texts[0]] != ["events"]:
            stack = STACK_ROWS + 2 if "stack" in lines[texts[0]] else 0
            held = HELD_ROWS + 2 if "held" in lines[texts[0]] else 0
            most = max(height // 2, height - BELOW_TEXTS * (len(lines) - 1))
            told = min(max(told, self.cure.rows + 2, stack, held), most)
        if (lines, told) == (self._arranged, self._events_rows):
            return
        self._arranged, self._drawn, self._events_rows = lines, None, told
        self.display = bool(lines)
        shown = {self._panels[name] for name in self.shown}
        for panel in self._panels.values():
            panel.display = panel in shown
        if lines:
            across = max(map(len, lines))
            self.styles.grid_size_columns = across
            self.styles.grid_size_rows = len(lines)
            high = (str(told) if at in texts else "1fr" for at in range(len(lines)))
            self.styles.grid_rows = " ".join(high)
            for line in lines:  # the last one of a line has what others leave
                for name in line:
                    rest = across - len(line) if name == line[-1] else 0
                    self._panels[name].styles.column_span = 1 + rest
            places = [name for line in lines for name in line]
            rank = {id(self._panels[name]): place for place, name in enumerate(places)}
            self.sort_children(key=lambda child: rank.get(id(child), len(rank)))

    # ── drawing ──

    def draw(self, host: HostView, trainer: TrainerView) -> None:
        """Draw the charts of this rank where they would differ from what is there."""
        now = host.sampled_seconds
        window = self._seconds = self._shown_seconds(host, trainer)
        clock = clock_at(self.session, host)
        every = max(window / COLUMNS, self.session.charts_seconds)
        every *= max(len(self.shown) / USUAL_PANELS, 1.0)  # narrower ones move more seldom
        column = int((now or 0.0) / every)
        gone = trainer.gone is not None
        key = (
            column,
            clock is None,
            window,
            trainer.key,
            gone,
            self.size,
            self.app.theme,
            len(host.marks),
        )
        if key != self._drawn or now != self._moment:  # a table above names the same values
            self._moment = now
            self._draw_figures(host, trainer, window, clock)
        if key == self._drawn:
            return
        self._drawn = key
        if "loss" in self.shown:
            self._draw_loss(host, trainer, window)
        if "step" in self.shown:
            self._draw_step(host, trainer, window)
        if "pace" in self.shown:
            draw_pace(self._pace, self.session, host, trainer, window)
        if self._memory.display:
            self._draw_memory(host, trainer, window, clock)

    def _draw_figures(
        self, host: HostView, trainer: TrainerView, window: float, clock: float | None
    ) -> None:
        """Draw the charts that name the value of now."""
        if self._window is None:
            window = window_of_load(self.session, host, trainer, window)
        if "load" in self.shown:
            lines = [line for line in self._arranged if not {*line} <= {*TEXTS}]
            below = self._events_rows if len(lines) < len(self._arranged) else 0
            rows = (self.size.height - below) // max(len(lines), 1) - FRAME_ROWS - AXIS_ROWS
            draw_load(self._load, self.session, host, trainer, window, clock, rows)
        if "trends" in self.shown:
            draw_trends(self._trends, self.session, host, trainer, window, clock)

    def show_texts(self, host: HostView, job: JobView, trainer: TrainerView) -> None:
        """Show where this rank stands and what happened to its job, where these have room."""
        if "stack" in self.shown:
            set_title(self.stack, stack_title(trainer))
            room = self.stack.size.height, self.stack.size.width
            self.stack.show(hung_lines(self.session, trainer, *room))
        if "events" in self.shown:
            set_title(self.events, "What happened")
            past = self.session.frozen_view.past(host.key) is not None or self.session.replay
            until = host.wall_seconds if past else None
            found = self.session.happened.on(host).of_job(job.key, until)
            room = self.events.size.height, self.events.size.width
            glyphs, now = self.events.tokens.glyphs, host.wall_seconds
            self.events.show(event_lines(found, glyphs, *room, now))

    def _history(self, entity_id: int, column: str, window: float | None) -> History:
        """Return as many readings as the charts can show apart."""
        return thin(self.session.history(entity_id, column, window))

    def clear(self) -> None:
        """There is no rank to draw."""
        self._drawn = None

    def _over(self, what: str, trainer: TrainerView, over: str = "", since: str = "") -> str:
        d = trainer.definition
        rank = f" of {name_of(trainer)}" if d.rank is not None and d.world_size != 1 else ""
        over = over or f" over {window_text(self._seconds)}"
        room = self._memory.size.width - UNIT_CELLS
        said = (f" {since}", f" {since.partition(',')[0]}") if since else ()
        fits = (one for one in said if text_cells(f"{what}{rank}{one}") <= room)
        return f"{what}{rank}{next(fits, over)}"

    def _since(self, trainer: TrainerView, host: HostView, moments: Sequence[float]) -> str:
        """Say since when readings are known that begin later than the steps of their trainer."""
        steps = self.session.history(trainer.id, "step", self._seconds)
        late = (
            moments and steps.seconds and moments[0] - steps.seconds[0] > LATE_SHARE * self._seconds
        )
        return since_looked(self.session, steps, host.sampled_seconds) if late else ""

    def _draw_loss(self, host: HostView, trainer: TrainerView, window: float) -> None:
        same = [
            t
            for t in host.trainers
            if t.definition.job and t.definition.job == trainer.definition.job
        ]
        reach = reach_of(trainer, window)
        found = loss_course(host, (trainer, *same), self._history, reach)
        telling, past = found if found is not None else (trainer, History())
        loss = loss_piece(host, [telling])
        history = while_it_steps(past, self._history(telling.id, "step", reach), telling)
        seconds, end, over = span_of_steps(telling, [history], window, host.sampled_seconds or 0.0)
        what = f"Loss {loss[0]}" if loss is not None else "Loss"
        set_title(self._loss, self._over(what, telling, over))
        self._loss.show_empty(missing(telling, "loss", "no loss seen yet"))
        line = Series("loss", "series1", history.seconds, history.values)
        low, high = loss_axis(history.values)
        known = any(value is not None for value in history.values)
        clock = clock_at(self.session, host, end)
        self._loss.show([line] if known else [], seconds, low, high, now=end, clock=clock)

    def _draw_step(self, host: HostView, trainer: TrainerView, window: float) -> None:
        now = host.sampled_seconds or 0.0
        # a ledger comes by the minute: over a shorter time there may be nothing of it
        long = max(window, min(window_of(self.session, host, trainer), JUDGED_SECONDS))
        parts = step_parts(ranks_of(host, trainer), host, self.session.history)
        found = measured(self.session, trainer, window)
        if parts is not None and parts.of_ledger:  # else the chart would divide a step otherwise
            ledger, tokens = of_trainer(trainer, long), tokens_of(parts)
            layers = of_ledger(self.session, trainer, ledger, long, now, tokens)
            found, window = (layers, long) if layers.known else (found, window)
        seconds, end, over = found.span(trainer, window, now)
        self._step.show_empty(missing(trainer, "step_seconds", "no step has ended yet"))
        self._step.show(
            found.layers,
            found.moments,
            seconds,
            None,
            end,
            self._over(found.what, trainer, over),
            ticks=ticks(host.marks, {trainer.id}),
            steps=found.steps,
            clock=clock_at(self.session, host, end),
        )

    def _draw_memory(
        self, host: HostView, trainer: TrainerView, window: float, clock: float | None
    ) -> None:
        allocator, peak = _allocator_of(trainer), None
        on_cpu = allocator is None or allocator.definition.ordinal < 0
        if on_cpu:
            layers, moments = process_layers(self._history, trainer.process, allocator, window)
            what = "Memory of the process"
            self._memory.show_empty("the memory of this process is not known yet")
        else:
            assert allocator is not None
            layers, moments = self._allocator_layers(host, allocator, window)
            what = "Highest memory"
            top = allocator.number("peak_allocated_bytes")
            if top and moments:
                peak = Peak(top, f"peak since start {bytes_text(top)}", moments[0])
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
            self._over(what, trainer, since=self._since(trainer, host, moments)),
            ticks=ticks(host.marks, ids),
            steps=self._history(trainer.id, "step", window),
            peak=peak,
            clock=clock,
        )

    def _allocator_layers(
        self, host: HostView, allocator: AllocView, window: float
    ) -> tuple[list[Layer], Sequence[float]]:
        held = self.session.history(allocator.id, "allocated_bytes", window)
        device = by_id(host.devices, allocator.gpu)
        if device is not None and mute(device) is not None:
            held = while_it_answers(held, self.session.history(device.id, "used_bytes", window))
        peaks = recent_peaks(held, max(PEAK_SECONDS, window / COLUMNS))
        thinned = thin(History(held.seconds, tuple(peaks)))
        reserved, highest = (
            self._history(allocator.id, "reserved_bytes", window).values,
            thinned.values,
        )
        cached = [
            max(0.0, whole - part) if whole is not None and part is not None else None
            for part, whole in zip(highest, reserved, strict=True)
        ]
        layers = [Layer("allocated", "allocated", highest), Layer("cached", "cached", cached)]
        return layers, thinned.seconds


def _allocator_of(trainer: TrainerView) -> AllocView | None:
    """Return the allocator of a GPU, or else that of the CPU."""
    first = trainer.allocators[0] if trainer.allocators else None
    return next((a for a in trainer.allocators if a.definition.ordinal >= 0), first)
