"""This module measures what the viewer itself takes of a processor.

It begins once the start is over, and measures again and again.
"""

from __future__ import annotations

import time

SETTLED_SECONDS, MEASURED_SECONDS = 3.0, 5.0


class OwnLoad:
    """The load of this process, over the last ``MEASURED_SECONDS``."""

    def __init__(self) -> None:
        self._mark = (time.monotonic(), time.process_time())
        self._percent: float | None = None

    def begin(self) -> None:
        """The start begins: it does not count."""
        self._mark = (time.monotonic() + SETTLED_SECONDS, time.process_time())

    def percent(self) -> float | None:
        """Return the load in percent of one core, None before it was measured."""
        now, used = time.monotonic(), time.process_time()
        since, before = self._mark
        if now < since:  # still starting
            self._mark = (since, used)
        elif now - since >= MEASURED_SECONDS:
            self._percent = max(0.0, (used - before) / (now - since) * 100)
            self._mark = (now, used)
        return self._percent
