"""Tab 6: what happened, newest last."""

from __future__ import annotations

import time

from textual.app import ComposeResult
from textual.containers import Horizontal

from ...store.view import HostView
from ...text import styled
from ...text.styled import Line
from ...text.width import cells as text_cells
from ..shell.keymap import key_of
from ..shell.session import Session
from ..widgets.pane import Pane, set_title
from ..widgets.program import program
from ..widgets.table import LiveTable
from ..widgets.text import Lines
from .details import details
from .entry import GROUPS, HIDDEN, Entry
from .rows import ALL, chosen, columns, counts, day, of_notices, row

NOTHING = {
    "findings": "the doctor has found nothing so far",
    "memory": "no allocation failed or was tried again",
    "gpu": "the driver has reported no error, and no GPU was slowed or lost",
    "files": "no snapshot, profile or report was saved so far",
    "output": "output of the Lab's trainings; gpuscope run leaves yours to its terminal",
}
"""What is said where a group is empty."""
ALWAYS = "output"
"""A group that can be chosen while it is empty, and says then whose output comes here."""
WIDE = 160
"""Columns from which on the line under the cursor stands in full at the right."""


class LogPane(Pane):
    """The log, which follows its end until the cursor leaves it.

    Above it stand the groups that can be looked at alone. The line under the cursor stands in full
    at the right of a wide terminal; on others its text stands below where it was cut.
    """

    DEFAULT_CSS = """
    LogPane #groups { height: 1; padding: 0 2; }
    LogPane #full { padding: 0 2; }
    LogPane #events { width: 2fr; }
    LogPane #event { width: 1fr; height: 1fr; }
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._groups, self._full = Lines(id="groups"), Lines(id="full")
        self._table = LiveTable(
            columns(()), empty="nothing has happened yet", id="events", classes="panel"
        )
        self._event = Lines(id="event", classes="panel")
        self._event.display = False
        self._group = ALL
        self._counts: dict[str, int] = {}
        self._entries: dict[str, Entry] = {}
        self._seen: object = None
        self._today = ""
        """The day of the newest line."""

    def compose(self) -> ComposeResult:
        self._table.border_title = "Log"
        self._event.border_title = "Event"
        yield self._groups
        with Horizontal():
            yield self._table
            yield self._event
        yield self._full

    def fit_to(self, width: int, height: int) -> None:
        self._event.display = width >= WIDE
        self._show_full()

    def show(self, host: HostView | None) -> None:
        state = self.session.state
        looks_back = host is not None and self.session.frozen_view.past(host.key) is not None
        back = looks_back or self.session.replay is not None
        until = host.wall_seconds if host is not None and back else None
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
        then = time.strftime("%H:%M:%S", time.localtime(until)) if until is not None else ""
        name = f"Log: {GROUPS[self._group]}" if self._group else "Log"
        set_title(self._table, f"{name} until {then}" if looks_back else name)
        nothing = NOTHING.get(self._group, "nothing has happened yet")
        nothing = f"nothing had happened until {then}" if looks_back else nothing
        self._table.show_empty(f"nothing contains {state.filter!r}" if state.filter else nothing)
        self._show_full()

    def show_findings(self) -> None:
        self.show(self.session.host)

    def _show_rows(self, found: list[Entry]) -> None:
        before = self._table.rows
        following = not before or self._table.cursor_key == before[-1].key
        self._entries = {one.serial: one for one in found}
        shown = columns(found, self.app.size.width)
        self._table.show_columns(shown)
        glyphs, dated = self._table.tokens.glyphs, shown[0].width > len("00:00:00")
        self._today = day(found[-1]) if found else ""
        rows = [row(one, glyphs, dated, self._today) for one in found]
        self._table.show(rows)
        if following and rows:
            self._table.move_to(rows[-1].key)

    def _show_groups(self) -> None:
        """The groups with how much is in them; that which is shown stands out."""
        out: Line = []
        for group in (ALL, *GROUPS):
            count = self._counts.get(group, 0)
            if not count and group not in (ALL, ALWAYS, self._group):
                continue
            here = group == self._group
            name = GROUPS.get(group, "all")
            brackets = ("[", "]") if here else (" ", " ")
            token = "bold accent" if here else "faint" if group in HIDDEN else "muted"
            out.append((f"{brackets[0]}{name} {count}{brackets[1]}", token))
            out.append((" ", "text"))
        keys = f"{key_of('next_kind')} {key_of('previous_kind')}: kind"
        self._groups.show([[*out, ("  ", "text"), (keys, "faint")]])

    def _turn(self, by: int) -> None:
        usual = (ALL, ALWAYS, self._group)
        there = [one for one in (ALL, *GROUPS) if self._counts.get(one) or one in usual]
        self._group = there[(there.index(self._group) + by) % len(there)]
        self.show(self.session.host)
        if rows := self._table.rows:
            self._table.move_to(rows[-1].key)
            self._show_full()

    def do_next_kind(self) -> None:
        """Only what is of the next kind."""
        self._turn(1)

    def do_previous_kind(self) -> None:
        """Only what is of the kind before."""
        self._turn(-1)

    def _show_full(self) -> None:
        row = next((r for r in self._table.rows if r.key == self._table.cursor_key), None)
        entry = self._entries.get(row.key) if row is not None else None
        if self._event.display:
            self._full.show([])
            self._show_event(entry)
            return
        text, room = entry.text if entry is not None else "", self._table.width_of("text")
        if not room:  # it was not laid out yet
            self.call_after_refresh(self._show_full)
            return
        if entry is not None and day(entry) != self._today:  # the list may have the day alone
            moment = time.localtime(entry.wall_seconds)
            text, room = f"{time.strftime('%b %d %H:%M:%S', moment)}  {text}", 0
        cut = text_cells(text) > room
        self._full.show(styled.wrap([(text, "muted")], max(20, self.size.width - 4)) if cut else [])

    def _show_event(self, entry: Entry | None) -> None:
        """Show the line under the cursor in full at the right."""
        cells, height = self._event.content_size
        if not cells:  # it was not laid out yet
            self.call_after_refresh(self._show_full)
            return
        if entry is None:
            self._event.show([])
            return
        host, finding = self.session.host, None
        if entry.place[:1] == ("finding",):
            finding = next(
                (
                    case.finding
                    for case in self.session.doctor.cases
                    if entry.place[1:] == (case.finding.pitfall, case.finding.where)
                ),
                None,
            )
        same = self.session.happened.on(host).of_job(entry.job) if entry.job else []
        glyphs = self._event.tokens.glyphs
        self._event.show(details(entry, same, finding, glyphs, cells, height))

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        self._show_full()

    async def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        await self.do_open()

    async def do_open(self) -> None:
        """Go to what the line under the cursor speaks of."""
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
