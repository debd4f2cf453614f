"""Keeps a limit on file sizes (``ulimit -f``) from ending the trainer through a file of ours.

The kernel sends SIGXFSZ to whoever writes beyond the limit. Python ignores that signal at its
start, but a trainer may have given it back its default, which is to end the process.
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
    """Raises OSError where a file of ``size`` bytes is beyond the limit."""
    most = limit()
    if most is not None and size > most:
        raise OSError(f"{what} needs {size} bytes, and the limit for a file is {most} (ulimit -f)")


@contextmanager
def no_signal() -> Iterator[None]:
    """Give a writer beyond the file size limit an OSError, and the trainer no signal.

    This holds for writes of this thread inside the block.

    A look at the limit is not enough: it may be lowered until the write, and nobody knows how large
    a trace becomes.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXFSZ})
    try:
        yield
    finally:
        if signal.SIGXFSZ not in before:
            while signal.sigtimedwait({signal.SIGXFSZ}, 0) is not None:
                pass
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGXFSZ})
