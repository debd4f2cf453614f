"""This tab has a line for each of several hosts, the worst first.

One key looks at a host, another comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.app import ComposeResult

from ...store.view import LOCAL
from ...text import styled
from ...text.styled import Line
from ...text.units import window_text
from ...text.width import cells as text_cells
from ..background.finding_history import group_cases
from ..charts.load_strips import LoadStrips
from ..overview.finding_list import FindingList, go_to_finding
from ..overview.panel_rows import WIDE
from ..shared.host_text import host_lines
from ..shell.keymap import key_of
from ..shell.session import Session
from ..widgets.pane import WAITING, Pane, set_title
from ..widgets.program import program
from ..widgets.table import LiveTable, TableRow
from ..widgets.text import Lines
from .findings import Found, calm_lines, counted, finding_lines, key_of_word, says_the_same
from .lower import HostCharts
from .order import SORTS, title_of
from .room import CHART_ROWS, FRAME, Room, least_device_rows, most_device_rows, room_below
from .rows import (
    WIDE_COLUMNS,
    columns,
    host_row,
    totals_lines,
    with_figures,
    without_domain,
)
from .summary import HERE, Grade
from .watch import Fleet

if TYPE_CHECKING:
    from ...doctor.finding import Finding
    from ...store.view import HostView
    from .runs import Joined
    from .summary import HostSummary

TINY_ROWS, ROOMY_ROWS = 20, 32
LEAST_FOUND_ROWS = 3
"""The rows for what is wrong with a host where they have no frame."""
LOAD_FRAME, LEAST_LOAD_ROWS = 4, 6
"""The rows of the frame and the axis of the load of all hosts, and the least with two lanes."""
HIGH_LANE_ROWS = 3
"""The rows of the mean of a host with a free one."""
AROUND_ROWS = 3
"""The rows that the status line, the tabs and the footer take."""


class FleetPane(Pane):
    """Totals above, the hosts, and what is wrong with the one under the cursor.

    Its devices are listed where the hosts leave rows for them. A wide terminal also has the jobs
    of all hosts, and charts of the host under the cursor.
    """

    DEFAULT_CSS = """
    FleetPane #fleet-totals { padding: 0 2; }
    FleetPane #fleet-hosts { height: 1fr; }
    FleetPane #fleet-findings { padding: 0 1; }
    FleetPane #fleet-unread, FleetPane #fleet-lower { height: 1fr; }
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._fleet = Fleet(
            lambda: session.known,
            lambda: session.frozen_view.frozen,
            left=lambda key: session.doctor.left_here if key == LOCAL else (),
            sent=session.happened.stopped,
        )
        session.fleet_heard = self._fleet.heard
        self._totals = Lines([[(WAITING, "muted")]], id="fleet-totals")
        self._hosts = LiveTable(
            columns("worst"), empty=WAITING, gap=1, wraps="worst", id="fleet-hosts", classes="panel"
        )
        self._found = FindingList(id="fleet-findings")
        self._devices = LiveTable(
            (), empty="", cursor=False, gap=1, id="fleet-devices", classes="panel"
        )
        self._jobs = LiveTable(
            (), empty="no job runs", cursor=False, gap=1, id="fleet-jobs", classes="panel"
        )
        self._unread = Lines(classes="panel", id="fleet-unread")
        self._loads = LoadStrips(classes="panel", id="fleet-loads")
        """The GPUs of all hosts, where the one under the cursor has sent nothing."""
        self._lower = HostCharts(session, self._fleet.history_of, self._more, id="fleet-lower")
        self._chart_rows = 0
        """The rows of the charts with their frame, 0 if there are no charts."""
        self._terminal = (80, 24)
        self._rows: dict[tuple[str, int], tuple[HostSummary, object, object, TableRow]] = {}
        self._names: dict[str, str] = {}
        """By key, as they stand in the table."""
        self._shown: dict[str, HostSummary] = {}
        self._begun: str | None = None
        """The key of the host on which the cursor was placed."""
        self._in_findings = False
        """Whether the keyboard was last with what is wrong, not with the hosts."""
        self._follows = True
        """Whether the cursor goes to the worst host: until a user moves it, sorts, or opens one."""

    def compose(self) -> ComposeResult:
        self._hosts.border_title = "Hosts"
        yield self._totals
        yield self._hosts
        yield self._found
        self._devices.display = self._jobs.display = self._unread.display = False
        self._lower.display = self._loads.display = False
        self._jobs.border_title = "Jobs"
        yield self._jobs
        yield self._devices
        yield self._lower
        yield self._loads
        yield self._unread

    # ── numbers ──

    def show(self, host: HostView | None) -> None:
        fleet, state, filtered = self._fleet, self.session.state, self.session.fleet_filter
        fleet.look()
        shown = fleet.shown(state.mine, filtered)
        self._shown = {one.key: one for one in shown}
        short = without_domain(one.name for one in fleet.all)
        self._names = {one.key: short.get(one.name, one.name) for one in shown}
        longest = max(map(text_cells, (*short.values(), *self._names.values())), default=0)
        mine = " with a job of yours" if state.mine else ""
        self._hosts.show_empty(
            f"no host{mine} contains {filtered!r}" if filtered or mine else WAITING
        )
        rows = [self._row(one) for one in shown]
        link, worst, job = (
            max((styled.cells(list(row.cells.get(key, ()))) for row in rows), default=0)  # type: ignore[arg-type]
            for key in ("state", "worst", "job")
        )
        devices = max((one.devices for one in shown), default=0)
        found = columns(fleet.sort, self._terminal[0], longest, link, worst, job, devices)
        self._hosts.show_columns(with_figures(found, rows))
        room = self._hosts.width_of("worst")
        self._hosts.show([self._row(one, room) for one in shown])
        self._name_hosts(len(shown))
        fleet.visible = frozenset(row.key for row in self._hosts.on_screen)
        self._place_cursor(shown)
        totals = fleet.totals()
        totals = replace(
            totals,
            room=tuple((short.get(name, name), free, size) for name, free, size in totals.room),
        )
        lines = totals_lines(totals, len(shown), self._terminal[0] - 4, self._hosts.tokens)
        self._totals.show(lines[: self._totals_rows()])
        self._show_detail()
        self.call_later(self._judge)

    def _place_cursor(self, shown: Sequence[HostSummary]) -> None:
        """Keep the cursor on the worst host that answers, until a user does anything about it.

        There is nothing to see of a host that cannot be reached, and no host in order is left for
        one that idles.
        """
        moved = self._begun is not None and self._hosts.cursor_key != self._begun
        self._follows = self._follows and not moved and self._fleet.sort == "worst"
        if not shown or not self._follows:
            return
        best = next((one for one in shown if one.current and one.answered), shown[0])
        here = next((one for one in shown if one.key == self._begun and one.answered), None)
        if here is None or best.grade < min(here.grade, Grade.IDLE):
            self._begun = best.key
            self._hosts.move_to(best.key)
            self.session.look_at(best.key)  # the cursor may have stood there before, unasked

    def _judge(self) -> None:
        """Apply the doctor's rules to the hosts whose turn it is, after the picture was drawn."""
        doctor = self.session.doctor
        doctor.begin()
        if doctor.table is not None and self.is_mounted and self.session.paused_seconds is None:
            self._fleet.judge(doctor.table)

    def _name_hosts(self, shown: int) -> None:
        """Say how many hosts there are, in which order, and how old what they say is."""
        fleet, session = self._fleet, self.session
        age = fleet.oldest_seconds() if session.paused_seconds is None else None
        passed = f" with {session.fleet_filter!r}" if session.fleet_filter else ""
        passed += " with a job of yours" if session.state.mine else ""
        set_title(self._hosts, title_of(shown, len(fleet.all), passed, fleet.sort, age))

    def _row(self, one: HostSummary, room: int = 0) -> TableRow:
        """Return the line of a host; the one before where nothing of it changed.

        The worst of what is wrong has ``room`` for so many cells.
        """
        tokens, name = self._hosts.tokens, self._names.get(one.key, one.name)
        missing = HERE if one.current else self._fleet.missing(one)
        retry = None if missing.retry is None else round(missing.retry)
        narrow = self._terminal[0] < WIDE_COLUMNS
        shown = name, int(missing.seconds), retry, narrow
        known = self._rows.get((one.key, room))
        if known is None or known[:3] != (one, shown, tokens.key):
            row = host_row(one, tokens, name, missing, narrow, room)
            known = self._rows[one.key, room] = (one, shown, tokens.key, row)
        return known[3]

    def _show_detail(self) -> None:
        """Show what is wrong with the host under the cursor, and where rows are free what it has.

        The findings are always as high as those of any host: nothing may move with the cursor.
        """
        one = self._shown.get(self._hosts.cursor_key or "")
        height = self._terminal[1]
        frame = 2 if height >= ROOMY_ROWS else 0
        free = height - self._hosts_rows - self._totals_rows() - AROUND_ROWS
        least = LEAST_FOUND_ROWS if height >= TINY_ROWS else 0
        fits = free - frame - least >= least_device_rows(self._sizes)
        devices = most_device_rows(self._sizes) if fits else 0
        most = max(least, free - frame - devices)
        lines = [] if one is None else self._lines_of(one)
        needed = max((len(self._lines_of(each)) for each in self._shown.values()), default=0)
        calm = least and not devices and not frame  # nothing else stands here
        rows = most if calm else min(most, max(needed, 0 if frame else least))
        shown = rows > 0 and (bool(needed) or not frame)
        if not shown and self._found.has_focus:
            self.focus_on(self._hosts)
        self._found.display = shown
        self._show_devices(rows + frame if shown else 0)
        if shown and one is not None:
            if len(lines) < rows and not (frame and lines and one.answered):
                lines += self._calm_lines(one, rows - len(lines))
            if len(lines) > rows and rows and lines[rows - 1][0] == lines[rows][0]:
                lines[rows - 1][1].append((f" {self._hosts.tokens.glyphs.ellipsis}", "muted"))
            lines = lines[:rows]
            self._found.show_findings([*lines, *([("", [])] * (rows - len(lines)))])
            self._name_findings(one)

    def _calm_lines(self, one: HostSummary, rows: int) -> list[Found]:
        """Return what ``rows`` have room for besides what is wrong with a host."""
        if self._unread.display:
            return []  # it has what the host needs
        lines, host = calm_lines(one, tokens := self._hosts.tokens), self._fleet.host(one.key)
        if host is not None and one.answered:
            past, cells = self._fleet.history_of(host), self._terminal[0] - 8
            load = host_lines(host, past, cells, tokens.glyphs)
            if len(lines) + len(load) < rows:
                lines += [("", []), *(("", [("  ", "text"), *line]) for line in load)]
        return lines

    def _name_findings(self, one: HostSummary) -> None:
        count = counted(one, self._fleet.told(one), self._found.keys)
        there = "" if self._found.has_focus else f"{key_of('next_pane')}, "
        opens = f" · {there}{key_of('open')}: the finding in full" if self._found.current else ""
        title = f"Wrong on {one.name} ({count}){opens}" if count else f"{one.name}: no trouble"
        set_title(self._found, title)

    def _lines_of(self, one: HostSummary) -> list[Found]:
        missing = HERE if one.current else self._fleet.missing(one)
        cells = max(20, self._terminal[0] - 6)
        return finding_lines(one, missing, cells, self._hosts.tokens, self._fleet.told(one))

    @property
    def _hosts_rows(self) -> int:
        return max(len(self._shown), 1) + FRAME

    @property
    def _sizes(self) -> list[int]:
        """The number of GPUs of each host."""
        return [one.devices for one in self._shown.values()]

    def _show_devices(self, taken: int) -> None:
        """List GPUs in the rows that the hosts do not need, which have ``taken`` for findings.

        Where there is still room, there are the jobs of all hosts and charts of one.
        """
        from .runs import joined

        width, height = self._terminal
        wide = width >= WIDE_COLUMNS
        free = height - self._hosts_rows - self._totals_rows() - AROUND_ROWS - taken
        lists = room_below(free, self._sizes, 1, wide).jobs  # else nobody works them out
        listed = [one for one in self._shown.values() if one.current and lists]
        jobs = joined([(self._names[one.key], one.runs()) for one in listed])
        room = room_below(free, self._sizes, len(jobs), wide) if self._shown else Room()
        one = self._shown.get(self._hosts.cursor_key or "")
        lower = room.devices or (not any(self._sizes) and free >= CHART_ROWS)
        whole = room.several and room.devices >= sum(self._sizes) + FRAME
        unread = one is not None and not one.answered and bool(room.charts if whole else lower)
        self._unread.display, self._loads.display = unread, False
        self._devices.display = bool(room.devices) and (whole or not unread)
        self._show_jobs(jobs, room)
        if unread and one is not None:
            loads = 0 if whole or not room.charts else room.devices + room.charts
            self._show_unread(one, loads)
        if self._devices.display:
            self._show_gpus(room, whole)

    def _show_gpus(self, room: Room, whole: bool) -> None:
        """List the GPUs of the host under the cursor, before those of the others if there is room.

        Where all have room, hosts keep their order.
        """
        from .devices import device_table

        host = self.session.host
        if host is None:
            return
        hosts = [(self._names.get(host.key, host.name), host)]
        if room.several:
            known = ((self._names[key], self._fleet.host(key)) for key in self._shown)
            found = [(name, one) for name, one in known if one is not None and one.devices]
            hosts = found if whole else sorted(found, key=lambda each: each[1].key != host.key)
        tokens, width = self._devices.tokens, self._terminal[0]
        placed, rows = device_table(hosts, self._fleet.history_of, tokens, width)
        shown = room.devices - FRAME
        part = f", {shown} of {len(rows)}" if shown < len(rows) else ""
        current = host.link.state in ("live", "replay")
        seen = "" if current else ", as last seen"
        of = f" of {host.name}{seen}{', and of the next hosts' * room.several}{part}"
        set_title(self._devices, f"GPUs{' of all hosts' if whole else of}")
        self._devices.show_empty(WAITING if current else "none known")
        self._devices.styles.height = room.devices
        if not rows:  # no heading above nothing
            self._devices.show(rows)
        self._devices.show_columns(placed)
        self._devices.show(rows)

    def _show_unread(self, one: HostSummary, rows: int) -> None:
        """Show what a host needs to be read, and in what is left of ``rows`` the GPUs of all."""
        from .unread_text import lanes_of_hosts, unread_lines

        set_title(self._unread, f"{self._names[one.key]}: no reading yet")
        others, glyphs = list(self._shown.values()), self._unread.tokens.glyphs
        cells = max(40, self._terminal[0] - 6)
        lines = unread_lines(one, others, self._names, glyphs, cells)
        self._unread.show(lines)
        left = rows - len(lines) - 2
        if left < LEAST_LOAD_ROWS:
            return
        named = [
            (self._names[each.key], host)
            for each in others
            if each.current and (host := self._fleet.host(each.key)) is not None
        ]
        window = max((self._lower.window(host) for _, host in named), default=0.0)
        lanes = lanes_of_hosts(named, self._fleet.history_of, window, left - LOAD_FRAME)
        if not lanes:
            return
        groups = sum(lane.first for lane in lanes[1:])
        self._loads.display, self._loads.may_be_high = True, not groups
        high = len(lanes) + groups if groups else HIGH_LANE_ROWS * len(lanes)
        self._loads.styles.height = min(left, high + LOAD_FRAME)
        of_hosts = "of all hosts" if groups else "of each host, mean of its GPUs"
        set_title(
            self._loads,
            f"GPU utilisation {of_hosts}, {window_text(window)}",
        )
        self._loads.show(lanes, window, 0.0)

    def _show_jobs(self, jobs: Sequence[Joined], room: Room) -> None:
        """List the jobs of all hosts, and give the hosts the lines that the charts can spare."""
        from .runs import columns as job_columns
        from .runs import row_of

        self._jobs.display = room.jobs > 0
        # the hosts have what is left, which is nothing where there are charts
        longer = min(self._hosts.longer_rows(), max(room.charts - CHART_ROWS, 0))
        self._chart_rows = room.charts and room.charts - longer
        self._hosts.styles.height = self._hosts_rows + longer if room.charts else "1fr"
        if room.jobs:
            shown = room.jobs - FRAME
            part = f"{shown} of {len(jobs)}" if shown < len(jobs) else f"{len(jobs)}"
            set_title(self._jobs, f"Jobs ({part}), the worst first")
            self._jobs.styles.height = room.jobs
            found = [row_of(one, self._jobs.tokens.glyphs) for one in jobs]
            self._jobs.show_columns(job_columns(found))
            self._jobs.show(found)
        self._lower.display = self._chart_rows > 0 and not self._unread.display

    def show_charts(self, host: HostView) -> None:
        """Draw the host under the cursor over its recorded time, and what is found there."""
        if self._lower.display and self._devices.is_attached:
            self._lower.draw(host, self._chart_rows, self._terminal[0] >= WIDE)

    def show_figures(self, host: HostView) -> None:
        self._lower.show_figures(host)

    def _more(self, host: HostView, cells: int, rows: int) -> list[Line]:
        """Return why the finding under the cursor holds, and what runs on its host."""
        from .host_brief import brief_lines

        one = self._shown.get(host.key)
        if one is None:
            return []
        chosen = self._finding(one, self._found.current)
        found = list(dict.fromkeys(filter(None, (chosen, *self._fleet.findings(host.key)))))
        past, tokens = self.session.history, self._hosts.tokens
        return brief_lines(host, one, found, past, tokens, cells, rows)

    def _finding(self, one: HostSummary, key: str) -> Finding | None:
        """Return the finding with this key, None where the Doctor has none behind the words."""
        told = self._fleet.told(one)
        return next(
            (told[word].finding for word in told if key and key_of_word(word, told) == key), None
        )

    # ── room ──

    def fit_to(self, width: int, height: int) -> None:
        self._terminal = (width, height)
        self._found.set_class(height >= ROOMY_ROWS, "panel")

    def _totals_rows(self) -> int:
        return 1 if self._terminal[1] < TINY_ROWS else 2

    # ── actions ──

    def take_focus(self) -> None:
        back = self._in_findings and self._found.display
        self.focus_on(self._found if back else self._hosts)

    def on_descendant_focus(self) -> None:
        """Say what Enter opens now."""
        if (one := self._shown.get(self._hosts.cursor_key or "")) is not None:
            self._name_findings(one)

    def do_next_pane(self) -> None:
        """Go from the hosts to what is wrong with one of them, and back."""
        here = self._found.has_focus
        if not here and not (self._found.display and self._found.current):
            self.session.notices.hint("this host has no finding to go to")
            return
        self._in_findings = not here
        self.take_focus()

    def do_move(self, by: int) -> None:
        """Move the cursor of the findings; the table of hosts moves by itself."""
        self._found.move(by)
        if (host := self.session.host) is not None:
            self._lower.tell(host)

    async def on_finding_list_opened(self, event: FindingList.Opened) -> None:
        """Go to the finding in the Doctor of its host."""
        event.stop()
        one = self._shown.get(self._hosts.cursor_key or "")
        if one is None:
            return
        self._follows, self._in_findings = False, True
        finding = self._finding(one, event.key)
        cases = group_cases(self.session.doctor.cases)
        key = next(
            (
                group.key
                for group in cases
                if finding and says_the_same(group.first.finding, finding)
            ),
            "",
        )
        await go_to_finding(self, key)

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        """Select the host under the cursor for the other tabs."""
        event.stop()
        if event.key is not None and self._begun is not None:
            self.session.look_at(event.key)
            self._show_detail()
            self.call_later(self._lower.draw_again)

    async def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        await self.do_open()

    async def do_open(self) -> None:
        """Open the Overview of the host under the cursor, or the finding."""
        if self._found.has_focus:
            self._found.open()
            return
        key = self._hosts.cursor_key
        if key is not None:
            self._follows = self._in_findings = False
            self.session.look_at(key)
            await program(self.app).action_do("overview")

    def do_host(self, by: int) -> None:
        """Move to the next line or the one before, which selects its host."""
        self._hosts.action_move(by)

    def do_sort(self, by: int) -> None:
        """Sort by the next column, or by the one before."""
        self.session.notices.say(f"hosts sorted {SORTS[self._fleet.sort_by(by)]}")
        self.show(self.session.host)

    def on_live_table_header_clicked(self, event: LiveTable.HeaderClicked) -> None:
        """Sort by the clicked column; a second click puts the worst host first again."""
        from .rows import SORT_TITLES

        event.stop()
        wanted = next(
            (sort for sort, (column, _) in SORT_TITLES.items() if column == event.column), ""
        )
        fleet = self._fleet
        if wanted:
            fleet.sort = wanted if wanted != fleet.sort else "worst"
            self.do_sort(0)
