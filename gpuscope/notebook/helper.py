"""Start the child process that examines this kernel, and read what it answers.

The kernel itself does little: it starts a process, reads lines and passes them on. For a live look
a thread does this.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..process.line_child import ChildError, Ended, LineChild
from ..text.units import count_text, duration_text, window_text
from .markup import Output

FIRST_SECONDS = 20.0
"""Seconds to wait for the first answer; on a busy machine a process starts slowly."""
_START = (
    "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop(1)]; "
    "from gpuscope.notebook.look import main; main(sys.argv[1:])"
)
_PLACE = str(Path(__file__).resolve().parents[2])
"""The folder that contains the package.

It comes last on the child's path, and the notebook's own folder is left out, because a file there
may have the name of a module that the child needs.
"""


class LookError(Exception):
    """There is no answer. The text says why, as a sentence."""


def _start(seconds: float, width: int) -> LineChild:
    argv = [sys.executable, "-c", _START, _PLACE, str(os.getpid()), str(seconds), str(width)]
    try:
        return LineChild(argv, env={**os.environ, "GPUSCOPE": "0"})
    except OSError as error:
        raise LookError(f"{sys.executable} cannot be started: {error.strerror}.") from None


def _next(child: LineChild, seconds: float) -> tuple[Output, float]:
    """Return what to show, and how much processor time the child has used so far."""
    try:
        answer: dict[str, Any] = json.loads(child.read_line(time.monotonic() + seconds))
        return Output(answer["html"], answer["text"]), float(answer["cpu_seconds"])
    except Ended:
        raise
    except ChildError as error:
        raise LookError(f"The check gave no answer: {error}.") from None


def look_once(width: int) -> Output:
    """Examine this process once and return what to show, with what the examination cost.

    Raises :class:`LookError`.
    """
    began, used = time.monotonic(), time.process_time()
    child = _start(0.0, width)
    try:
        shown, cpu = _next(child, FIRST_SECONDS)
    except Ended as error:
        words = child.last_words
        raise LookError(f"The check gave no answer: {error}. {words}".rstrip()) from None
    finally:
        child.close()
    took, own = time.monotonic() - began, time.process_time() - used
    return shown.with_notes(
        [
            f"This check took {duration_text(took)}: {duration_text(own)} of processor time in "
            f"this "
            f"process, {duration_text(cpu)} in a helper process that has ended."
        ]
    )


class LiveLook:
    """A look that is updated from a thread, until its time is over or :meth:`stop` is called.

    The thread calls ``show`` with each output. An exception in ``show`` ends the look.
    """

    def __init__(self, seconds: float, width: int, show: Callable[[Output], None]) -> None:
        """Start it. Raises :class:`LookError`."""
        self._seconds, self._show = seconds, show
        began = time.thread_time()
        self._child = _start(seconds, width)
        self._start_cpu = time.thread_time() - began
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuscope live", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; returns at once, and the thread says its last word."""
        self._stopped.set()
        # A driver call that hangs may keep the child from ending. A thread waits for it, so that
        # the kernel need not.
        threading.Thread(target=self._child.kill, name="gpuscope stop", daemon=True).start()

    def join(self, seconds: float) -> None:
        """Wait until its last word is said."""
        self._thread.join(seconds)

    def _run(self) -> None:
        shown, cpu, updates, problem = Output("", ""), 0.0, 0, ""
        own = time.thread_time()
        try:
            while True:
                shown, cpu = _next(self._child, FIRST_SECONDS + self._seconds)
                if self._stopped.is_set():
                    break
                updates += 1
                until = f"Live for {window_text(self._seconds)}, or until the next cell."
                self._show(shown.with_notes([until]))
        except Ended as error:
            problem = "" if updates or self._stopped.is_set() else f"{error}"
        except Exception as error:
            problem = str(error)
        try:
            self._child.close()
            why = "the next cell started" if self._stopped.is_set() else "its time was up"
            own = time.thread_time() - own + self._start_cpu
            spent = (
                f"{count_text(updates, 'update')} took {duration_text(own)} of "
                f"processor time in this process, {duration_text(cpu)} in a helper process that "
                f"has ended"
            )
            last = f"The live view gave no answer: {problem}." if problem else ""
            self._show(shown.with_notes([last or f"No longer live: {why}. {spent}."]))
        except Exception:
            return  # the notebook that would show it has gone
