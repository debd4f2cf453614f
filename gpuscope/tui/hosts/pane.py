"""This tab has a line for each of several hosts, the worst first.

One key looks at a host, another comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal

from ...store.view import LOCAL
from ...text import styled
from ...text.styled import Line
from ...text.units import window_text
from ...text.width import cells as text_cells
from ..charts.load_strips import LoadStrips
from ..overview.panel_rows import WIDE
from ..shared.windows import shortest_window
from ..shell.session import Session
from ..widgets.pane import WAITING, Pane, set_title
from ..widgets.program import program
from ..widgets.table import LiveTable, TableRow
from ..widgets.text import Lines
from .rows import (
    AWAY,
    WIDE_COLUMNS,
    columns,
    detail_lines,
    host_row,
    totals_lines,
    with_figures,
    without_domain,
)
from .summary import HERE, Grade
from .watch import Fleet

if TYPE_CHECKING:
    from ...store.view import HostView
    from ..overview.charts import Charts
    from .summary import HostSummary

TINY_ROWS, ROOMY_ROWS, CHART_ROWS = 20, 32, 9
DETAIL_ROWS, BARE_DETAIL_ROWS = 4, 3
MORE_CELLS = " · 3 more"
"""What follows the worst in the row of a host with which more is wrong."""
CHART_SECONDS = 4.0
"""The least time between two drawings of the selected host's charts."""
MOST_SECONDS = 600.0
"""These charts show what is recorded, up to this time."""
LEAST_DEVICE_ROWS = 4
"""The least rows of the table of devices: its frame, a heading and one device."""
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
    FleetPane #fleet-detail { padding: 0 2; }
    FleetPane #fleet-unread, FleetPane #fleet-lower { height: 1fr; }
    FleetPane #fleet-charts { width: 2fr; }
    FleetPane #fleet-brief { width: 1fr; height: 1fr; }
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
        self._detail = Lines(id="fleet-detail")
        self._devices = LiveTable(
            (), empty="", cursor=False, gap=1, id="fleet-devices", classes="panel"
        )
        self._jobs = LiveTable(
            (), empty="no job runs", cursor=False, gap=1, id="fleet-jobs", classes="panel"
        )
        self._unread = Lines(classes="panel", id="fleet-unread")
        self._loads = LoadStrips(classes="panel", id="fleet-loads")
        """The GPUs of all hosts, where the one under the cursor has sent nothing."""
        self._brief = Lines(classes="panel", id="fleet-brief")
        self._lower = Horizontal(self._brief, id="fleet-lower")
        """The charts of the host under the cursor, and what is found and runs there."""
        self._charts: Charts | None = None
        self._chart_rows = 0
        """The rows of the charts with their frame, 0 if there are no charts."""
        self._drawn: tuple[str, int, int] | None = None
        self._terminal = (80, 24)
        self._rows: dict[str, tuple[HostSummary, object, object, TableRow]] = {}
        self._names: dict[str, str] = {}
        """By key, as they stand in the table."""
        self._shown: dict[str, HostSummary] = {}
        self._begun: str | None = None
        """The key of the host on which the cursor was placed."""
        self._follows = True
        """Whether the cursor goes to the worst host: until a user moves it, sorts, or opens one."""

    def compose(self) -> ComposeResult:
        self._hosts.border_title = "Hosts"
        yield self._totals
        yield self._hosts
        yield self._detail
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
        states = [list(row.cells.get("state", ())) for row in rows]  # type: ignore[arg-type]
        link = max((styled.cells(state) for state in states), default=0)  # type: ignore[arg-type]
        worst = max((styled.cells(list(row.cells["worst"])) for row in rows), default=0)  # type: ignore[arg-type]
        job = max((styled.cells(list(row.cells.get("job", ()))) for row in rows), default=0)  # type: ignore[arg-type]
        widths = longest, link, worst, job
        found = columns(fleet.sort, self._terminal[0], *widths)
        self._hosts.show_columns(with_figures(found, rows))
        self._hosts.show(rows)
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

    def _row(self, one: HostSummary) -> TableRow:
        """Return the line of a host; the one before where nothing of it changed."""
        tokens, name = self._hosts.tokens, self._names.get(one.key, one.name)
        missing = HERE if one.current else self._fleet.missing(one)
        retry = None if missing.retry is None else round(missing.retry)
        narrow = self._terminal[0] < WIDE_COLUMNS
        shown = name, int(missing.seconds), retry, narrow
        known = self._rows.get(one.key)
        if known is None or known[:3] != (one, shown, tokens.key):
            row = host_row(one, tokens, name, missing, narrow)
            known = self._rows[one.key] = (one, shown, tokens.key, row)
        return known[3]

    def _show_detail(self) -> None:
        """Show the findings and the jobs of the host under the cursor."""
        one = self._shown.get(self._hosts.cursor_key or "")
        height = self._terminal[1]
        framed = height >= ROOMY_ROWS
        free = height - (len(self._shown) + 3 + self._totals_rows() + AROUND_ROWS)
        devices = self._most_device_rows() and free - BARE_DETAIL_ROWS >= self._least_device_rows()
        bare = BARE_DETAIL_ROWS if devices else max(BARE_DETAIL_ROWS, min(DETAIL_ROWS, free))
        rows = least = DETAIL_ROWS if framed else bare if height >= TINY_ROWS else 0
        if self._has_brief or (framed and all(map(self._row_says_all, self._shown.values()))):
            rows = 0
        if one is not None and rows:
            set_title(self._detail, one.name)
            spare = free - 2 * framed - (self._most_device_rows() if devices else 0)
            most = max(rows, spare)
            if framed or most > rows:  # as many as the host with most to say needs
                needed = (len(self._lines_of(each, most)) for each in self._shown.values())
                rows = max(max(needed, default=rows), 0 if framed else least)
        lines = self._lines_of(one, rows) if one is not None and rows else []
        self._detail.display = rows > 0
        # Always as high as it may become: the table must not change its height under the cursor.
        self._detail.show([*lines, *([[]] * (rows - len(lines)))])
        self._show_devices(rows + 2 if rows and framed else rows)

    @property
    def _has_brief(self) -> bool:
        """Whether there is room for the charts of a host, beside which all is said of it."""
        width, height = self._terminal
        needed = len(self._shown) + 3 + self._totals_rows() + AROUND_ROWS
        left = height - needed - self._most_device_rows()
        return width >= WIDE and left >= CHART_ROWS + LEAST_DEVICE_ROWS

    def _lines_of(self, one: HostSummary, rows: int) -> list[Line]:
        missing = HERE if one.current else self._fleet.missing(one)
        cells = max(20, self._terminal[0] - 6)
        said = self._terminal[1] >= ROOMY_ROWS and self._row_has_first(one)
        steps = self._fleet.steps(one)
        return list(detail_lines(one, missing, cells, rows, self._hosts.tokens, said, steps))

    def _row_has_first(self, one: HostSummary) -> bool:
        """Return whether the row of a host has the first thing that is wrong with it in full."""
        more = len(MORE_CELLS) if len(one.words) > 1 else 0
        room = self._hosts.width_of("worst") - more
        return one.state not in AWAY and bool(one.words) and text_cells(one.words[0].text) <= room

    def _row_says_all(self, one: HostSummary) -> bool:
        """Return whether there is nothing to say of a host that its row does not say."""
        known = not one.words or (len(one.words) == 1 and self._row_has_first(one))
        steps = self._fleet.steps(one)
        told = not any(word.text in steps for word in one.words)
        return known and told and one.state not in AWAY

    def _most_device_rows(self) -> int:
        """Return the rows of a table with the devices of the largest host, including its frame.

        They are 0 where no host has a device.
        """
        most = max((one.devices for one in self._shown.values()), default=0)
        return most + 3 if most else 0

    def _least_device_rows(self) -> int:
        return max(LEAST_DEVICE_ROWS, min(self._most_device_rows(), 7))

    def _show_devices(self, taken: int) -> None:
        """List the devices of the host under the cursor in the rows that the hosts do not need.

        How many these are depends on the largest host, so that nothing moves with the cursor.
        Where there is still room, there are the jobs of all hosts and charts of this one.
        """
        width, height = self._terminal
        needed = len(self._shown) + 3 + self._totals_rows() + AROUND_ROWS + taken
        most = self._most_device_rows()
        rows = min(height - needed, most)
        host = self.session.host
        shown = rows >= self._least_device_rows()
        rows = rows if shown else 0
        lower = shown or not most  # else the hosts themselves need all rows
        one = self._shown.get(self._hosts.cursor_key or "")
        roomy = shown or (not most and height - needed >= CHART_ROWS)
        unread = roomy and one is not None and not one.answered
        self._devices.display, self._unread.display = shown and not unread, unread
        self._loads.display = False
        self._show_jobs(height - needed - rows if lower and width >= WIDE_COLUMNS else 0)
        if unread and one is not None:
            self._show_unread(one, rows + self._chart_rows if self._chart_rows else 0)
        if not shown or unread or host is None:
            return
        from ..overview.device_rows import columns as device_columns
        from ..overview.device_rows import device_row
        from ..widgets.last_seen import as_last_seen

        self._devices.styles.height = rows
        history, tokens = self.session.history, self._devices.tokens
        current = host.link.state in ("live", "replay")
        found = [
            device_row(host, device, tokens, history=history, wide=width >= WIDE)
            for device in host.devices
            if device.gone is None
        ]
        part = f", {rows - 3} of {len(found)}" if rows - 3 < len(found) else ""
        seen = "" if current else ", as last seen"
        set_title(self._devices, f"GPUs of {host.name}{part}{seen}")
        self._devices.show_empty(WAITING if current else "none known")
        found = found if current else [as_last_seen(row) for row in found]
        wide = width >= WIDE
        if not found:  # no heading above nothing
            self._devices.show(found)
        self._devices.show_columns(device_columns("index", found, width - 6, wide) if found else ())
        self._devices.show(found)

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
        window = max((self._window(host) for _, host in named), default=0.0)
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

    def _show_jobs(self, rows: int) -> None:
        """List the jobs of all hosts in ``rows`` rows, and leave unused rows to the charts."""
        from .runs import columns as job_columns
        from .runs import joined, row_of

        listed = self._shown.values() if rows >= LEAST_DEVICE_ROWS else ()
        jobs = joined([(self._names[one.key], one.runs()) for one in listed if one.current])
        most = rows - CHART_ROWS if rows - CHART_ROWS >= LEAST_DEVICE_ROWS else rows
        high = min(len(jobs) + 3, most) if jobs else 0
        self._jobs.display = high > 0
        self._chart_rows = rows - high if rows - high >= CHART_ROWS else 0
        # the hosts have what is left, which is nothing where there are charts
        longer = min(self._hosts.longer_rows(), max(self._chart_rows - CHART_ROWS, 0))
        self._chart_rows -= longer
        self._hosts.styles.height = len(self._shown) + 3 + longer if self._chart_rows else "1fr"
        if high:
            self._jobs.styles.height = high
            found = [row_of(one, self._jobs.tokens.glyphs) for one in jobs]
            self._jobs.show_columns(job_columns(found))
            self._jobs.show(found)
        self._lower.display = self._chart_rows > 0 and not self._unread.display

    def show_charts(self, host: HostView) -> None:
        """Draw the host under the cursor over its recorded time, and what is found there."""
        if not self._chart_rows or self._unread.display or not self._devices.is_attached:
            return
        from ..overview.charts import Charts, kinds_for

        if self._charts is None:
            self._charts = Charts(self.session, self._draw_charts, id="fleet-charts")
            self._lower.mount(self._charts, before=self._brief)
        self._show_brief(host)
        due = (host.key, int((host.sampled_seconds or 0.0) / CHART_SECONDS), self._chart_rows)
        if due == self._drawn and self._charts.is_attached:
            self.show_figures(host)
            return
        self._drawn = due if self._charts.is_attached else None
        self._charts.rows = self._chart_rows - 2
        self._charts.window = self._window(host)
        kinds = kinds_for(host, self._chart_rows - 2, False, 3)
        if self._has_brief:  # takes the place of the memory of one device: all have theirs above
            kinds = [tuple(kind for kind in row if kind != "vram") for row in kinds]
        self._charts.choose(kinds)
        self._charts.show(host, host.devices[0] if host.devices else None)

    def show_figures(self, host: HostView) -> None:
        drawn, charts = self._drawn, self._charts
        if charts is None or not charts.is_attached or not self._lower.display or drawn is None:
            return
        if drawn[0] == host.key:  # else the charts are of another host, and end on its clock
            charts.show_figures(host, host.devices[0] if host.devices else None)

    def _show_brief(self, host: HostView) -> None:
        """Show what is found on the host under the cursor, and what runs there."""
        from .host_brief import brief_lines

        self._brief.display = self._has_brief
        set_title(self._brief, f"Found and running on {host.name}")
        cells, rows = self._brief.content_size
        found = self._fleet.findings(host.key)
        one = self._shown.get(host.key)
        if cells and one is not None:
            missing = HERE if one.current else self._fleet.missing(one)
            tokens, past = self._brief.tokens, self.session.history
            steps = self._fleet.steps(one)
            lines = brief_lines(host, one, missing, found, past, tokens, cells, rows, steps)
            self._brief.show(lines)

    def _window(self, host: HostView) -> float:
        """Return the time of the charts: what is recorded of a host, as far as it can be read."""
        from ..overview.charts import WINDOW_SECONDS

        now = host.sampled_seconds or 0.0
        entity = host.devices[0].id if host.devices else host.id
        column = "utilization_percent" if host.devices else "cpu_percent"
        past = self._fleet.history_of(host)(entity, column, MOST_SECONDS)
        known = now - past.seconds[0] if past.seconds else 0.0
        return max(WINDOW_SECONDS, shortest_window(known, MOST_SECONDS))

    def _draw_charts(self) -> None:
        """Draw them again, whose size is another."""
        self._drawn = None
        if (host := self.session.host) is not None:
            self.show_charts(host)

    # ── room ──

    def fit_to(self, width: int, height: int) -> None:
        self._terminal = (width, height)
        self._detail.set_class(height >= ROOMY_ROWS, "panel")

    def _totals_rows(self) -> int:
        return 1 if self._terminal[1] < TINY_ROWS else 2

    # ── actions ──

    def take_focus(self) -> None:
        self.focus_on(self._hosts)

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        """Select the host under the cursor for the other tabs."""
        event.stop()
        if event.key is not None and self._begun is not None:
            self.session.look_at(event.key)
            self._show_detail()
            self.call_later(self._draw_charts)

    async def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        await self.do_open()

    async def do_open(self) -> None:
        """Open the Overview of the host under the cursor."""
        key = self._hosts.cursor_key
        if key is not None:
            self._follows = False
            self.session.look_at(key)
            await program(self.app).action_do("overview")

    def do_host(self, by: int) -> None:
        """Move to the next line or the one before, which selects its host."""
        self._hosts.action_move(by)

    def do_sort(self, by: int) -> None:
        """Sort by the next column, or by the one before."""
        name = self._fleet.sort_by(by)
        self.session.notices.say(f"hosts sorted by {name}" + (" first" if name == "worst" else ""))
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
