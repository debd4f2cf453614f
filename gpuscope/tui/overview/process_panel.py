"""The processes at the foot of a large Overview, as the process screen lists them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..processes.idle import Idleness
from ..processes.rows import Choice, columns, listing
from ..widgets.table import LiveTable

if TYPE_CHECKING:
    from ...store.view import HostView, ProcView
    from ..shell.session import Session

SECONDS = 0.9
"""Many processes are listed once a second; the steps of a few are those of the jobs above."""
FEW = 24
"""A list of up to this many rows is rebuilt for every picture of the host."""


class ProcessPanel(LiveTable):
    """The table of processes; it brings itself up to date at most once a second."""

    def __init__(self, session: Session) -> None:
        super().__init__((), empty="none reported by the driver", gap=1, id="top-processes")
        self.session = session
        self.add_class("panel")
        self._idleness = Idleness()
        self._listed = -SECONDS
        self._host: object = None
        self.count = 0
        """How many processes there are."""

    def on_mount(self) -> None:
        super().on_mount()
        self.border_title = "Processes"

    def bring_up_to_date(self, host: HostView) -> None:
        """List the processes of this moment."""
        now, state = time.monotonic(), self.session.state
        frozen = self.session.frozen_text() != ""
        key = (host.key, frozen, state.mine, state.filter)
        if now - self._listed < SECONDS and key == self._host and self.count > FEW:
            return
        self._listed, self._host = now, key
        choice = Choice(state.process_sort, state.mine, state.filter)
        history, glyphs, room = self.session.history, self.tokens.glyphs, self.size.width
        found = listing(host, history, choice, idleness=self._idleness, glyphs=glyphs, room=room)
        self.count = len(found.rows)
        none = "reported by the driver" if host.devices else "trains with a probe"
        self.show_empty("no process matches" if found.all else f"none {none}")
        self.show_columns(columns(choice, found.rows, room))
        self.show(found.rows)

    def sort_changed(self) -> None:
        """Sort them again with the next picture."""
        self._host = None

    def chosen(self, host: HostView) -> ProcView | None:
        """Return the process under the cursor; of a heading the first below it."""
        keys = [row.key for row in self.rows]
        below = keys[keys.index(self.cursor_key) :] if self.cursor_key in keys else []
        by_key = {process.key: process for process in host.processes if process.gone is None}
        return next((by_key[one] for one in below if one in by_key), None)
