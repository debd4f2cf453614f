"""Show progress in one line that is drawn over on a terminal."""

from __future__ import annotations

import shutil
from typing import TextIO

from ..text import width


class ProgressLine:
    """One line at the end of ``out`` that changes, above which finished lines stay.

    If the output is not a terminal, or the line is not ``wanted``, only finished lines are printed,
    without escape sequences.
    """

    def __init__(self, out: TextIO, wanted: bool = True) -> None:
        self._out = out
        self.live = wanted and out.isatty()
        self._width = 0

    def draw(self, text: str) -> None:
        """Replace the line with ``text``; "" removes it."""
        if not self.live or (not text and not self._width):
            return
        text = width.cut(text, max(20, shutil.get_terminal_size().columns - 1))
        gap = " " * max(0, self._width - width.cells(text))
        self._out.write(f"\r{text}{gap}\r" if not text else f"\r{text}{gap}")
        self._out.flush()
        self._width = width.cells(text)

    def say(self, text: str) -> None:
        """Say what is done now."""
        self.draw(f"{text} …")

    def clear(self) -> None:
        self.draw("")

    def finished(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(text, file=self._out, flush=True)
