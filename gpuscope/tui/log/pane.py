"""Tab 6: what happened, newest last."""

from __future__ import annotations

import time

from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical

from ...store.view import HostView
from ...text import styled
from ...text.clock import clock_text
from ...text.styled import Line
from ...text.units import window_text
from ..background.log_entry import GROUPS, HIDDEN, LogEntry
from ..charts.axes import fitted_seconds
from ..charts.trends import Trends
from ..shared.event_rows import ALL, DATED, chosen, columns, counts, day, of_notices, row
from ..shell.clock_at import clock_at
from ..shell.keymap import key_of
from ..shell.session import Session
from ..trainer.job_load import devices_of
from ..widgets.pane import Pane, set_title
from ..widgets.program import program
from ..widgets.table import LiveTable
from ..widgets.text import Lines
from .activity import activity, rows_of
from .details import Around, beside_lines, details, what_comes_here
from .subject import device_of, job_of

NOTHING = {
    "findings": "the doctor has found nothing so far",
    "memory": "no allocation failed or was retried",
    "gpu": "the driver has reported no error, and no GPU was throttled or lost",
    "files": "no snapshot, profile or report was saved so far",
    "output": "output of the Lab's trainings; that of gpuscope run stays in its terminal",
}
"""The texts for groups that are empty."""
ALWAYS = "output"
"""A group that can be chosen although it is empty; it then explains whose output it will show."""
WIDE = 160
"""From this width on, the event under the cursor is shown at the right of the list."""
HIGH = 36
"""From this height on, the events over time are shown as well."""
ROOMY, FEW = 50, 12
"""Rows from which on so few events leave room for the event below them and for readings."""
FRAMED_ROWS = 20
"""With fewer rows than this, panels have no frames."""
TREND_ROWS, TREND_SECONDS = 8, 300.0
"""The least rows of the readings below the event, and the time that they show at most."""
AROUND_ROWS = 4
"""The rows that the status line, the tabs, the groups and the footer take."""
LAYOUT_SECONDS = 0.05
"""How long to wait for a layout before the place of the event is asked for again."""
EVENT_ROWS, EVENT_SHARE, EVENT_MOST = 6, 0.36, 0.6
"""Of the event where it stands below the list: the fewest rows, their share, and the most."""
FRAME_ROWS, HEADED_ROWS, LIST_ROWS = 2, 3, 5
"""The rows of a frame, of a frame with a heading, and the least rows of the list."""


class LogPane(Pane):
    """The log, which follows its end until the cursor leaves it.

    Above it stand the groups that can be looked at alone. The event under the cursor stands in full
    at the right of a wide terminal, and below the list on others. A high terminal has the events
    over time.
    """

    DEFAULT_CSS = """
    LogPane #groups { height: 1; padding: 0 2; }
    LogPane #log-body { layout: vertical; height: 1fr; }
    LogPane #log-left { height: 1fr; }
    LogPane #events { height: 1fr; }
    LogPane.wide #log-body { layout: horizontal; }
    LogPane.wide #log-left { width: 2fr; }
    LogPane.wide #log-lower { width: 1fr; height: 1fr; }
    LogPane #log-lower { height: 1fr; }
    LogPane #event, LogPane #event-beside { width: 1fr; height: 1fr; }
    LogPane #log-now { height: 12; }
    LogPane #log-trends { width: 11fr; height: 1fr; }
    LogPane #log-open { width: 9fr; height: 1fr; }
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._groups = Lines(id="groups")
        self._table = LiveTable(
            columns(()), empty="nothing has happened yet", id="events", classes="panel"
        )
        self._event = Lines(id="event", classes="panel")
        self._beside = Lines(id="event-beside", classes="panel")
        self._trends = Trends(id="log-trends", classes="panel")
        self._open = Lines(id="log-open", classes="panel")
        self._now = Horizontal(self._trends, self._open, id="log-now")
        self._activity = Lines(id="activity", classes="panel")
        self._terminal = (120, 40)
        self._text_rows = 0
        """The lines of the longest event, or of the text next to it, that was shown so far."""
        self._group = ALL
        self._counts: dict[str, int] = {}
        self._entries: dict[str, LogEntry] = {}
        self._seen: object = None
        self._waits = False
        self._until: float | None = None
        """The last moment that is shown while the user looks at the past."""

    def compose(self) -> ComposeResult:
        self._table.border_title = "Log"
        self._event.border_title = "Event"
        self._activity.border_title = "Events over time"
        self._beside.border_title = "The Doctor now, and what else happened"
        self._open.border_title = "Now"
        self._beside.display = self._now.display = False
        yield self._groups
        with Container(id="log-body"):
            with Vertical(id="log-left"):
                yield self._table
                yield self._activity
            with Horizontal(id="log-lower") as self._lower:
                yield self._event
                yield self._beside
            yield self._now

    def fit_to(self, width: int, height: int) -> None:
        if self._terminal != (width, height):
            self._terminal, self._text_rows = (width, height), 0
        self._share_out()
        self._show_chosen()

    def _share_out(self) -> None:
        """Give the list its rows first, then the event below it what its text needs.

        The readings below them have the rest.
        """
        width, height = self._terminal
        found = list(self._entries.values())
        self._activity.display = height >= HIGH and len(found) > 1
        few = height >= ROOMY and len(found) <= FEW
        below = rows_of(found) + FRAME_ROWS if self._activity.display else 0
        self._activity.styles.height = max(below, 1)
        beside = width >= WIDE and not few
        self.set_class(beside, "wide")
        # a few events on a large terminal leave room for what surrounds the chosen one
        surrounded = width >= WIDE and few and bool(found)
        if surrounded and not self._now.display and self.session.host is not None:
            self.call_after_refresh(self.show_charts, self.session.host)
        self._beside.display = self._now.display = surrounded
        if beside:
            self._lower.styles.height = "1fr"
            return
        room = height - AROUND_ROWS
        spare = room - below - max(LIST_ROWS, len(found)) - HEADED_ROWS
        if self._now.display:
            rows = max(EVENT_ROWS, min(self._text_rows + FRAME_ROWS, spare - TREND_ROWS))
            self._lower.styles.height = rows
            self._now.styles.height = spare - rows
            return
        rows = max(EVENT_ROWS, int(EVENT_SHARE * room), min(spare, int(EVENT_MOST * room)))
        self._lower.styles.height = rows if height >= FRAMED_ROWS else 2

    def show(self, host: HostView | None) -> None:
        state = self.session.state
        looks_back = host is not None and self.session.frozen_view.past(host.key) is not None
        back = looks_back or self.session.replay is not None
        until = self._until = host.wall_seconds if host is not None and back else None
        happened = self.session.happened
        journal = happened.on(host)
        notices = self.session.notices.all
        key = (
            id(journal),
            journal.changes,
            len(notices),
            notices[-1:],
            happened.lines,
            self._group,
            state.filter,
            until,
            self.app.size.width,
            self._table.tokens.key,
        )
        if key == self._seen:
            return
        self._seen = key
        everything = [*journal.entries.values(), *of_notices(notices), *happened.output]
        if until is not None:
            everything = [one for one in everything if one.wall_seconds <= until + 0.5]
        self._counts = counts(everything)
        self._show_groups()
        found = chosen(everything, self._group, state.filter)
        self._show_rows(found)
        then = clock_text(until) if until is not None else ""
        name = f"Log: {GROUPS[self._group]}" if self._group else "Log"
        set_title(self._table, f"{name} until {then}" if looks_back else name)
        nothing = NOTHING.get(self._group, "nothing has happened yet")
        nothing = f"nothing had happened until {then}" if looks_back else nothing
        self._table.show_empty(f"nothing contains {state.filter!r}" if state.filter else nothing)
        self._show_chosen()

    def show_findings(self) -> None:
        self.show(self.session.host)

    def _show_rows(self, found: list[LogEntry]) -> None:
        before = self._table.rows
        following = not before or self._table.cursor_key == before[-1].key
        self._entries = {one.serial: one for one in found}
        shown = columns(found, self.app.size.width)
        self._table.show_columns(shown)
        glyphs, dated = self._table.tokens.glyphs, shown[0].width >= DATED
        today = day(found[-1]) if found else ""
        rows = [row(one, glyphs, dated, today) for one in found]
        self._table.show(rows)
        self._share_out()
        if following and rows:
            self._table.move_to(rows[-1].key)

    def _show_groups(self) -> None:
        """Show the groups with their numbers of entries, and highlight the chosen one."""
        out: Line = [("Events ", "faint")]
        for group in (ALL, *GROUPS):
            count = self._counts.get(group, 0)
            if not count and group not in (ALL, ALWAYS, self._group):
                continue
            here = group == self._group
            name = GROUPS.get(group, "all")
            brackets = ("[", "] ") if here else (" ", " ")
            token = "bold accent" if here else "faint" if group in HIDDEN else "muted"
            out += [(f"{brackets[0]}{name}{brackets[1]}", token), (f"{count} ", "faint")]
        keys = f"{key_of('next_kind')} {key_of('previous_kind')}: another kind"
        hint: Line = [("  ", "text"), (keys, "faint")]  # the footer names the keys too
        fits = styled.cells(out) + styled.cells(hint) <= self._terminal[0] - 4
        self._groups.show([[*out, *hint] if fits else out])

    def _turn(self, by: int) -> None:
        usual = (ALL, ALWAYS, self._group)
        there = [one for one in (ALL, *GROUPS) if self._counts.get(one) or one in usual]
        self._group = there[(there.index(self._group) + by) % len(there)]
        self.show(self.session.host)
        if rows := self._table.rows:
            self._table.move_to(rows[-1].key)
            self._show_chosen()

    def do_next_kind(self) -> None:
        """Show only the next group."""
        self._turn(1)

    def do_previous_kind(self) -> None:
        """Show only the previous group."""
        self._turn(-1)

    def _try_again(self) -> None:
        """Show the chosen event a little later, once.

        It has no place before it is laid out: not as long as something covers it, or the tab is
        left.
        """
        if not self._waits:
            self._waits = True
            self.set_timer(LAYOUT_SECONDS, self._show_chosen)

    def _show_chosen(self) -> None:
        """Show the event under the cursor in full, and mark it among the events over time."""
        self._waits = False
        cells, height = self._event.content_size
        late = self._beside.display and cells > self._terminal[0] // 2
        if not cells or late:  # it was not laid out yet, or not since it stands beside another
            self._try_again()
            return
        entry = self._entries.get(self._table.cursor_key or "")
        self._show_activity(entry)
        if entry is None:
            self._event.show(what_comes_here(cells)[:height])
            return
        host, glyphs = self.session.host, self._event.tokens.glyphs
        same = self.session.happened.on(host).like(entry)
        around = Around(host, self.session.doctor.cases, same)
        apart = self._beside.display
        if not apart:
            self._event.show(details(entry, around, glyphs, cells, height, True))
            return
        most = self._terminal[1]
        lines = details(entry, around, glyphs, cells, most, False)
        cells = max(self._beside.content_size[0], 30)
        other = beside_lines(entry, around, glyphs, cells, most)
        longest = max(len(lines), len(other), self._text_rows)
        if longest > self._text_rows:
            self._text_rows = longest
            self._share_out()
        self._event.show(lines)
        self._beside.show(other)

    def show_charts(self, host: HostView) -> None:
        """Draw the readings of the job of the chosen event, or of all trainings of the host."""
        if not self._now.display:
            return
        self._show_open(host)
        from ..shared.host_trends import host_trends

        entry = self._entries.get(self._table.cursor_key or "")
        job = job_of(entry, host) if entry is not None else None
        living = [t for t in host.trainers if t.gone is None]
        own = [t for t in living if job is not None and t in job.trainers]
        device = device_of(entry, host) if entry is not None else None
        device = device or next(iter(devices_of(host, own)), None)
        rows = self._trends.size.height
        trends = host_trends(self.session, host, device, own or living, TREND_SECONDS, rows)
        known = [one.history.seconds[0] for one in trends if one.history.seconds]
        now = host.sampled_seconds or 0.0
        window = fitted_seconds(now - min(known, default=now), TREND_SECONDS)
        whose = job.title if own and job is not None else "The host"
        set_title(self._trends, f"{whose} over {window_text(window)}")
        self._trends.show(trends, window, host.sampled_seconds, clock_at(self.session, host))

    def _show_open(self, host: HostView) -> None:
        """Show the findings that hold and the ends of jobs until the moment that is shown."""
        from .open_now import open_lines

        jobs, until = self.session.happened.on(host).of_group("jobs"), self._until
        ends = [one for one in jobs if one.serial.endswith("/end")]
        if until is not None:
            ends = [one for one in ends if one.wall_seconds <= until + 0.5]
        cells, rows = self._open.size
        glyphs, cases = self._open.tokens.glyphs, self.session.doctor.cases
        self._open.show(open_lines(cases, ends, host, glyphs, max(cells, 30), max(rows, 4)))

    def _show_activity(self, chosen: LogEntry | None) -> None:
        """Show how many of the events in the list there were of each kind over time."""
        host, found = self.session.host, list(self._entries.values())
        now = self._until or (host.wall_seconds if host is not None else None) or time.time()
        cells = self._activity.content_size.width or self._table.content_size.width
        if self._activity.display and cells:
            glyphs = self._activity.tokens.glyphs
            what, lines = activity(found, now, chosen, glyphs, cells)
            self._activity.show(lines)
            self._activity.subtitle([(what, "faint")])

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        self._show_chosen()

    async def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        await self.do_open()

    async def do_open(self) -> None:
        """Open what the entry under the cursor is about."""
        entry = self._entries.get(self._table.cursor_key or "")
        if entry is None:
            return
        kind, *rest = entry.place or ("",)
        host, app = self.session.host, program(self.app)
        if kind in ("finding", "lab"):
            await app.action_do("doctor" if kind == "finding" else "lab")
            for pane in self.screen.query("DoctorPane") if kind == "finding" else ():
                if not pane.choose(*rest):  # type: ignore[attr-defined]
                    self.session.notices.say("this finding no longer applies")
        elif kind == "job" and host is not None and all(j.key != rest[0] for j in host.jobs):
            self.session.notices.say("the job is not known any more: it ended long ago", "warn")
        elif kind:
            app.open(str(kind), *rest)
        elif entry.group == "files":
            self.session.notices.hint(entry.text)
        else:
            self.session.notices.hint("nothing more is known about this line")

    def take_focus(self) -> None:
        self.focus_on(self._table)
