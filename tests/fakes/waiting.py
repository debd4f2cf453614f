"""Waiting for something that another process does, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def until(ask: Callable[[], T], seconds: float) -> T:
    """The first true answer of ``ask``; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds} s: {answer!r}"
        time.sleep(0.02)


async def until_true(
    ask: Callable[[], object], seconds: float, seen: Callable[[], object] = lambda: ""
) -> None:
    """Let other tasks run until ``ask`` is true; fails after ``seconds`` with what was ``seen``."""
    deadline = time.monotonic() + seconds
    while not ask():
        assert time.monotonic() < deadline, f"not within {seconds} s: {seen()}"
        await asyncio.sleep(0.01)


def own_seconds() -> float:
    """Return a clock of the time in which this thread ran or slept.

    It stands while the thread is ready and other programs have the core. What a machine that is
    shared with many adds to a duration is not in it. Only a difference of two answers means
    something; where the kernel does not tell, it is a usual clock.
    """
    try:
        waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        waited = 0.0
    return time.monotonic() - waited


def alive(pid: int) -> bool:
    """Tell whether ``pid`` is a process that has not ended.

    One whose parent has not looked yet has ended.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
