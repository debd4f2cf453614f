"""Tab 5: what happened, newest last."""

from __future__ import annotations

from textual.app import ComposeResult

from ...store.view import HostView
from ..session import Session
from ..widgets.log import COLUMNS, entries, row
from ..widgets.table import LiveTable
from .pane import Pane


class LogPane(Pane):
    """Follows the end until the cursor leaves it."""

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._table = LiveTable(COLUMNS, empty="nothing has happened yet", id="events", classes="panel")

    def compose(self) -> ComposeResult:
        self._table.border_title = "Log"
        yield self._table

    def show(self, host: HostView | None) -> None:
        state = self.session.state
        before = self._table.rows
        following = not before or self._table.cursor_key == before[-1].key
        rows = [row(entry) for entry in entries(host, self.session.notices.all, state.filter)]
        self._table.show_empty(f"nothing contains {state.filter!r}" if state.filter else "nothing has happened yet")
        self._table.show(rows)
        if following and rows:
            self._table.move_to(rows[-1].key)

    def take_focus(self) -> None:
        self._table.focus(scroll_visible=False)
