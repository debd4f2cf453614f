"""How fast the terminal takes what is drawn, and how much may be on its way.

A key is answered behind all that was sent before it. On a slow link that is what decides how the
screen feels, so little is sent ahead: as much as the link takes in :data:`AHEAD_SECONDS`, numbers
before charts, and always the newest picture.

Two signals. Here the system takes no more bytes than the terminal reads, so that writing waits.
Behind ssh there are buffers for a minute, and the only one who knows is the terminal: it is asked
for its status (DSR) behind a picture, and answers when it has come that far.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from ...text.units import rate_text, window_text

ASK, ANSWER = "\x1b[5n", b"\x1b[0n"
"""The request for the device status, and the answer of a terminal."""
AHEAD_SECONDS = 0.15
LEAST_BYTES = 600
"""The least bytes that are worth a write."""
QUICK_SECONDS = 0.06
"""Bytes that arrive sooner than this only show that the link is not slow."""
TELLING_BYTES = 400
"""The least bytes from which a rate is computed."""
FAST_BYTES, SWALLOWED_BYTES = 1_600, 24_000
"""A link is fast if this much is taken at once: by the terminal, and by the system, which buffers.
"""
KNOWN_SECONDS = 60.0
"""How long a link that was slow counts as slow."""
DEAF_SECONDS = 8.0
"""After this long without an answer, a terminal counts as one that never answers."""
SLOW_BYTES_PER_SECOND = 100_000
"""Below this rate the link counts as slow: a whole screen takes a quarter of a second."""
LASTING_SECONDS = 10.0
"""How long a link must be slow before it is reported: a busy machine may pause once as well."""
CHARTS_SHARE = 0.3
LONGEST_CHARTS_SECONDS = 30.0


class TerminalLink:
    """The bytes given to the driver, and those that have arrived.

    All of it is called in the event loop, but for :meth:`taken` and :class:`Tap`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.watched = False
        """Whether the driver reports which bytes have arrived."""
        self.asks = False
        """Whether the terminal is asked. If not, the system's own waiting is watched."""
        self.rate: float | None = None
        """The bytes a second, None if the link has never been slow or no longer is."""
        self.waits: Callable[[], None] | None = None
        """Called once when there is room again; see :meth:`wait`."""
        self._taken: deque[tuple[int, float]] = deque()
        """What the writing thread has noted since the last :meth:`look`."""
        self._clock = clock
        self._sent = self._arrived = 0
        self._marks: deque[tuple[int, float]] = deque()
        self._before = 0.0
        self._trip = 0.0
        """The shortest time from a question to its answer."""
        self._charts_bytes = self._learnt = self._slow_since = 0.0
        self._level = self._levelled = 0.0
        self._heard = False

    @property
    def total(self) -> int:
        """Return the bytes given to the driver so far."""
        return self._sent

    # ── what happens ──

    def sent(self, count: int) -> None:
        """Note how many bytes were given to the driver."""
        self._sent += count
        # what the system keeps for the terminal, as far as can be said
        if not self.asks and self.rate is not None:
            now = self._clock()
            self._level = max(0.0, self._level - self.rate * (now - self._levelled)) + count
            self._levelled = now

    def mark(self) -> str:
        """Return what to send after a complete picture, "" for nothing."""
        self.look()
        now = self._clock()
        if not self.watched:
            return ""
        if not self.asks:
            self._heard = True
            self._marks.append((self._sent, now))
            return ""
        if self._marks and now - self._marks[0][1] > DEAF_SECONDS:
            self.asks = False
            self._marks.clear()
            self._arrived = self._sent
            return ""
        if self._marks:
            return ""
        self._marks.append((self._sent, now))
        return ASK

    def answered(self) -> None:
        """Note that the terminal has answered, so everything before the question has arrived."""
        if self.asks and self._marks:
            self._heard = True
            self.arrived(self._marks[0][0])

    def taken(self, total: int) -> None:
        """Note, in any thread, that the system has taken the first ``total`` bytes.

        It counts when the event loop looks the next time.
        """
        self._taken.append((total, self._clock()))

    def look(self) -> None:
        """Count what was noted since the last time."""
        while self._taken:
            total, when = self._taken.popleft()
            if not self.asks:
                self.arrived(total, when)

    def wait(self, call: Callable[[], None]) -> None:
        """Call this once when there is room again."""
        self.waits = call
        self.look()  # noted before somebody waited: then nobody was woken

    def arrived(self, total: int, when: float | None = None) -> None:
        """Note that the first ``total`` bytes have arrived, at ``when`` or just now."""
        now = self._clock() if when is None else when
        while self._marks and self._marks[0][0] <= total:
            upto, since = self._marks.popleft()
            self._learn(upto - self._arrived, now - max(since, self._before), now - since)
            self._arrived, self._before = upto, now
        if self.waits is not None and self.room() > 0:
            waits, self.waits = self.waits, None
            waits()

    def _learn(self, count: int, seconds: float, trip: float) -> None:
        if self.asks and count < TELLING_BYTES:
            self._trip = min(self._trip or trip, trip)
        seconds, now = seconds - self._trip, self._clock()
        if seconds >= QUICK_SECONDS and count >= TELLING_BYTES:
            found = count / seconds
            if not self.slow or now - self._learnt > LASTING_SECONDS:
                self._slow_since = now
            self.rate = found if self.rate is None else self.rate + 0.3 * (found - self.rate)
            self._learnt = now
        elif now - self._learnt > KNOWN_SECONDS or count >= (
            FAST_BYTES if self.asks else SWALLOWED_BYTES
        ):
            self.rate = None

    def charts_took(self, count: int) -> None:
        """Note how many bytes a drawing of all charts took."""
        self._charts_bytes = (
            count
            if not self._charts_bytes
            else self._charts_bytes + 0.3 * (count - self._charts_bytes)
        )

    # ── what follows ──

    def room(self) -> float:
        """Return the bytes that may be sent now, 0 or less for none.

        It is infinity where nothing is known to be slow.
        """
        self.look()
        if self.rate is not None:
            kept = 0.0 if self.asks else self._level - self.rate * (self._clock() - self._levelled)
            return max(self.rate * AHEAD_SECONDS, LEAST_BYTES) - max(
                self._sent - self._arrived, kept
            )
        late = (
            self._heard
            and self._marks
            and self._clock() - self._marks[0][1] > AHEAD_SECONDS + self._trip
        )
        return 0.0 if late else float("inf")

    @property
    def slow(self) -> bool:
        return self.rate is not None and self.rate < SLOW_BYTES_PER_SECOND

    def charts_seconds(self, usual: float) -> float:
        """Return the least time between two drawings of charts.

        On a fast link it is ``usual``.
        """
        if not self.slow or not usual or self.rate is None:
            return usual
        return min(
            max(usual, round(self._charts_bytes / (CHARTS_SHARE * self.rate))),
            LONGEST_CHARTS_SECONDS,
        )

    def text(self, charts_seconds: float, busy: bool = False) -> str:
        """Return what there is to say of a terminal that has been slow for a while, else "".

        An example is ``slow link: 29.3 KiB/s, charts every 5 s``. Without ssh there is no link,
        and on a ``busy`` machine the terminal is not to blame.
        """
        if not self.slow or self.rate is None:
            return ""
        if self._learnt - self._slow_since < LASTING_SECONDS:
            return ""
        what = "link" if os.environ.get("SSH_CONNECTION") else "terminal"
        if busy and what == "terminal":
            return ""
        return f"slow {what}: {rate_text(self.rate)}, charts every {window_text(charts_seconds)}"


class Tap:
    """The file that the driver's writing thread writes to.

    It tells how much of it the system has taken.
    """

    def __init__(self, file: TextIO, taken: Callable[[int], None]) -> None:
        self._file, self._taken = file, taken
        self._written = 0

    def write(self, text: str) -> int:
        self._written += len(text.encode())
        return self._file.write(text)

    def flush(self) -> None:
        self._file.flush()
        self._taken(self._written)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
