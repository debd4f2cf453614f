"""The list of findings, which knows whether the user put its cursor where it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import BindingType

from ..shell.keymap import bindings_of
from ..widgets.table import LiveTable, TableRow


class CaseTable(LiveTable, inherit_bindings=False):
    """The list of findings; a page down reads on in the finding, not in the list."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("CaseTable")]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held = False
        """Whether the user chose the row under the cursor, which is not the first one."""

    def show(self, rows: Sequence[TableRow]) -> None:
        """Replace the rows; a row that is gone is held no more."""
        self.held = self.held and any(row.key == self.cursor_key for row in rows)
        super().show(rows)

    def move_to(self, key: str, by_user: bool = False) -> None:
        """Put the cursor on a row; the user's choice of the first row is to follow the worst."""
        if by_user:
            self.held = bool(self.rows) and key != self.rows[0].key
        super().move_to(key, by_user)

    def hold(self, key: str) -> None:
        """Put the cursor on a row that the user chose elsewhere."""
        if any(row.key == key for row in self.rows):
            self.held = True
            self.move_to(key)
