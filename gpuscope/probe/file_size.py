"""Keeps a limit on file sizes (``ulimit -f``) from ending the trainer through a file of ours.

The kernel sends SIGXFSZ to a process that writes beyond the limit. Python ignores that signal from
its start, but a trainer may have restored the default, which ends the process.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import Iterator, Optional


def limit() -> Optional[int]:
    """Return how large a file of this process may become, or None if there is no limit."""
    try:
        import resource

        found = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    except (ImportError, OSError, ValueError):
        return None
    return None if found == resource.RLIM_INFINITY else found


def check(size: int, what: str) -> None:
    """Raise OSError if a file of ``size`` bytes is beyond the limit."""
    most = limit()
    if most is not None and size > most:
        raise OSError(f"{what} needs {size} bytes, and the limit for a file is {most} (ulimit -f)")


@contextmanager
def no_signal() -> Iterator[None]:
    """Let a write beyond the file size limit raise OSError, without a signal for the trainer.

    This holds for writes of this thread inside the block.

    Checking the limit before the write is not enough, because it may be lowered in between, and the
    size of a trace is not known beforehand.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXFSZ})
    try:
        yield
    finally:
        if signal.SIGXFSZ not in before:
            while signal.sigtimedwait({signal.SIGXFSZ}, 0) is not None:
                pass
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGXFSZ})
