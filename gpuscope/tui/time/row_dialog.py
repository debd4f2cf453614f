"""This dialog tells all that is known of one row of the clock, or of the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...text.styled import Line
from ..widgets.text_dialog import TextDialog


class TimeRowDialog(TextDialog):
    """The details of a row, as they were when it was opened."""

    def __init__(self, heading: str, lines: Sequence[Line]) -> None:
        super().__init__(heading)
        self._told = tuple(lines)

    def text(self) -> Iterable[Line]:
        return self._told
