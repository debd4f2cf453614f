"""The foot of the Overview: the host's own load, and processes where there is room for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.containers import Horizontal

from ..widgets.text import Lines
from .panel_rows import FRAMED_ROWS, WIDE

if TYPE_CHECKING:
    from ...store.view import HostView
    from ..shell.session import Session
    from .process_panel import ProcessPanel

HOST_COLUMNS, NARROW_HOST_COLUMNS = 58, 51
"""How wide the host's panel is beside the processes of a wide and of a usual terminal."""


class Foot(Horizontal):
    """Processes at the left and the host at the right, or the host alone in a few lines."""

    DEFAULT_CSS = """
    Foot { display: none; }
    Foot > * { height: 1fr; }
    Foot > .bare { padding: 0 4; }
    """

    def __init__(self, session: Session, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.session = session
        self.host_lines = Lines(id="host", classes="panel")
        self.processes: ProcessPanel | None = None
        self.cpu_is_charted = False

    def compose(self) -> ComposeResult:
        self.host_lines.border_title = "Host"
        yield self.host_lines

    @property
    def lists_processes(self) -> bool:
        return self.display and self.processes is not None and self.processes.display

    def give(self, rows: int, columns: int, processes: bool) -> None:
        """Take ``rows`` of a terminal of ``columns``, with processes or without."""
        self.display = rows > 0
        self.styles.height = rows
        bare = not processes and rows < FRAMED_ROWS
        self.host_lines.set_class(not bare, "panel")
        self.host_lines.set_class(bare, "bare")
        host_columns = HOST_COLUMNS if columns >= WIDE else NARROW_HOST_COLUMNS
        self.host_lines.styles.width = host_columns if processes else "1fr"
        if self.processes is not None:
            self.processes.display = processes
        elif rows and processes and self.is_attached:
            from .process_panel import ProcessPanel

            self.processes = ProcessPanel(self.session)
            self.mount(self.processes, before=self.host_lines)

    def show(self, host: HostView) -> None:
        """Bring what is on the screen up to date."""
        if not self.display:
            return
        from ..shared.host_text import host_lines

        if self.processes is not None and self.processes.is_mounted and self.processes.display:
            self.processes.bring_up_to_date(host)
        width, rows = self.host_lines.size or (0, 0)
        glyphs = self.host_lines.tokens.glyphs
        cells, history = width or HOST_COLUMNS - 4, self.session.history
        lines = host_lines(host, history, cells, glyphs, rows, self.cpu_is_charted)
        self.host_lines.show(lines)
