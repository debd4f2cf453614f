"""Wait until a trainer ends, and write into its black box how: by which signal, or with which code.

``gpuscope run`` starts this file by its path beside the trainer that it becomes. It is neither the
parent of the trainer nor its child, so that nothing stands between the trainer and its terminal.
From Linux 6.15 on the kernel tells the exit code to whoever holds a pidfd; before, nobody but the
parent learns it, and no witness is left.

Usage: ``python -I -S …/attach/exit_witness.py PID START``, with the start time in clock ticks.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import List, Mapping

if __package__ in (None, ""):
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    import gpuscope  # noqa: F401

    del sys.path[0]  # otherwise files beside the package could shadow the standard library

from gpuscope.collect.exit_watch import ExitWatch
from gpuscope.probe import blackbox, rendezvous

TOLD_SINCE = (6, 15)
"""The version of Linux from which on a pidfd tells an exit code."""
_ENDS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""What is sent to all of a terminal or a job: the witness stays for as long as its trainer does."""


def main(words: List[str]) -> int:
    """Wait for the process of this pid and start time."""
    pid, start = int(words[0]), int(words[1])
    watch = ExitWatch(pid, start)
    watch.wait()
    status = watch.status()
    if status is not None:
        blackbox.note_exit(pid, start, status)
    return 0


def leave_one(env: Mapping[str, str]) -> None:
    """Start a witness of this process, which is going to be a trainer. Raises OSError."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    told = version is not None and (int(version[1]), int(version[2])) >= TOLD_SINCE
    start = rendezvous.start_ticks()
    if not told or not start or not sys.executable or env.get("GPUSCOPE_BLACKBOX") == "0":
        return
    words = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), str(start)]
    child = os.fork()
    if child:
        os.waitpid(child, 0)  # it ends at once: the witness is nobody's child then
        return
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(null, descriptor)
            os.closerange(3, 4096)  # a pipe of the trainer's has to end with the trainer
            for number in _ENDS:
                signal.signal(number, signal.SIG_IGN)
            os.execve(words[0], words, dict(env))
    finally:
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
