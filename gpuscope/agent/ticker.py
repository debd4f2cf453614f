"""Keep time without drift: a bell to wait for, and absolute monotonic deadlines."""

from __future__ import annotations

import math
import os
import select


class Bell:
    """Wakes one waiting thread, also from a signal handler.

    Unlike ``threading.Event`` its wait is not bent by a step of the wall clock (before Python 3.11
    a timed lock waits on that).
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

    def __del__(self) -> None:
        """Nobody waits any more, for who waits holds the bell."""
        for descriptor in (getattr(self, "_read", -1), getattr(self, "_write", -1)):
            if descriptor >= 0:
                os.close(descriptor)

    def ring(self) -> None:
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            pass  # it rings already

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

    The first is at once. Those after it lie on one grid for all beats of a period, so that the
    threads that ask and the thread that puts together stay in step. A missed deadline is skipped,
    not made up for in a bunch.
    """

    def __init__(self, period: float, now: float, phase: float = 0.0) -> None:
        self.period = period
        self.phase = phase
        self.next = now

    def due(self, now: float) -> bool:
        """Whether a deadline has come; then the next one is set."""
        if now < self.next:
            return False
        self.next = self._after(now)
        return True

    def set(self, period: float, now: float, phase: float = 0.0) -> None:
        """Another rhythm from now on."""
        if (period, phase) != (self.period, self.phase):
            self.period, self.phase = period, phase
            self.next = min(self.next, self._after(now))

    def _after(self, now: float) -> float:
        return (math.floor((now - self.phase) / self.period) + 1) * self.period + self.phase
