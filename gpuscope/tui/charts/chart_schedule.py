"""This module decides when charts are drawn again.

While time passes as usual they are drawn less often than numbers, and sooner when a user travels in
time.
"""

from __future__ import annotations

from math import inf

APART_SECONDS = 0.2
"""The least time between two drawings, on our own clock: a replay may run much faster."""
SLACK_SECONDS = 0.1
"""How much earlier than due a chart is drawn, because samples do not arrive on time exactly."""


class ChartPace:
    """Charts are due when ``every`` seconds have passed on our clock, or on the host's."""

    def __init__(self) -> None:
        self._drawn = -inf
        self._moment: float | None = None

    def now(self) -> None:
        """Make the charts due with the next picture."""
        self._drawn = -inf

    def wait(self, now: float, moment: float | None, every: float) -> float:
        """Return the seconds until charts of ``moment`` (on the host's clock) are due.

        They are 0 at once, and infinity when there is no need. ``every`` 0 means that each
        other moment counts: time stands still and was moved by hand.
        """
        if now - self._drawn >= every - SLACK_SECONDS > 0:
            return 0.0
        moved = inf if None in (moment, self._moment) else abs(moment - self._moment)  # type: ignore[operator]
        if moment == self._moment or moved < every - SLACK_SECONDS:
            return 0.0 if self._drawn == -inf else inf
        return max(0.0, self._drawn + APART_SECONDS - now)

    def drawn(self, now: float, moment: float | None) -> None:
        """Note that the charts of ``moment`` were drawn."""
        self._drawn, self._moment = now, moment
