"""Which columns the process screen shows; remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from ..widgets.dialog import Dialog
from ..widgets.text import Lines
from .rows import CHOICES, COLUMNS

if TYPE_CHECKING:
    from ..shell.session import Session

WORDS = {
    "bar": "its memory as a part of that of its GPUs",
    "sm": "share of the last 5 s in which its kernels ran",
    "cpu": "of one core",
    "rss": "host memory",
    "age": "time since its start",
    "idle": "time without kernels or CPU use",
    "state": "its step, where it hangs, or if it computes",
    "where": "Slurm job, pod or container",
    "peak": "the most that torch has allocated (wide only)",
    "pace": "median step of its training (wide only)",
    "input": "share of the step that waits for data (wide only)",
    "loss": "the newest loss (wide only)",
}


class ColumnDialog(Dialog):
    """A line for each column that can be hidden; space or Enter changes it."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._lines = Lines()
        self._names = list(CHOICES)
        self._at = 0

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = "Columns"
            yield self._lines

    def on_mount(self) -> None:
        self._show()

    def _hidden(self) -> set[str]:
        return {name for name in self.session.state.process_hidden.split(",") if name}

    def _show(self) -> None:
        hidden, glyphs = self._hidden(), self._lines.tokens.glyphs
        titles = {column.key: column.title for column in COLUMNS}
        lines = []
        for at, name in enumerate(self._names):
            mark = glyphs.cursor if at == self._at else " "
            word = "hidden" if name in hidden else "shown"
            lines.append(
                [
                    (f"{mark} ", "accent"),
                    (f"{titles[name]:12}", "title" if at == self._at else "text"),
                    (f"{word:10}", "muted" if name in hidden else "ok"),
                    (WORDS[name], "muted"),
                ]
            )
        self._lines.show(lines)

    def action_move(self, by: int) -> None:
        """Go to another column."""
        self._at = (self._at + by) % len(self._names)
        self._show()

    def action_change(self) -> None:
        """Show the column, or leave it out."""
        self.session.state.process_hidden = ",".join(
            sorted(self._hidden() ^ {self._names[self._at]})
        )
        self._show()
