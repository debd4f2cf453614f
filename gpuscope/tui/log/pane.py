"""Tab 6: what happened, newest last."""

from __future__ import annotations

import time

from textual.app import ComposeResult
from textual.containers import Container, Vertical

from ...store.view import HostView
from ...text import styled
from ...text.clock import clock_text
from ...text.styled import Line
from ..background.log_entry import GROUPS, HIDDEN, LogEntry
from ..shared.event_rows import ALL, DATED, chosen, columns, counts, day, of_notices, row
from ..shell.keymap import key_of
from ..shell.session import Session
from ..trainer.job_load import devices_of
from ..widgets.pane import Pane, set_title
from ..widgets.program import program
from ..widgets.table import LiveTable
from ..widgets.text import Lines
from .activity import activity, rows_of
from .courses import Courses
from .details import Around, beside_lines, details, what_comes_here
from .subject import device_of, findings_on, job_of

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
"""Rows from which on so few events leave room for readings below them."""
FRAMED_ROWS = 20
"""With fewer rows than this, panels have no frames."""
BESIDE_ROWS = 12
"""Readings stand below what is said of an event where it leaves so many rows."""
AROUND_ROWS = 4
"""The rows that the status line, the tabs, the groups and the footer take."""
LAYOUT_SECONDS = 0.05
"""How long to wait for a layout before the place of the event is asked for again."""
COMPARE_SECONDS = 5.0
"""How often the readings after an event are compared anew with those before it."""
EVENT_ROWS, EVENT_SHARE, EVENT_MOST = 6, 0.36, 0.6
"""Of the event where it stands below the list: the fewest rows, their share, and the most."""
FRAME_ROWS, HEADED_ROWS, LIST_ROWS = 2, 3, 5
"""The rows of a frame, of a frame with a heading, and the least rows of the list."""
LEFT_SHARE = 0.6
"""Of a wide terminal, for the list; the style sheet below says the same."""


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
    LogPane.wide #log-left { width: 3fr; }
    LogPane.wide #log-lower { width: 2fr; height: 1fr; }
    LogPane #log-lower { height: 1fr; }
    LogPane #event, LogPane #event-beside, LogPane #log-trends { height: 1fr; }
    LogPane #log-stack, LogPane #log-load, LogPane #log-host { height: 1fr; }
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._groups = Lines(id="groups")
        self._table = LiveTable(
            columns(()), empty="nothing has happened yet", id="events", classes="panel"
        )
        self._event = Lines(id="event", classes="panel")
        self._beside = Lines(id="event-beside", classes="panel")
        self._courses = Courses(session)
        beside = self._courses.beside
        self._lower = Vertical(self._event, self._beside, *beside, id="log-lower")
        self._activity = Lines(id="activity", classes="panel")
        self._terminal = (120, 40)
        self._text_rows = 0
        """The lines of the longest event that was shown so far, where another panel follows it."""
        self._rows_below = 0
        """The rows that what is said of the event leaves."""
        self._group = ALL
        self._counts: dict[str, int] = {}
        self._entries: dict[str, LogEntry] = {}
        self._seen: object = None
        self._waits = False
        self._compared_at = 0
        self._until: float | None = None
        """The last moment that is shown while the user looks at the past."""

    def compose(self) -> ComposeResult:
        self._table.border_title = "Log"
        self._event.border_title = "Event"
        self._activity.border_title = "Events over time"
        self._beside.border_title = "The Doctor now, and what else happened"
        self._beside.display = False
        yield self._groups
        with Container(id="log-body"):
            with Vertical(id="log-left"):
                yield self._table
                yield self._activity
                yield self._courses.own
            yield self._lower

    def fit_to(self, width: int, height: int) -> None:
        if self._terminal != (width, height):
            self._terminal, self._text_rows = (width, height), 0
        self._share_out()
        self._show_chosen()

    def _share_out(self) -> None:
        """Give the list its rows first, and what explains the chosen event the right of it.

        A few events leave rows for readings below them. On a terminal that is not wide the event
        stands below the list.
        """
        width, height = self._terminal
        found = list(self._entries.values())
        wide, high = width >= WIDE, height >= HIGH
        self._activity.display = high and len(found) > 1
        below = rows_of(found) + FRAME_ROWS if self._activity.display else 0
        self._activity.styles.height = max(below, 1)
        self.set_class(wide, "wide")
        trends = wide and height >= ROOMY and len(found) <= FEW
        if trends and not self._courses.own.display and self.session.host is not None:
            self.call_after_refresh(self.show_charts, self.session.host)
        self._courses.own.display = trends
        if not trends:
            self._courses.hide()
        self._table.styles.height = max(LIST_ROWS, len(found)) + HEADED_ROWS if trends else "1fr"
        self._beside.display = wide and high and bool(found)
        room = height - AROUND_ROWS
        if wide:
            self._lower.styles.height = "1fr"
            rows = max(EVENT_ROWS, min(self._text_rows + FRAME_ROWS, int(EVENT_MOST * room)))
            self._event.styles.height = rows if self._beside.display else "1fr"
            beside = self._beside.rows + FRAME_ROWS
            self._rows_below = room - rows - beside
            self._beside.styles.height = beside if self._courses.has_beside else "1fr"
            return
        self._event.styles.height = "1fr"
        spare = room - below - max(LIST_ROWS, len(found)) - HEADED_ROWS
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
        moment = int((host.wall_seconds or 0.0) / COMPARE_SECONDS) if host is not None else 0
        if key == self._seen:
            if moment != self._compared_at and self._beside.display:
                self._compared_at = moment
                self._show_chosen()  # more is known of the time after the event
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
        begins = all(column.key != "what" for column in shown)
        rows = [row(one, glyphs, dated, today, begins) for one in found]
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
        late = self.has_class("wide") and cells > self._terminal[0] * LEFT_SHARE
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
        if not self._beside.display:
            lines = details(entry, around, glyphs, cells, height, True)
            self._event.show(lines)
            return
        most = self._terminal[1]
        lines = details(entry, around, glyphs, cells, most, False)
        if compared := self._compared(entry, cells):
            lines += [[], *compared]
        if len(lines) > self._text_rows:
            self._text_rows = len(lines)
            self._share_out()
        self._event.show(lines)
        self._beside.show(self._others(entry, around, cells))
        self._share_out()

    def _compared(self, entry: LogEntry, cells: int) -> list[Line]:
        """Return the readings of what an event is about, before it and after it."""
        from .before_after import before_after_lines

        host = self.session.host
        if host is None:
            return []
        job, device = job_of(entry, host), device_of(entry, host)
        trainers = list(job.trainers) if job is not None else []
        devices = [device] if device is not None else devices_of(host, trainers)
        if not trainers and not devices:
            return []
        history = self.session.history
        return before_after_lines(host, entry.wall_seconds, trainers, devices, history, cells)

    def _others(self, entry: LogEntry, around: Around, cells: int) -> list[Line]:
        """Return what the doctor finds now, what else happened, and how jobs ended."""
        from .open_now import open_lines

        host, glyphs = self.session.host, self._beside.tokens.glyphs
        rows = max(self._terminal[1], 1)
        out = beside_lines(entry, around, glyphs, cells, rows)
        if host is None:
            return out
        own, told = findings_on(entry, device_of(entry, host), around.cases)
        alike = own.finding.pitfall if own is not None else None  # the list folds them, too
        listed = tuple(one.text for one in around.same)
        others = [
            case
            for case in around.cases
            if case not in told
            and case.finding.pitfall != alike
            and not any(text.startswith(case.finding.title) for text in listed)
        ]
        jobs, until = self.session.happened.on(host).of_group("jobs"), self._until
        ends = [one for one in jobs if one.serial.endswith("/end")]
        if until is not None:
            ends = [one for one in ends if one.wall_seconds <= until + 0.5]
        return [*out, [], *open_lines(others, ends, host, glyphs, cells, rows)]

    def show_charts(self, host: HostView) -> None:
        """Draw the readings of the job of the chosen event, or of all trainings of the host."""
        if not self._courses.own.display:
            return
        entry = self._entries.get(self._table.cursor_key or "")
        self._courses.draw(host, entry, self._rows_below >= BESIDE_ROWS)
        self._share_out()

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
