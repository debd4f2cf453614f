"""Tab 1: jobs, devices, load and memory at a glance.

What makes rows of a host is imported with the first host: the first frame does not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal

from ...text import styled
from ...text.styled import Line
from ...text.units import window_text
from ...wire.frames import NOT_INITIALISED
from ..shell.session import Session
from ..shell.state import SORTS
from ..widgets.pane import WAITING, Pane, set_title
from ..widgets.program import program
from ..widgets.status import short_script
from ..widgets.table import Column, LiveTable
from ..widgets.text import Lines
from .job_list import JobList

if TYPE_CHECKING:
    from ...store.view import DeviceView, HostView, TrainerView
    from ..charts.line import LineChart
    from ..charts.stacked import StackedChart
    from .slurm import SlurmEnds

WINDOW_SECONDS = 60.0
CHART_ROWS, CHART_COLUMNS = 7, 76
"""The least room that charts are drawn in: rows left over by the lists, columns of the terminal."""
ROOMY_ROWS = 32
"""From so many rows on charts take room from a long list of jobs."""
SPLIT_COLUMNS = 100
"""From so many columns on, in a roomy terminal, a job shows what its step is made of."""
TINY_ROWS = 20
TOP_FINDINGS = 3
"""Lines for what the doctor has found, on a roomy terminal; one on a small."""
NO_COLUMNS = (Column("text", "", 20, flex=1),)


class OverviewPane(Pane):
    """Jobs above, devices below, two charts where there is room."""

    DEFAULT_CSS = """
    OverviewPane #charts { height: 1fr; }
    OverviewPane #top-findings { display: none; padding: 0 2; }
    OverviewPane #charts > * { width: 1fr; height: 1fr; }
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._jobs = JobList(id="jobs", classes="panel")
        self._devices = LiveTable(NO_COLUMNS, empty=WAITING, gap=1, id="devices", classes="panel")
        self._findings = Lines(id="top-findings", classes="panel")
        self._charts: Horizontal | None = None
        self._line: LineChart | None = None
        self._right: StackedChart | LineChart | None = None
        self._settled = True
        """Whether it is known which list a user most likely wants."""
        self._terminal = (80, 24)
        self._nothing: list[Line] = []
        self._heights: tuple[int, int, bool] = (0, 0, False)
        self._found = 0
        self._window = WINDOW_SECONDS
        self._drawn: tuple[object, ...] = ()
        self._slurm: SlurmEnds | None = None

    def compose(self) -> ComposeResult:
        self._jobs.border_title, self._devices.border_title = "Jobs", "Devices"
        self._findings.border_title = "Findings"
        yield self._jobs
        yield self._devices
        yield self._findings

    # ── numbers ──

    def show(self, host: HostView | None) -> None:
        state = self.session.state
        if host is None:
            self._jobs.show([], [[(WAITING, "muted")]])
        else:
            from .device_rows import WORDS_CELLS, columns, device_row, legend, sort_devices
            from .empty_states import about_room, no_devices, problems
            from .job_rows import job_lines

            lines = job_lines(
                host, state.mine, state.filter, self._slurm_notes(host), self.session.history
            )
            extra = about_room(host, self.session.history) or self._why_empty(host, bool(lines))
            room = self._room() - 2
            above = styled.hang_lines(problems(host), room)
            self._jobs.show(lines, styled.hang_lines(extra, room), above)
            self._devices.show_columns(columns(state.sort) if host.devices else NO_COLUMNS)
            self._nothing = no_devices(host, self._room()) if not host.devices else []
            self._devices.show_empty(self._nothing or f"no device contains {state.filter!r}")
            tokens, words = self._devices.tokens, room >= WORDS_CELLS
            devices = sort_devices(host, state.sort, state.filter)
            self._devices.show(
                [
                    device_row(host, device, tokens, words, self.session.history)
                    for device in devices
                ]
            )
            self._devices.subtitle(legend(self._devices.tokens) if host.devices else ())
            if not self._settled and not self.typing:
                self.take_focus()
        self.show_findings()
        self._share_out(host)

    def _slurm_notes(self, host: HostView) -> dict[str, Line]:
        if self._slurm is None and host.jobs and not self.session.replay:
            from .slurm import SlurmEnds

            self._slurm = SlurmEnds(self.session)
        return self._slurm.notes(host) if self._slurm is not None else {}

    def show_findings(self) -> None:
        """The worst of what the doctor has found, a line each."""
        found = self.session.found
        if not any(found) and not self._found:
            return
        from ..doctor.text import top

        height = self._terminal[1]
        bare = height < ROOMY_ROWS
        rows = 0 if height < TINY_ROWS else 1 if bare else TOP_FINDINGS
        lines = top(self.session.doctor.cases, self._findings.tokens.glyphs, rows, bare)
        self._findings.show(lines)
        host = self.session.host
        looks_back = host is not None and self.session.standing.past(host.key) is not None
        set_title(
            self._findings,
            "Findings, as they were when the screen stopped" if looks_back else "Findings",
        )
        self._findings.set_class(not bare, "panel")
        taken = len(lines) + (2 if lines and not bare else 0)
        if taken != self._found:
            self._found = taken
            self._findings.display = taken > 0
            self._share_out(self.session.host)

    def _why_empty(self, host: HostView, lines: bool) -> list[Line]:
        failed = host.link.state == "ended" or "trying again" in host.link.text
        waiting = host.link.text if failed else WAITING
        text = waiting if host.sampled_seconds is None else "no trainer runs here"
        text = "no job matches" if self.session.state.filter or self.session.state.mine else text
        return [] if lines else [[(text, "muted")]]

    # ── room ──

    def fit_to(self, width: int, height: int) -> None:
        self._terminal = (width, height)
        self._jobs.roomy = width >= SPLIT_COLUMNS and height >= ROOMY_ROWS
        self._share_out(self.session.host)

    def _room(self) -> int:
        """Cells for a line of text inside a panel."""
        return max(20, self._terminal[0] - 6)

    def _share_out(self, host: HostView | None) -> None:
        """Give devices the height they need, jobs what is left, and charts the rest.

        Charts are shown only where both lists are satisfied.
        """
        width, height = self._terminal
        frame = 0 if height < TINY_ROWS else 2
        room = height - 3 - self._found
        devices = (
            len(host.devices) + 1 if host and host.devices else max(1, len(self._nothing))
        ) + frame
        jobs = self._jobs.wanted(width - 2 * frame, full=False) + frame
        charts = width >= CHART_COLUMNS and height >= TINY_ROWS and host is not None
        if charts and room - devices - jobs < CHART_ROWS:
            charts = height >= ROOMY_ROWS and room - devices - (5 + frame) >= CHART_ROWS
        full = self._jobs.wanted(width - 2 * frame, full=True) + frame
        in_full = full <= room - devices - (CHART_ROWS if charts else 0)
        self._jobs.tell_in_full(in_full)
        jobs = full if in_full else jobs
        jobs = max(
            min(jobs, room - devices - (CHART_ROWS if charts else 0)),
            0 if frame == 0 else min(jobs, 3),
        )
        devices = min(devices, room - jobs)
        if (jobs, devices, charts) != self._heights:
            self._heights = (jobs, devices, charts)
            self._jobs.display = jobs > 0
            self._jobs.styles.height = jobs
            self._devices.styles.height = devices if charts else "1fr"
            if charts and self._charts is None:
                self._charts = Horizontal(id="charts")
                self.mount(self._charts)
            if self._charts is not None:
                self._charts.display = charts
                self.call_after_refresh(self._draw_charts)

    def _draw_charts(self) -> None:
        host = self.session.host
        if host is not None:
            self.show_charts(host)

    # ── charts ──

    def show_charts(self, host: HostView) -> None:
        if self._charts is None or not self._charts.is_mounted or not self._charts.display:
            return
        from ..memory.timeline import column_of

        self._build_charts(self._charts, host)
        column = column_of(host.sampled_seconds, self._window)
        ago = column_of(self.session.ago_seconds, self._window)
        drawn = (
            column,
            ago,
            self._window,
            self._devices.cursor_key,
            self._right,
            self.size,
            self.app.theme,
        )
        if self._window > WINDOW_SECONDS and drawn == self._drawn:
            return
        self._drawn = drawn
        if host.devices:
            self._show_device_charts(host)
        else:
            self._show_host_charts(host)

    def _build_charts(self, charts: Horizontal, host: HostView) -> None:
        """Make the charts on the first use.

        plotext costs its import only where a chart has room.
        """
        from ..charts.line import LineChart
        from ..charts.stacked import StackedChart

        wanted = StackedChart if host.devices else LineChart
        if self._line is None:
            self._line = LineChart(id="load", classes="panel")
            charts.mount(self._line)
        if not isinstance(self._right, wanted):
            if self._right is not None:
                self._right.remove()
            empty = "no readings yet" if host.devices else "no trainer with a probe"
            self._right = wanted(empty=empty, classes="panel")
            charts.mount(self._right)

    def highlighted(self, host: HostView) -> DeviceView | None:
        """Return the device under the cursor."""
        key = self._devices.cursor_key
        return next(
            (d for d in host.devices if d.key == key), host.devices[0] if host.devices else None
        )

    def _show_device_charts(self, host: HostView) -> None:
        from ..charts.chart_series import average, device_layers, mean_load
        from ..charts.line import Series
        from ..charts.stacked import StackedChart

        device = self.highlighted(host)
        if device is None or self._line is None or not isinstance(self._right, StackedChart):
            return
        loads = {
            d.id: self.session.history(d.id, "utilization_percent", self._window)
            for d in host.devices
        }
        own = loads[device.id]
        series = [Series(f"GPU {device.definition.index}", "series1", own.seconds, own.values)]
        busy = [
            (a, d)
            for d in host.devices
            if d.id != device.id and (a := average(loads[d.id])) is not None and a >= 1
        ]
        if busy:
            _, worst = min(busy, key=lambda pair: pair[0])
            name = f"GPU {worst.definition.index}" + (
                " (least busy)" if len(host.devices) > 2 else ""
            )
            series.append(Series(name, "series2", loads[worst.id].seconds, loads[worst.id].values))
        if len(host.devices) > 2:
            mean = mean_load(self.session, host.devices, self._window)
            series.append(Series("mean", "other", mean.seconds, mean.values))
        set_title(self._line, f"Utilisation %{self._over}")
        ago = self.session.ago_seconds
        self._line.show(series, self._window, 0.0, 100.0, " %", now=host.sampled_seconds, ago=ago)
        layers, seconds = device_layers(self.session, host, device, self._window)
        total = device.definition.total_bytes
        title = f"VRAM of GPU {device.definition.index}{self._over}"
        top = float(total) if total else None
        self._right.show(
            layers, seconds, self._window, top, now=host.sampled_seconds, title=title, ago=ago
        )

    def _show_host_charts(self, host: HostView) -> None:
        from ..charts.line import LineChart, Series

        if self._line is None or not isinstance(self._right, LineChart):
            return
        load, ago = (
            self.session.history(host.id, "cpu_percent", self._window),
            self.session.ago_seconds,
        )
        set_title(self._line, f"CPU %, {host.definition.cpu_count or '?'} cores{self._over}")
        self._line.show(
            [Series("all cores", "series1", load.seconds, load.values)],
            self._window,
            0.0,
            100.0,
            " %",
            now=host.sampled_seconds,
            ago=ago,
        )
        tokens = ("series2", "series3", "series4", "series5")
        trainers = [t for t in host.trainers if t.gone is None][: len(tokens)]
        series = []
        for token, trainer in zip(tokens, trainers, strict=False):
            pace = self.session.history(trainer.id, "step_seconds", self._window)
            label = f"{short_script(trainer.definition.script)} ({trainer.definition.pid})"
            series.append(
                Series(
                    label,
                    token,
                    pace.seconds,
                    [None if v is None else v * 1000 for v in pace.values],
                )
            )
        set_title(self._right, f"Step, ms{self._over}")
        self._right.show(series, self._window, 0.0, None, "ms", now=host.sampled_seconds, ago=ago)

    # ── actions ──

    def take_focus(self) -> None:
        host = self.session.host
        deviceless = self._deviceless(host)
        self._settled = deviceless or (host is not None and bool(host.devices))
        self.focus_on(self._jobs if deviceless else self._devices)

    @staticmethod
    def _deviceless(host: HostView | None) -> bool:
        """Return whether it is known that there are no devices to look at."""
        return (
            host is not None
            and not host.devices
            and host.nvml is not None
            and host.nvml.code != NOT_INITIALISED
        )

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        self.session.device_key = event.key
        self._draw_charts()

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        program(self.app).open("device", event.key)

    def do_down(self) -> None:
        """Move the cursor of the list of jobs down; the table moves by itself."""
        self._jobs.move(1)

    def do_up(self) -> None:
        """Move the cursor of the list of jobs up; the table moves by itself."""
        self._jobs.move(-1)

    def do_next_pane(self) -> None:
        """Go from devices to jobs and back."""
        self._settled = True
        self.focus_on(self._devices if self._jobs.has_focus else self._jobs)

    def chosen(self, host: HostView) -> TrainerView | None:
        """The worst rank of the job under the cursor, or who is on the highlighted device."""
        line = self._jobs.current if self._jobs.has_focus else None
        trainer = next(
            (t for t in host.trainers if line and line.entity and t.key == line.entity.key), None
        )
        return trainer or super().chosen(host)

    def chosen_pid(self) -> int | None:
        """Return the process of the job under the cursor."""
        line = self._jobs.current
        pid = (
            getattr(getattr(line.entity, "definition", None), "pid", None)
            if line and line.entity
            else None
        )
        return pid if isinstance(pid, int) else None

    def do_open(self) -> None:
        """Open what the row under the cursor names.

        That is the ranks of a job, every reading of another row, or a GPU. Where the list that
        has the keyboard has no row yet, nothing is opened: what stands in the other list was
        not meant.
        """
        host = self.session.host
        if host is None:
            return
        if not self._jobs.has_focus:
            self._devices.action_select()
            return
        line = self._jobs.current
        if line is None:
            return
        if any(job.key == line.key and job.trainers for job in host.jobs):
            program(self.app).open("job", line.key)
        elif line.entity is not None:
            program(self.app).open("readings", line.entity.key)

    def do_zoom(self) -> None:
        """Charts over a longer time, as far as there is history."""
        self._zoom(1)

    def do_zoom_back(self) -> None:
        """Charts over a shorter time."""
        self._zoom(-1)

    def _zoom(self, by: int) -> None:
        from ..memory.timeline import longest_window, next_window

        host = self.session.host
        if host is None:
            return
        device = self.highlighted(host)
        entity, column = (
            (device.id, "utilization_percent") if device is not None else (host.id, "cpu_percent")
        )
        longest = longest_window(self.session.history(entity, column))
        self._window = next_window(self._window, longest, by)
        self.session.notices.say(
            f"chart window: {window_text(self._window)} (history so far: {window_text(longest)})"
        )
        self.show_charts(host)

    @property
    def _over(self) -> str:
        """The end of a title that names the time charts show, where it is not the usual one."""

        return f", {window_text(self._window)}" if self._window != WINDOW_SECONDS else ""

    def _sort(self, by: int) -> None:
        self._sort_by(SORTS[(SORTS.index(self.session.state.sort) + by) % len(SORTS)])

    def on_live_table_header_clicked(self, event: LiveTable.HeaderClicked) -> None:
        """Sort by that column; a second click goes back to the order of the indices."""
        from .device_rows import SORT_COLUMNS

        event.stop()
        wanted = next((sort for sort, column in SORT_COLUMNS.items() if column == event.column), "")
        if wanted:
            self._sort_by(wanted if wanted != self.session.state.sort else "index")

    def _sort_by(self, sort: str) -> None:
        state = self.session.state
        state.sort = sort
        self.session.notices.say(f"devices sorted by {state.sort}")
        self.show(self.session.host)

    def do_sort_next(self) -> None:
        """The next column."""
        self._sort(1)

    def do_sort_previous(self) -> None:
        """The previous column."""
        self._sort(-1)
