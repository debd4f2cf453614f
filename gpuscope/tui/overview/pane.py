"""Tab 1: jobs, devices, load and memory at a glance.

What makes rows of a host is imported with the first host: the first frame does not wait for it.
"""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.widget import Widget

from ...store.view import by_key
from ...text import styled
from ...text.styled import Line
from ...text.units import window_text
from ..background.view_state import PROCESS_SORTS, SORTS
from ..shell.frozen_view import first_trainer_text
from ..shell.keymap import key_of
from ..shell.selection import on_device
from ..shell.session import Session
from ..widgets.pane import WAITING, Pane, set_title
from ..widgets.program import program
from ..widgets.table import Column, LiveTable
from .cursors import begin, choose_job, keep_up, open_line, opens, rank_at_cursor
from .finding_list import FindingList, go_to_finding, worst_is_of_job, worst_lines
from .foot import Foot
from .job_list import JobList
from .panel_rows import ROOMY_ROWS, SPLIT_COLUMNS, TINY_ROWS, WIDE, Given, Needs, share_out
from .quiet import Quiet, QuietPanels, deviceless

if TYPE_CHECKING:
    from ...store.view import DeviceView, HostView, TrainerView
    from .charts import Charts
    from .process_panel import ProcessPanel
    from .slurm import SlurmEnds
    from .sparklines import LoadSparks

TOP_FINDINGS = 3
"""Lines for what the doctor has found, on a roomy terminal; one on a small."""
NO_COLUMNS = (Column("text", "", 20, flex=1),)


class OverviewPane(Pane):
    """Jobs above, devices below, charts where there is room, and processes where there is more."""

    DEFAULT_CSS = """
    OverviewPane #top-findings { display: none; padding: 0 1; }
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._jobs = JobList(id="jobs", classes="panel")
        self._devices = LiveTable(NO_COLUMNS, empty=WAITING, gap=1, id="devices", classes="panel")
        self._findings = FindingList(id="top-findings", classes="panel")
        self._foot = Foot(session, id="foot")
        self._quiet = Quiet()
        self._quiet_panels: QuietPanels | None = None
        self._charts: Charts | None = None
        self._settled = True
        """Whether it is known which list a user most likely wants."""
        self._left_from: Widget | None = None
        """The list that had the keyboard last."""
        self._offered: Widget | None = None
        """The list that got the keyboard without having been asked for."""
        self._moved = False
        """Whether the user has gone somewhere: no alarm takes the keyboard from there."""
        self._shown = False
        """Whether the lists have rows of a host."""
        self._terminal = (80, 24)
        self._nothing: list[Line] = []
        self._given: Given | None = None
        self._kinds: list[tuple[str, ...]] = []
        self._load_is_charted = False
        """Whether charts show the load of every GPU: a row need not show it as well."""
        self._found = self._steps = 0
        self._told: tuple[object, ...] = (None, None, None)
        self._slurm: SlurmEnds | None = None
        self._sparks: LoadSparks | None = None

    def compose(self) -> ComposeResult:
        yield self._jobs
        yield self._devices
        yield self._findings
        yield self._foot
        self._name_panels()

    # ── numbers ──

    def show(self, host: HostView | None) -> None:
        state = self.session.state
        if host is None:
            self._jobs.show([], [[(WAITING, "muted")]])
        else:
            from ..shared.job_notes import marks_of
            from ..shared.job_rows import job_lines
            from .empty_states import about_room, no_devices, problems, why_empty

            history, stopped = self.session.history, self.session.happened.stopped
            notes, marks = self._notes(host), marks_of(host, self.session.doctor.cases)
            lines = job_lines(host, state.mine, state.filter, notes, history, stopped, marks)
            more = self._given is not None and self._given.quiet > 0
            extra = about_room(host, history, more)
            if not host.trainers and (first := first_trainer_text(self.session.replay)):
                extra += [[("probe  ", "muted"), (f"in no training yet: {first}", "text")]]
            extra = extra or ([] if lines else why_empty(host, state))
            room = self._room()
            above = styled.hang_lines(problems(host, bool(state.filter)), room)
            self._jobs.show(lines, styled.hang_lines(extra, room), above)
            if not host.devices:
                wide = self._terminal[0] >= WIDE
                told = wide and self._given is not None and (more or self._given.foot > 0)
                self._nothing = no_devices(host, self._room(), not (more or told), not told)
            none = f"no GPU contains {state.filter!r}"
            self._devices.show_empty(none if host.devices else self._nothing)
            self._show_devices(host, room)
            self._shown = True
            alarm = not self._moved and keep_up(self._jobs, self._devices, host, self.session)
            if not self.typing and (alarm or not self._settled):
                self.take_focus()
            self._foot.show(host)
            if self._quiet_panels is not None:
                self._quiet_panels.show(host)
            if self._charts is not None and self._charts.display:
                self._charts.show_job(host)
        self.show_findings()
        self._share_out(host)
        self._name_panels()

    def _show_devices(self, host: HostView, room: int) -> None:
        from ..widgets.last_seen import as_last_seen
        from .device_rows import WORDS_CELLS, columns, device_row, legend, sort_devices
        from .sparklines import LoadSparks

        state, tokens, words = self.session.state, self._devices.tokens, room >= WORDS_CELLS
        silent = host.link.state in ("stale", "ended")
        sparks = None
        wide = self._terminal[0] >= WIDE
        if not self._load_is_charted and (wide or len(host.devices) > 1):
            sparks = self._sparks = self._sparks or LoadSparks()
        rows = []
        for device in sort_devices(host, state.sort, state.filter):
            spark = (
                sparks.of(host, device, self.session.history, tokens.glyphs)
                if sparks is not None
                else None
            )
            row = device_row(host, device, tokens, words, self.session.history, wide, spark)
            rows.append(as_last_seen(row) if silent else row)
        self._devices.show_columns(
            columns(state.sort, rows, room, wide) if host.devices else NO_COLUMNS
        )
        self._devices.show(rows)
        self._devices.subtitle(legend(host, tokens) if host.devices else ())

    @property
    def _processes(self) -> ProcessPanel | None:
        return self._foot.processes

    def _notes(self, host: HostView) -> dict[str, Line]:
        """Return what to do first about a job, or when Slurm ends it, by the job's key."""
        from ..shared.job_notes import first_steps
        from .panel_rows import spare_rows

        if self._slurm is None and host.jobs and not self.session.replay:
            from .slurm import SlurmEnds

            self._slurm = SlurmEnds(self.session)
        live, cases = not self.session.why_not("stacks"), self.session.doctor.cases
        devices = len(host.devices) + 1 if host.devices else max(1, len(self._nothing))
        bare = self._jobs.wanted(self._inside, full=False) - self._steps
        most = spare_rows(self._terminal[1], self._found, devices, bare) if bare > 0 else 0
        if self._found and worst_is_of_job(cases):  # else a lesser one has a fix
            most = None
        steps = first_steps(host, cases, live, most)
        self._steps = len(steps)
        return steps | (self._slurm.notes(host) if self._slurm is not None else {})

    def show_findings(self) -> None:
        """The worst of what the doctor has found, a line each."""
        found = self.session.found
        if not any(found) and not self._found:
            return
        state = (self.session.doctor.cases, self._findings.tokens.glyphs, self._terminal)
        if all(map(is_, state, self._told)):
            return
        self._told = state
        bare, host = not self._roomy, self.session.host
        rows = 0 if self._terminal[1] < TINY_ROWS else 1 if bare else TOP_FINDINGS
        lines = worst_lines(*state[:2], rows, host, found[2])
        self._findings.show_findings(lines)
        self._findings.set_class(not bare, "panel")
        taken = len(lines) + (2 if lines and not bare else 0)
        if taken != self._found:
            self._found = taken
            if not taken and self._findings.has_focus:
                self.focus_on(self._jobs)
            self._findings.display = taken > 0
            self._share_out(self.session.host)

    # ── room ──

    def fit_to(self, width: int, height: int) -> None:
        self._terminal = (width, height)
        self._jobs.roomy = width >= SPLIT_COLUMNS and height >= ROOMY_ROWS
        self._share_out(self.session.host)

    @property
    def _roomy(self) -> bool:
        return self._terminal[1] >= ROOMY_ROWS

    @property
    def _inside(self) -> int:
        """Cells of a panel inside its frame."""
        return self._terminal[0] - 2 * (0 if self._terminal[1] < TINY_ROWS else 2)

    def _room(self) -> int:
        """Cells for a line of text inside a panel, behind its gutter."""
        return max(20, self._terminal[0] - (4 if self._terminal[1] < TINY_ROWS else 6))

    def _share_out(self, host: HostView | None) -> None:
        """Give each list the height it needs, and charts what is left."""
        width, height = self._terminal
        quiet = self._quiet.rows(host, self.session.local)
        running = host is not None and any(one.gone is None for one in host.processes)
        wanted = Needs(
            jobs=self._jobs.wanted(self._inside, full=False),
            jobs_in_full=self._jobs.wanted(self._inside, full=True),
            devices=len(host.devices) + 1 if host and host.devices else max(1, len(self._nothing)),
            findings=self._found,
            processes=max(self._processes.count if self._processes is not None else 0, running),
            lanes=len(host.devices) if host and len(host.devices) > 1 and not quiet else 0,
            many_charts=host is not None and any(t.gone is None for t in host.trainers),
            has_host=host is not None and host.sampled_seconds is not None,
            quiet=quiet,
            alarmed=self._jobs.alarmed,
            jobs_folded=self._jobs.wanted_folded(self._inside),
        )
        given = share_out(wanted, width, height, charts=host is not None)
        self._jobs.tell_in_full(given.in_full)
        kinds: list[tuple[str, ...]] = []
        self._load_is_charted = False
        if given.charts and host is not None:
            from .charts import kinds_for, shows_load

            across, rows = 3 if width >= WIDE else 2, given.chart_rows
            kinds = kinds_for(host, rows, given.second, across, given.quiet > 0)
            self._load_is_charted = shows_load(kinds)
        self._foot.cpu_is_charted = any({"cpu", "trends"} & {*row} for row in kinds)
        if (given, kinds) == (self._given, self._kinds):
            return
        self._given, self._kinds = given, kinds
        self._jobs.display = given.jobs > 0
        self._jobs.styles.height = given.jobs
        self._devices.styles.height = given.devices if given.charts or given.foot else "1fr"
        self._show_or_hide_foot(given)
        if given.quiet and self._quiet_panels is None and self._foot.is_attached:
            self._quiet_panels = QuietPanels(self.session, id="quiet")
            self.mount(self._quiet_panels, after=self._findings)
        if self._quiet_panels is not None:
            self._quiet_panels.give(given.quiet, not given.foot and width >= WIDE)
        if kinds and self._charts is None and self._foot.is_attached:
            from .charts import Charts

            self._charts = Charts(self.session, self._draw_charts, id="charts")
            self.mount(self._charts, before=self._foot)
        if self._charts is not None:
            self._charts.display = given.charts
            self._charts.give(given.chart_rows, given.second, given.least_charts)
            self.call_after_refresh(self._draw_charts)

    def _show_or_hide_foot(self, given: Given) -> None:
        self._foot.give(given.foot, self._terminal[0], given.charts)
        if given.foot or given.quiet:  # their size is known after the next layout
            self.call_after_refresh(self.show, self.session.host)
        if not self._foot.lists_processes and self._processes and self._processes.has_focus:
            self.focus_on(self._jobs)

    def _draw_charts(self) -> None:
        if (host := self.session.host) is not None:
            self.show_charts(host)

    # ── charts ──

    def show_charts(self, host: HostView) -> None:
        if self._charts is None or not self._charts.is_mounted or not self._charts.display:
            return
        self._charts.choose(self._kinds)
        self._charts.job = line.key if (line := self._jobs.current) is not None else ""
        self._charts.order = self._jobs.keys
        self._charts.show(host, self.highlighted(host))

    def show_figures(self, host: HostView) -> None:
        if self._charts is not None and self._charts.is_mounted and self._charts.display:
            self._charts.show_figures(host, self.highlighted(host))

    def highlighted(self, host: HostView) -> DeviceView | None:
        """Return the device under the cursor."""
        key = self._devices.cursor_key
        return by_key(host.devices, key) or next(iter(host.devices), None)

    # ── actions ──

    def take_focus(self) -> None:
        """Begin on what is selected, else on the worst.

        That is a job that stands still, or a GPU that is lost or warns.
        """
        host = self.session.host
        nothing = deviceless(host)
        known = nothing or (host is not None and bool(host.devices))
        self._settled = known and self._shown
        was, on = self._left_from, ""
        if host is not None:
            on = begin(self._jobs, self._devices, host, self.session)
        here = was if on == "selected" else self._jobs if on == "jobs" else None
        only_jobs = nothing or (host is not None and bool(host.jobs) and not host.devices)
        self._offered = here or (self._jobs if only_jobs else self._devices)
        self.focus_on(self._offered)

    def on_job_list_moved(self, event: JobList.Moved) -> None:
        event.stop()
        self._moved = True
        if (host := self.session.host) is not None:
            choose_job(self._jobs, host, self.session)
        self._name_panels()

    def _name_panels(self) -> None:
        """Give the panels their titles; the one with the keyboard says what Enter opens."""
        host = self.session.host
        looks_back = host is not None and self.session.frozen_view.past(host.key) is not None
        findings = "Findings, as they were when the screen stopped" if looks_back else "Findings"
        for panel, name in self._panels():
            name = findings if panel is self._findings else name
            opens = self._opens(panel) if panel.has_focus else ""
            set_title(panel, f"{name} · {key_of('open')}: {opens}" if opens else name)

    def _panels(self) -> list[tuple[Widget, str]]:
        """The lists that can have the keyboard, in the order of Tab."""
        found: list[tuple[Widget, str]] = [(self._jobs, "Jobs"), (self._devices, "GPUs")]
        found.append((self._findings, "Findings"))
        return found + ([(self._processes, "Processes")] if self._processes is not None else [])

    def _opens(self, panel: Widget) -> str:
        """Return what Enter opens in a list, "" where it opens nothing."""
        host = self.session.host
        if host is None:
            return ""
        if panel is self._jobs:
            return opens(self._jobs, host)
        if panel is self._findings:
            return "the finding"
        if panel is self._processes:
            process = self._processes.chosen(host)
            return f"pid {process.definition.pid}" if process is not None else ""
        device = self.highlighted(host) if host.devices else None
        return f"GPU {device.definition.index}" if device is not None else ""

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self._left_from = event.widget
        self._moved = self._moved or event.widget is not self._offered
        self._name_panels()

    def on_descendant_blur(self, _: events.DescendantBlur) -> None:
        self._name_panels()

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        self._name_panels()
        if event.table is self._devices:
            self.session.selection.cursor_on(event.key, event.by_user)
            self._draw_charts()

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        if event.table is self._devices:
            self.session.selection.choose(event.key)
            program(self.app).open("device", event.key)
        else:
            self._open_process()

    def _open_process(self) -> None:
        host = self.session.host
        process = self._processes.chosen(host) if self._processes and host is not None else None
        if process is not None:
            program(self.app).open("process", process.key)

    async def on_finding_list_opened(self, event: FindingList.Opened) -> None:
        """Go to the Doctor, with the cursor on this finding."""
        event.stop()
        await go_to_finding(self, event.key)

    def do_move(self, by: int) -> None:
        """Move the cursor of the list of jobs or findings; a table moves by itself."""
        (self._findings if self._findings.has_focus else self._jobs).move(by)
        self._name_panels()

    def do_next_pane(self) -> None:
        """Go to the next list that is shown."""
        self._settled = self._moved = True
        shown = [
            panel
            for panel, _ in self._panels()
            if panel.display and (panel is not self._processes or self._foot.lists_processes)
        ]
        at = next((i for i, panel in enumerate(shown) if panel.has_focus), -1)
        self.focus_on(shown[(at + 1) % len(shown)])

    def chosen(self, host: HostView) -> TrainerView | None:
        """The worst rank of the job under the cursor, or who is on the highlighted device."""
        found = rank_at_cursor(self._jobs, host) if self._jobs.has_focus else None
        return found or on_device(host, self.highlighted(host)) or super().chosen(host)

    def chosen_pid(self) -> int | None:
        """Return the process under the cursor, or that of the job."""
        host = self.session.host
        if self._processes is not None and self._processes.has_focus and host is not None:
            process = self._processes.chosen(host)
            return process.definition.pid if process is not None else None
        line = self._jobs.current
        pid = (
            getattr(getattr(line.entity, "definition", None), "pid", None)
            if line and line.entity
            else None
        )
        return pid if isinstance(pid, int) else None

    def do_open(self) -> None:
        """Open what the row under the cursor names.

        That is the ranks of a job, every reading of another row, a GPU, a finding or a process.
        Where the list with the keyboard has no row yet, nothing is opened: the other list was not
        meant.
        """
        host = self.session.host
        if host is None:
            return
        self._moved = True
        if self._findings.has_focus:
            self._findings.open()
            return
        if not self._jobs.has_focus:
            focused = self._processes if self._processes and self._processes.has_focus else None
            (focused or self._devices).action_select()
            return
        open_line(self._jobs, host, self.session, program(self.app))
        self.show(host)

    def do_zoom_by(self, by: int) -> None:
        """Draw charts over a longer time, as far as there is history, or over a shorter one."""
        from ..memory.timeline import longest_window, next_window

        host = self.session.host
        if host is None:
            return
        device = self.highlighted(host)
        entity, column = (
            (device.id, "utilization_percent") if device is not None else (host.id, "cpu_percent")
        )
        known = [self.session.history(entity, column)]
        known += [self.session.history(t.id, "step_seconds") for t in host.trainers]
        longest = max(map(longest_window, known))
        if self._charts is None or not self._charts.display:
            self.session.notices.say("chart window: no chart has room here", "warn")
            return
        window = self._charts.window = next_window(self._charts.window, longest, by)
        self.session.notices.say(
            f"chart window: {window_text(window)} (history so far: {window_text(longest)})"
        )
        self.show_charts(host)

    def do_sort(self, by: int) -> None:
        """Sort by the next column, or by the one before."""
        self._sort_by(SORTS[(SORTS.index(self.session.state.sort) + by) % len(SORTS)])

    def on_live_table_header_clicked(self, event: LiveTable.HeaderClicked) -> None:
        """Sort by that column; a second click goes back to the order of the indices."""
        from .device_rows import SORT_COLUMNS

        event.stop()
        if event.table is self._processes:
            if event.column in PROCESS_SORTS:
                self.session.state.process_sort = event.column
                self._processes.sort_changed()
                self.show(self.session.host)
            return
        wanted = next((sort for sort, column in SORT_COLUMNS.items() if column == event.column), "")
        if wanted:
            self._sort_by(wanted if wanted != self.session.state.sort else "index")

    def _sort_by(self, sort: str) -> None:
        self.session.state.sort = sort
        self.session.notices.say(f"GPUs sorted by {sort}")
        self.show(self.session.host)
