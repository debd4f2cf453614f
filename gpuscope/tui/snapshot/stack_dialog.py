"""All calls of a stack that allocated memory."""

from __future__ import annotations

from collections.abc import Iterable

from ...snapshot.model import DiffRow, StackRow
from ...text.styled import Line
from ..widgets.text_dialog import TextDialog
from .rows import stack_text


class StackDialog(TextDialog):
    """All frames of one stack."""

    DEFAULT_CSS = "StackDialog .dialog { width: 130; }"

    def __init__(self, row: StackRow | DiffRow) -> None:
        super().__init__("Stack, innermost frame first")
        self._row = row

    def text(self) -> Iterable[Line]:
        return stack_text(self._row)
