"""This module keeps what the program itself has to say.

All of it is kept for the log; the newest is shown for a while in the line at the bottom, where
it is shortened rather than left out.
"""

from __future__ import annotations

import re
import time
from collections import deque
from pathlib import Path
from typing import Literal, NamedTuple

from ...text.width import ELLIPSIS, beginning, cells

SHOWN_SECONDS = 8.0
KEPT = 200
_PATH = re.compile(r"(?<!\S)(?:~|/[^/\s]+)(?:/[^/\s]+)+/(?=[^/\s]+)")
"""The folders of a path of which the name and the beginning are worth more than the rest."""

Severity = Literal["ok", "warn", "bad"]
Kind = Literal["program", "file", "link", "probe", "signal"]
"""Those that are not the program's own are news, and stand in the log."""


class Notice(NamedTuple):
    """Something that the program has said, at ``wall_seconds`` since the epoch."""

    wall_seconds: float
    severity: Severity
    text: str
    kind: Kind = "program"
    path: Path | None = None
    """The file that was made."""
    opens: str = ""
    """The kind of screen that shows the file."""


class Notices:
    """Bounded; a repeated notice counts once."""

    def __init__(self) -> None:
        self._all: deque[Notice] = deque(maxlen=KEPT)
        self._said = 0.0
        self._shown: Notice | None = None
        self._passing = False
        self.shown_seconds: float | None = None
        """The wall clock of the moment that a replay shows; None where it is that of now."""

    def hint(self, text: str) -> None:
        """Show a notice that is about the key just pressed, and is not worth keeping."""
        self._said, self._shown = time.monotonic(), Notice(time.time(), "warn", text)
        self._passing = True

    def unhint(self) -> bool:
        """Forget what was said about a key, because another one was pressed.

        Return whether there was anything.
        """
        passing, self._passing = self._passing, False
        if passing:
            self._shown = None
        return passing

    def say(
        self,
        text: str,
        severity: Severity = "ok",
        only_log: bool = False,
        kind: Kind = "program",
        path: Path | None = None,
        opens: str = "",
    ) -> None:
        """Add a notice.

        With ``only_log`` it is not shown: it stands on the screen already. ``path`` is a file that
        was made, which a screen of the kind ``opens`` shows.
        """
        if not self._all or self._all[-1].text != text:
            at = time.time() if self.shown_seconds is None else self.shown_seconds
            self._all.append(Notice(at, severity, text, kind, path, opens))
        if not only_log:
            self._said, self._shown, self._passing = time.monotonic(), self._all[-1], False

    @property
    def all(self) -> tuple[Notice, ...]:
        """Oldest first."""
        return tuple(self._all)

    @property
    def current(self) -> Notice | None:
        """The newest one, while it is fresh."""
        return self._shown if time.monotonic() - self._said < SHOWN_SECONDS else None


def shortened(text: str, room: int, ellipsis: str = ELLIPSIS) -> str:
    """Return a notice in at most ``room`` cells.

    The folders of a path go first, since its file is what one looks for; then the end is cut.
    """
    if cells(text) > room:
        text = _PATH.sub(lambda found: f"{found[0].split('/')[0]}/{ellipsis}/", text)
    if cells(text) <= room:
        return text
    return beginning(text, max(0, room - cells(ellipsis))) + ellipsis
