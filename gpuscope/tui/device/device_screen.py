"""This screen shows what one GPU does and what that means, its history, health and processes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll

from ...model.device_state import judge, mute, processes_on
from ...model.device_trainings import hung_since
from ...model.first_step import job_begins
from ...model.job_state import job_devices
from ...store.view import History, by_key
from ...text.units import window_text
from ..charts.bins import Bins
from ..charts.chart_series import device_layers
from ..charts.line import LineChart, Series
from ..charts.load_lanes import LOADS, gpu_lanes
from ..charts.load_strips import Lane, LoadStrips, binned
from ..charts.spark import spark
from ..charts.stacked import StackedChart
from ..charts.trends import Trend, Trends
from ..log.subject import device_of
from ..memory.timeline import shown_seconds
from ..shared.event_rows import event_lines
from ..shared.host_trends import power_trends
from ..shared.trainer_actions import open_act
from ..shell.clock_at import clock_at
from ..theme import SERIES
from ..trainer.job_load import AXIS_ROWS, MOST_GPUS, parts_of
from ..widgets.charted_screen import CHART_ROWS, WINDOWS, ChartedScreen
from ..widgets.pane import set_title
from ..widgets.program import program
from ..widgets.text import Lines
from . import text as words
from .beside_text import peer_lines, training_here
from .histories import (
    CHARTS,
    LOAD,
    LOAD_AT,
    MEMORY,
    MEMORY_AT,
    STRIP,
    Chart,
    seconds_before_look,
    source_text,
    top_of,
)
from .inventory_text import inventory_lines
from .load_text import GAUGES, load_lines

if TYPE_CHECKING:
    from ...store.view import DeviceView, HostView, TrainerView
    from ..background.finding_history import Case
    from ..shell.session import Session

TALL = 32
WHAT_TO_DO = "Findings: what to do"
BROAD = 160
"""From so many columns on the charts stand in two columns."""
BESIDE_ROWS = 44
"""From this height on, a wide terminal shows the training and the other GPUs above the charts."""
MOST_EVENTS = 12
"""Lines of what happened at most above a chart."""
COURSE_CELLS = 15
"""The cells of a history next to its gauge, if there is no room for a chart: four seconds each."""


class DeviceScreen(ChartedScreen):
    """What a GPU does, is and was: texts on the left, charts on the right."""

    DEFAULT_CSS = """
    DeviceScreen #right > Horizontal { height: 1fr; }
    DeviceScreen #right > Horizontal > .chart { width: 1fr; }
    DeviceScreen.-broad #right { width: 2fr; }
    DeviceScreen #broad { height: 1fr; display: none; }
    DeviceScreen #broad > * { width: 2fr; height: 1fr; }
    DeviceScreen #broad > Vertical { width: 3fr; }
    DeviceScreen #broad > Vertical > * { height: 1fr; }
    DeviceScreen #device-events { height: 1fr; min-height: 4; display: none; }
    DeviceScreen #power { height: 1fr; display: none; }
    DeviceScreen.-narrow #right > Horizontal { height: auto; }
    """

    def __init__(self, session: Session, key: str) -> None:
        super().__init__(session, key, histories=len(CHARTS), charts=len(CHARTS) - 2)
        self._load, self._state = Lines(classes="panel"), Lines(classes="panel")
        self._health, self._facts = Lines(classes="panel"), Lines(classes="panel")
        self._users, self._users_below = Lines(classes="panel"), Lines(classes="panel")
        self._cure, self._cure_above = Lines(classes="panel"), Lines(classes="panel")
        self._case: Case | None = None
        self._span: tuple[float, float | None, float | None] = (WINDOWS[0], None, None)
        """The seconds that the charts show, where they end, and the wall clock there."""
        self._strip = LoadStrips(classes="panel chart")
        self._training, self._peers = Lines(classes="panel"), Lines(classes="panel")
        self._vram, self._trends = StackedChart(classes="panel"), Trends(classes="panel")
        self._memory = StackedChart(classes="panel chart")
        self._parts = LoadStrips(classes="panel")
        self._events = Lines(id="device-events", classes="panel")
        self._power = Trends(id="power", classes="panel")
        """That of the others, beside a GPU of which nothing is known."""
        self._broad = Horizontal(id="broad")
        self._rows = [Horizontal() for _ in range(len(CHARTS) // 2)]

    def compose(self) -> ComposeResult:
        for panel, title in (
            (self._cure, WHAT_TO_DO),
            (self._cure_above, WHAT_TO_DO),
            (self._load, "Load"),
            (self._state, "Now"),
            (self._health, "Health"),
            (self._users, "Processes"),
            (self._users_below, "Processes"),
            (self._training, "The training here"),
            (self._peers, "Compared with the other GPUs"),
            (self._facts, "Identity"),
        ):
            panel.border_title = title
        yield self.head
        yield self._cure_above
        with Horizontal(id="columns"):
            with VerticalScroll(id="left", can_focus=False):
                yield self._cure
                yield self._load
                yield self._state
                yield self._training
                yield self._users_below
                yield self._health
                yield self._facts
                yield self._events
                yield self._power
            with Vertical(id="right"):
                yield self._users
                yield self._peers
                yield self._strip
                yield self._memory
                for at, row in enumerate(self._rows):
                    with row:
                        yield from self._charts[2 * at : 2 * at + 2]
                with self._broad:
                    yield self._vram
                    with Vertical():
                        yield self._parts
                        yield self._trends
        yield self.foot

    def _find_device(self) -> tuple[HostView | None, DeviceView | None]:
        host = self.session.host
        return host, by_key(host.devices, self._key) if host is not None else None

    def _show(self) -> None:
        width, height = self.terminal
        host, device = self._find_device()
        if host is None or device is None:
            self._missing("GPU")
            return
        self._show_cure(host, device)
        self._present(words.head(device))
        broad = width >= BROAD
        self.set_class(broad, "-broad")
        share = width // 3 if broad else width // 2 if self.wide else width
        cells = max(30, share - 5)
        glyphs = self._load.tokens.glyphs
        small = height < TALL
        state = judge(host, device, self.session.history)
        courses = {} if self.wide else self._courses(host, device)
        # that a device is lost stands in the finding: it has no readings, and no other state
        told = self._case is not None and mute(device) is not None
        self._load.display = self._state.display = not told
        self._load.show(
            load_lines(device, cells, 6 if small else 12, glyphs, state, courses, bool(host.badge))
        )
        set_title(self._load, "Load" if self.wide else "Load, now and over the last minute")
        set_title(self._state, "Then" if self.session.frozen_text() else "Now")
        history = self.session.history
        self._state.show(words.state_lines(host, device, cells, history, glyphs))
        self._health.show(words.health_lines(device, cells))
        users, below = self._users, self._users_below
        users.display, below.display = self.wide, not self.wide
        room = max(30, width - share - 5) if self.wide else cells
        rows = 4 if small else max(4, height // 6)
        roomy = broad and height >= BESIDE_ROWS
        (users if self.wide else below).show(words.process_lines(host, device, rows, room))
        training = training_here(host, device, cells, glyphs) if roomy else []
        self._training.display = bool(training)
        self._training.show(training)
        peers = peer_lines(host, device, room, glyphs, history) if roomy else []
        self._peers.display = bool(peers)
        self._peers.show(peers)
        self._facts.show(inventory_lines(host, device, cells))
        self._broad.display = self._events.display = roomy
        if roomy:
            self._show_events(host, device, cells)

    def _show_events(self, host: HostView, device: DeviceView, cells: int) -> None:
        """Show what happened to the device and to the job on it."""
        jobs = {job.key for job in host.jobs if device.id in job_devices(job)}
        past = self.session.frozen_view.past(host.key) is not None or self.session.replay
        journal = self.session.happened.on(host)
        found = [
            one
            for one in journal.of_job(None, host.wall_seconds if past else None)
            if one.job in jobs or device_of(one, host) is device
        ]
        set_title(self._events, "What happened here")
        rows = MOST_EVENTS if self._power.display else max(self._events.size.height, 2)
        glyphs, now = self._events.tokens.glyphs, host.wall_seconds
        self._events.show(event_lines(found, glyphs, rows, cells, now))

    def _courses(self, host: HostView, device: DeviceView) -> dict[str, str]:
        """Return the last minute of each part of the load, for a screen too small for charts."""
        now, glyphs = host.sampled_seconds or 0.0, self._load.tokens.glyphs
        bins, out = Bins.ending(now, WINDOWS[0], COURSE_CELLS), {}
        for _, column, _ in GAUGES:
            past = self.session.history(device.id, column, WINDOWS[0])
            loads = binned(past, bins, now)
            first = next((at for at, load in enumerate(loads) if load is not None), len(loads))
            out[column] = spark(loads[first:], COURSE_CELLS, 100.0, glyphs)
        return out

    def _show_cure(self, host: HostView, device: DeviceView) -> None:
        """Show what the doctor says of the device in its first rows, where that is a problem."""
        from ..doctor.cure import case_of, cure_lines

        doctor, (width, height) = self.session.doctor, self.terminal
        state = judge(host, device, self.session.history)
        self._case = case = case_of(doctor.cases, host, device, state)
        self._cure.display = case is not None and not self.wide
        self._cure_above.display = case is not None and self.wide
        if case is not None:
            row = (doctor.table or {}).get(case.finding.pitfall)
            panel = self._cure_above if self.wide else self._cure
            glyphs = panel.tokens.glyphs
            brief = height < TALL
            panel.show(cure_lines(case, host, device, row, glyphs, width - 5, brief))

    def _beside_rows(self) -> int:
        """Return the rows above the charts: processes, the training, and the other GPUs."""
        return self._users.rows + 2 + (self._peers.rows + 2 if self._peers.display else 0)

    def _cure_rows(self) -> int:
        """Return the rows that the cure takes above all else."""
        return self._cure_above.rows + 2 if self._cure_above.display else 0

    def key_states(self) -> Collection[str]:
        return ("finding",) if self._case is not None else ()

    def _place(self, rows: int, known: Sequence[int]) -> Sequence[tuple[LineChart, int]]:
        """Return the charts that have room, row by row, each with the number of its history.

        ``known`` are the numbers of the histories that say something, in their order.
        """
        side = 2 if self.terminal[0] >= BROAD else 1
        turned = [known[(self._chart + at) % len(known)] for at in range(len(known))]
        lines = max(min(rows // CHART_ROWS, len(self._rows) + 1), 1) if self.wide else 1
        # the lanes of the load take a line for themselves, and so does what holds the memory
        self._strip.display = load = LOAD_AT in turned[: lines * side]
        self._memory.display = memory = MEMORY_AT in turned[: (lines - load) * side + load]
        charts = [at for at in turned if at not in (LOAD_AT, MEMORY_AT)]
        charts = charts[: (lines - load - memory) * side]
        places = [chart for at, chart in enumerate(self._charts) if at % 2 < side]
        out = list(zip(places, charts, strict=False))
        for at, row in enumerate(self._rows):
            row.display = at * side < len(out)
        for chart in self._charts:
            chart.display = any(chart is one for one, _ in out)
        return out

    def _series(self, device: DeviceView, what: Chart) -> tuple[list[Series], float]:
        """Return the curves of a chart, and of how many seconds only the driver knew."""
        series, remembered = [], 0.0
        for token, (label, column) in zip(SERIES, what.columns, strict=False):
            past = self.session.history(device.id, column, WINDOWS[self._window])
            values = [None if v is None else v * what.scale for v in past.values]
            if any(v is not None for v in values):
                series.append(Series(label, token, past.seconds, values))
                remembered = max(remembered, seconds_before_look(past))
        return series, remembered

    def _draw(self) -> None:
        host, device = self._find_device()
        if not self.is_attached or host is None or device is None:
            return
        now, clock = host.sampled_seconds, clock_at(self.session, host)
        window = WINDOWS[self._window]
        window = shown_seconds(self.session, host, device, "used_bytes", window)
        drawn = [self._series(device, what) for what in CHARTS]
        known = [at for at, (series, _) in enumerate(drawn) if series]
        others = [one for one in host.devices if one is not device] if not known else []
        broad = self._broad.display
        if broad and others:
            window = shown_seconds(
                self.session, host, others[0], "used_bytes", WINDOWS[self._window]
            )
        self._span = window, now, clock
        self._vram.display = self._trends.display = not others
        self._power.display = bool(others) and broad
        self._events.styles.height = "auto" if self._power.display else "1fr"
        if broad and not others:
            self._draw_memory(self._vram, host, device, window, clock)
        rows = self.terminal[1] - 2 - self._cure_rows() - self._beside_rows()
        number_of = [] if broad else known or range(len(CHARTS))
        for chart, number in self._place(rows, number_of):
            what, (series, remembered) = CHARTS[number], drawn[number]
            set_title(chart, f"{what.title}, {window_text(window)}{source_text(remembered)}")
            chart.show(series, window, 0.0, top_of(what, device, series), now=now, clock=clock)
        if self._memory.display:
            self._draw_memory(self._memory, host, device, window, clock)
        self._draw_figures()

    def _draw_figures(self) -> None:
        host, device = self._find_device()
        if host is None or device is None:
            return
        if self._broad.display and not self._trends.display:
            self._draw_others(host, [one for one in host.devices if one is not device])
        elif self._broad.display:
            self._draw_trends(host, device)
            self._draw_strip(self._parts, host, device)
        elif self._strip.display:
            self._draw_strip(self._strip, host, device)

    def _draw_trends(self, host: HostView, device: DeviceView) -> None:
        """Draw each reading but the load and the memory in a line of its own."""
        window, end, clock = self._span
        drawn = [self._series(device, what) for what in CHARTS]
        trends = []
        for what, (series, _) in zip(CHARTS, drawn, strict=True):
            if what.title in (LOAD, MEMORY):
                continue
            for one in series:
                top = top_of(what, device, series)
                label = what.name if len(what.columns) == 1 else f"{what.name}, {one.label}"
                past = History(tuple(one.seconds), tuple(one.values))
                trends.append(Trend(label, what.token, past, what.say, top))
        remembered = max((seconds for _, seconds in drawn), default=0.0)
        set_title(self._trends, f"Last {window_text(window)}{source_text(remembered)}")
        self._trends.show(trends, window, end, clock)

    def _draw_others(self, host: HostView, others: Sequence[DeviceView]) -> None:
        """Draw the load and the power of the others beside a GPU of which nothing is known."""
        window, end, clock = self._span
        parts = parts_of(self._parts.size.height - AXIS_ROWS, len(others))
        lanes = gpu_lanes(self.session.history, host, others[:MOST_GPUS], window, parts)
        set_title(self._parts, f"Load of the other GPUs %, {window_text(window)}")
        self._parts.show(lanes, window, end, clock)
        trends = [*power_trends(self.session, others, None, window, MOST_GPUS, True)]
        set_title(self._power, f"Power of the other GPUs, {window_text(window)}")
        self._power.show(trends, window, end, clock)

    def _draw_memory(
        self,
        chart: StackedChart,
        host: HostView,
        device: DeviceView,
        window: float,
        clock: float | None,
    ) -> None:
        """Draw what holds the memory, on an axis that ends near the most of it."""
        layers, moments = device_layers(self.session.history, host, device, window)
        total, now = device.definition.total_bytes, host.sampled_seconds
        title = f"Memory over {window_text(window)}"
        chart.show(
            layers, moments, window, float(total) if total else None, now, title, clock=clock
        )

    def _draw_strip(self, strip: LoadStrips, host: HostView, device: DeviceView) -> None:
        """Draw each load in a lane of its own."""
        window, end, clock = self._span
        wasted, silent = hung_since(host, device), mute(device)
        begins = job_begins(host, device, self.session.history, window)
        lanes = [
            Lane(
                label,
                self.session.history(device.id, column, window),
                wasted_since=wasted,
                alarm=silent.word if silent is not None else "",
                begins=begins,
            )
            for label, column in (STRIP if self.terminal[0] >= BROAD else LOADS)
        ]
        lanes = [lane for lane in lanes if any(v is not None for v in lane.history.values)]
        remembered = max((seconds_before_look(lane.history) for lane in lanes), default=0.0)
        title = f"Load %, {window_text(window)}"
        set_title(strip, f"{title}{source_text(remembered)}")
        strip.show(lanes, window, end, clock)

    # ── keys ──

    def action_chart(self, by: int) -> None:
        """Show the next history, if not all are on the screen."""
        if self._broad.display:
            self.tell("every history is on the screen already")
        else:
            super().action_chart(by)

    def action_device(self, by: int) -> None:
        """Show the next GPU of the host."""
        host, device = self._find_device()
        if host is None or not host.devices:
            return
        at = host.devices.index(device) if device is not None else 0
        self._key = host.devices[(at + by) % len(host.devices)].key
        self.session.selection.choose(self._key)
        self.moved()

    def _blamed(self) -> tuple[TrainerView | None, int | None]:
        """Return the trainer and the process that the finding is about.

        Where it names none, it is the only process on the device.
        """
        host, device = self._find_device()
        if host is None or device is None or self._case is None:
            return None, None
        pids = [one.definition.pid for one in processes_on(host, device)]
        pid = self._case.pid or (pids[0] if len(pids) == 1 else None)
        running = (t for t in host.trainers if t.definition.pid == pid and t.gone is None)
        return next(running, None), pid

    def action_copy(self) -> None:
        """Copy the marked step of the fix."""
        from ...doctor.steps import marked_step, paste_of, steps_of
        from ..terminal.copying import copy_text

        host = self.session.host
        if self._case is None or host is None:
            return
        finding, replayed = self._case.finding, bool(host.badge)
        number = marked_step(finding, replayed)
        if number is None:
            self.tell("not copied: this fix has no command that runs unchanged")
            return
        text = paste_of(steps_of(finding, replayed)[number])
        copy_text(self.app, self.session.notices.say, text + "\n")
        self._update()

    def action_doctor(self) -> None:
        """Open the Doctor with the cursor on this finding."""
        case = self._case
        if case is not None:
            program(self.app).carry_out("doctor")
            self.app.call_later(self._choose, str(case.number))

    def _choose(self, key: str) -> None:
        for pane in self.app.query("DoctorPane"):
            pane.choose_row(key)  # type: ignore[attr-defined]

    def action_stacks(self) -> None:
        """Show the stacks of the trainer that the finding is about."""
        trainer, _ = self._blamed()
        if self._case is not None and not self.refused(self.session, "stacks"):
            open_act(program(self.app), "stacks", trainer)

    def action_signal(self) -> None:
        """Ask which signal to send to the process that the finding is about."""
        _, pid = self._blamed()
        if self._case is not None and not self.refused(self.session, "signal"):
            program(self.app).open("signal_to", pid)
            self._show()

    def action_holders(self) -> None:
        """Show who has the device open, by the open files of all processes."""
        _, device = self._find_device()
        if device is not None and not self.refused(self.session, "holders"):
            program(self.app).open("holders", device)
