"""Input without polling: the thread that reads keys sleeps until there are some, or until it should end.

Textual 8.2's own looks ten times a second whether it should end, and once more for 0.1 s before it does: 0.2 s between
``q`` and the shell's prompt, and a part of the processor time of a screen on which nobody types.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from codecs import getincrementaldecoder
from typing import Any

from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver

READ_BYTES = 4096
TICK_SECONDS = 0.05
SETTLED_TICKS = 6
"""Ticks after the last input: the parser decides by time whether an escape was a key or begins a sequence."""
GONE_SECONDS = 1.5
"""From the loss of the terminal to the end of the program: so long it may take to end in order."""


def _end_without_terminal() -> None:
    """The terminal is gone. SIGHUP says so too, and is answered in the event loop; but there drawing may be stuck for
    good, because Textual's writing thread has died of the same. So: leave in any case, the agent ends with its pipe."""
    timer = threading.Timer(GONE_SECONDS, os._exit, (128 + signal.SIGHUP,))
    timer.daemon = True
    timer.start()


class PromptDriver(LinuxDriver):
    """Textual's driver but for how its input thread waits. Public: ``run_input_thread`` and ``disable_input``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ended, self._end = os.pipe()

    def disable_input(self) -> None:
        """Ends the thread. Its pipe stays readable until it has seen that it should end."""
        os.write(self._end, b"x")
        super().disable_input()
        os.read(self._ended, READ_BYTES)

    def run_input_thread(self) -> None:
        """Read, parse, post, until told to end."""
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        watched, ticks = [self.fileno, self._ended], 0
        while not self.exit_event.is_set():
            ready, _, _ = select.select(watched, [], [], TICK_SECONDS if ticks else None)
            ticks = max(0, ticks - 1)
            if self.fileno in ready:
                ticks = SETTLED_TICKS
                try:
                    data = os.read(self.fileno, READ_BYTES)
                except OSError:
                    data = b""
                if not data:
                    watched.remove(self.fileno)
                    _end_without_terminal()
                for event in parser.feed(decode(data)) if data else ():
                    self.process_message(event)
            for event in parser.tick():
                self.process_message(event)
        try:
            list(parser.feed(""))
        except (EOFError, ParseError):
            pass


def promptly(driver: type[Driver]) -> type[Driver]:
    """The driver to use where Textual would use ``driver``."""
    return PromptDriver if driver is LinuxDriver else driver
