"""When a picture is made of the frames that have come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GATHER_SECONDS = 0.03
"""Frames that arrive together make one picture."""
FLEET_SECONDS = 0.5
"""All hosts at once are drawn no more often: each of them sends once a second, none at the same
time.
"""


class Gathering:
    """Calls ``publish`` once for the frames that come together, in the running event loop."""

    def __init__(self, publish: Callable[[], None]) -> None:
        self._publish = publish
        self._waiting: asyncio.Handle | None = None
        self._last = 0.0
        """When it was called last, by the loop's clock."""

    def heard(self, fleet: bool = False, whole: bool = False) -> None:
        """Publish soon: at most every :data:`FLEET_SECONDS` for a ``fleet`` of hosts.

        A sample is ``whole``: what belongs to it came before it. It waits for nothing where the
        last picture is old enough.
        """
        loop = asyncio.get_running_loop()
        if whole and not fleet and loop.time() - self._last >= GATHER_SECONDS:
            self.stop()
            self._last = loop.time()
            self._waiting = loop.call_soon(self._now)
        elif self._waiting is None:
            self._waiting = loop.call_later(FLEET_SECONDS if fleet else GATHER_SECONDS, self._now)

    def stop(self) -> None:
        """Publish nothing of what came so far."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _now(self) -> None:
        self._waiting, self._last = None, asyncio.get_running_loop().time()
        self._publish()
