"""Tab 5: what happened, newest last."""

from __future__ import annotations

import time

from textual.app import ComposeResult

from ...store.view import HostView
from ...text import styled
from ...text.width import cells as text_cells
from ..shell.session import Session
from ..widgets.pane import Pane, set_title
from ..widgets.table import LiveTable
from ..widgets.text import Lines
from .rows import COLUMNS, entries, row


class LogPane(Pane):
    """The log, which follows its end until the cursor leaves it.

    Below it stands the text under the cursor in full where it was cut.
    """

    DEFAULT_CSS = "LogPane #full { padding: 0 2; }"

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._full = Lines(id="full")
        self._table = LiveTable(
            COLUMNS, empty="nothing has happened yet", id="events", classes="panel"
        )

    def compose(self) -> ComposeResult:
        self._table.border_title = "Log"
        yield self._table
        yield self._full

    def show(self, host: HostView | None) -> None:
        state = self.session.state
        before = self._table.rows
        following = not before or self._table.cursor_key == before[-1].key
        looks_back = host is not None and self.session.standing.past(host.key) is not None
        until = host.wall_seconds if host is not None and looks_back else None
        rows = [
            row(entry) for entry in entries(host, self.session.notices.all, state.filter, until)
        ]
        then = time.strftime("%H:%M:%S", time.localtime(until)) if until is not None else ""
        set_title(self._table, f"Log until {then}" if then else "Log")
        nothing = f"nothing had happened until {then}" if then else "nothing has happened yet"
        self._table.show_empty(f"nothing contains {state.filter!r}" if state.filter else nothing)
        self._table.show(rows)
        if following and rows:
            self._table.move_to(rows[-1].key)
        self._show_full()

    def _show_full(self) -> None:
        row = next((r for r in self._table.rows if r.key == self._table.cursor_key), None)
        text = str(row.cells["text"]) if row else ""
        cut = text_cells(text) > self._table.width_of("text")
        self._full.show(styled.wrap([(text, "muted")], max(20, self.size.width - 4)) if cut else [])

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        self._show_full()

    def take_focus(self) -> None:
        self.focus_on(self._table)
