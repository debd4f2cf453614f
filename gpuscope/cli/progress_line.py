"""Show progress in one line that is drawn over on a terminal."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from ..text import width
from ..text.units import age_text, window_text

EVERY_SECONDS, QUICK_SECONDS = 1.0, 5.0
"""How often what takes long is counted, and how long it takes before it is."""


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

    @contextlib.contextmanager
    def counting(self, text: str, most: float) -> Iterator[None]:
        """Say what is done inside, and after some seconds for how long, of ``most`` seconds."""
        self.say(text)
        over = threading.Event()

        def count() -> None:
            began = time.monotonic()
            while not over.wait(EVERY_SECONDS):
                passed = time.monotonic() - began
                if passed >= QUICK_SECONDS:
                    self.say(f"{text}, {age_text(passed)} of at most {window_text(most)}")

        counter = threading.Thread(target=count, daemon=True)
        if self.live:
            counter.start()
        try:
            yield
        finally:
            over.set()
            if self.live:
                counter.join()

    def clear(self) -> None:
        self.draw("")

    def finished(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(text, file=self._out, flush=True)
