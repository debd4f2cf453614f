"""What all threads that ask for readings have in common.

Any of them may hang in a system call forever; then only its own answers stop. Each thread publishes
by replacing whole attributes, so that reading them needs no lock, and rings the collector's bell
when it has something for the first time. All are daemons, so a thread that hangs does not keep the
process alive.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional, Tuple

from ..wire.frames import DRIVER_ERROR, TIMEOUT, Unknown
from .ticker import Bell

SLOW_CALL_SECONDS = 0.5

Doing = Optional[Tuple[str, float]]


class Worker:
    """A daemon thread with a bell.

    ``doing`` says in which call it is and since when; None between calls.
    ``on_answer`` is called when there is an answer that others may wait for.
    """

    def __init__(self, name: str, on_answer: Callable[[], None]) -> None:
        self.bell = Bell()
        self.interval = 1.0
        self.on_answer = on_answer
        self.stopping = False
        self.started = time.monotonic()
        self.failure: Optional[Unknown] = None
        """Why the thread ended by an error of ours; None as long as it has not."""
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    @property
    def doing(self) -> Doing:
        return None

    def pending(self, now: float) -> Optional[Unknown]:
        """Return the name of the call that takes too long, if there is no first answer yet.

        None if no call does.
        """
        doing = self.doing
        return (
            hung(doing, now, now)
            if doing is not None and now - doing[1] > SLOW_CALL_SECONDS
            else None
        )

    def start(self) -> None:
        self.started = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self.stopping = True
        self.bell.ring()

    def set_rate(self, hz: float) -> None:
        """Ask this often from now on."""
        self.interval = 1.0 / hz
        self.bell.ring()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _main(self) -> None:
        try:
            self.run()
        except Exception as error:
            self.failed(
                Unknown(
                    DRIVER_ERROR,
                    f"gpuscope failed here: {type(error).__name__}: {str(error)[:200]}",
                )
            )

    def run(self) -> None:
        raise NotImplementedError

    def failed(self, reason: Unknown) -> None:
        """Publish that an error of ours ended the thread, so that it is not taken for a hang."""
        self.failure = reason


def hung(doing: Doing, since: float, now: float) -> Unknown:
    """Return why there is no answer: which call does not return, and for how long.

    Between calls it says for how long there was no answer. The age is in whole seconds, and from
    ten on in tens, so that the text does not change with every sample.
    """
    name, began = doing if doing is not None else ("", since)
    age = max(now - began, 0.0)
    seconds = f"{age:.1f}" if age < 1 else str(int(age) if age < 10 else int(age) // 10 * 10)
    if name:
        return Unknown(TIMEOUT, f"{name} has not returned for {seconds} s")
    return Unknown(TIMEOUT, f"no answer for {seconds} s")


class Backoff:
    """Deadlines at growing intervals: after 1, 2, 4 … 60 s."""

    FIRST, LONGEST = 1.0, 60.0

    def __init__(self, now: float) -> None:
        self._delay = self.FIRST
        self._next = now + self._delay

    def due(self, now: float) -> bool:
        if now < self._next:
            return False
        self._delay = min(2 * self._delay, self.LONGEST)
        self._next = now + self._delay
        return True
