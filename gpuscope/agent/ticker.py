"""Keep time without drift: a bell to wait for, and absolute monotonic deadlines."""

from __future__ import annotations

import math
import os
import select


class Bell:
    """Wakes one waiting thread, also from a signal handler.

    Unlike ``threading.Event``, its wait is not affected by setting the wall clock (before Python
    3.11 a timed lock waits on that clock).
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

    def __del__(self) -> None:
        """Close the descriptors. No thread waits any more, because it would hold the bell."""
        for descriptor in (getattr(self, "_read", -1), getattr(self, "_write", -1)):
            if descriptor >= 0:
                os.close(descriptor)

    def ring(self) -> None:
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            pass  # it is already ringing

    def wait(self, seconds: float) -> bool:
        """Wait until rung or for ``seconds``; True when rung."""
        if not self._poll.poll(max(0.0, seconds) * 1000):
            return False
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass
        return True


class Beat:
    """Deadlines every ``period`` seconds, ``phase`` seconds after a common grid.

    The first one is at once. The later ones lie on the same grid for all objects with this period,
    so that the threads that ask and the thread that assembles stay in step. Missed deadlines are
    skipped and not made up for.
    """

    def __init__(self, period: float, now: float, phase: float = 0.0) -> None:
        self.period = period
        self.phase = phase
        self.next = now

    def due(self, now: float) -> bool:
        """Whether a deadline has come; if so, the next one is set."""
        if now < self.next:
            return False
        self.next = self._after(now)
        return True

    def set(self, period: float, now: float, phase: float = 0.0) -> None:
        if (period, phase) != (self.period, self.phase):
            self.period, self.phase = period, phase
            self.next = min(self.next, self._after(now))

    def _after(self, now: float) -> float:
        return (math.floor((now - self.phase) / self.period) + 1) * self.period + self.phase
