"""This module keeps what the program itself has to say.

All of it is kept for the log; the newest is shown for a while at the end of the line of tabs.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Literal, NamedTuple

SHOWN_SECONDS = 8.0
KEPT = 200

Severity = Literal["ok", "warn", "bad"]


class Notice(NamedTuple):
    """Something that the program has said, at ``wall_seconds`` since the epoch."""

    wall_seconds: float
    severity: Severity
    text: str


class Notices:
    """Bounded; a repeated notice counts once."""

    def __init__(self) -> None:
        self._all: deque[Notice] = deque(maxlen=KEPT)
        self._said = 0.0
        self._shown: Notice | None = None

    def say(self, text: str, severity: Severity = "ok", only_log: bool = False) -> None:
        """Add a notice.

        With ``only_log`` it is not shown: it stands on the screen already.
        """
        if not self._all or self._all[-1].text != text:
            self._all.append(Notice(time.time(), severity, text))
        if not only_log:
            self._said, self._shown = time.monotonic(), self._all[-1]

    @property
    def all(self) -> tuple[Notice, ...]:
        """Oldest first."""
        return tuple(self._all)

    @property
    def current(self) -> Notice | None:
        """The newest one, while it is fresh."""
        return self._shown if time.monotonic() - self._said < SHOWN_SECONDS else None
