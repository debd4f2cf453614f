"""This driver reads input without polling.

The thread that reads keys sleeps until there are some, or until it should end. Textual 8.2's
own looks ten times a second whether it should end, and once more for 0.1 s before it does: 0.2
s between ``q`` and the shell's prompt, and a part of the processor time of a screen on which
nobody types.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Callable
from typing import Any

from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver

from .escapes import Escapes
from .minimal_updates import LeanApp
from .terminal_rate import ANSWER, ASK, Tap, TerminalLink

READ_BYTES = 4096
TICK_SECONDS = 0.05
SETTLED_TICKS = 6
"""Ticks after the last input: the parser decides by time whether an escape was a key or begins a
sequence.
"""
LAST_ANSWER_SECONDS = 0.2
"""How long to wait at the end for the terminal's answers to queries."""
GONE_SECONDS = 1.5
"""How long the program may take to end in order once its terminal is gone."""


def _end_without_terminal() -> None:
    """End the program when the terminal is gone.

    SIGHUP says so too, and is answered in the event loop; but there drawing may be stuck for
    good, because Textual's writing thread has died of the same. So it leaves in any case, and
    the agent ends with its pipe.
    """
    timer = threading.Timer(GONE_SECONDS, os._exit, (128 + signal.SIGHUP,))
    timer.daemon = True
    timer.start()


class PromptDriver(LinuxDriver):
    """Textual's driver but for how its input thread waits.

    ``run_input_thread`` and ``disable_input`` are its public names.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ended, self._end = os.pipe()
        self._link: TerminalLink | None = None
        self._kept = b""
        self._asked = self._answered = 0  # each is counted in one thread only
        self._file: Any = Tap(self._file, self._note_taken)

    def start_application_mode(self) -> None:
        """Forget what the terminal shows: at the start, and after ^Z, nothing there is ours."""
        app = self._app
        if isinstance(app, LeanApp):
            app.shadow.forget()
            self._link = app.link
            self._link.watched = True
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def write(self, data: str) -> None:
        """Write as Textual's driver does, and count it."""
        self._asked += data == ASK
        if self._link is not None:
            self._link.sent(len(data.encode()))
        super().write(data)

    def _note_taken(self, total: int) -> None:
        """Note, in the writing thread, how many bytes the system has taken.

        The event loop is woken only where somebody waits for it.
        """
        link = self._link
        if link is not None and not link.asks:
            link.taken(total)
            if link.waits is not None:
                self._in_loop(link.look)

    def _in_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the program ends
            pass

    def _without_answers(self, data: bytes) -> bytes:
        """Return what was typed, without the terminal's answers to queries."""
        if self._link is None or not self._link.asks:
            return data
        data, self._kept = self._kept + data, b""
        for _ in range(data.count(ANSWER)):
            self._answered += 1
            self._in_loop(self._link.answered)
        data = data.replace(ANSWER, b"")
        for cut in (ANSWER[:3], ANSWER[:2]):  # an answer in two pieces; a lone escape is a key
            if data.endswith(cut):
                data, self._kept = data[: -len(cut)], cut
                break
        return data

    def disable_input(self) -> None:
        """End the thread.

        Its pipe stays readable until it has seen that it should end.
        """
        until = time.monotonic() + LAST_ANSWER_SECONDS
        # else the shell reads the answer
        while self._asked > self._answered and time.monotonic() < until:
            time.sleep(0.005)
        os.write(self._end, b"x")
        super().disable_input()
        os.read(self._ended, READ_BYTES)

    def run_input_thread(self) -> None:
        """Read, parse and post input until the end is requested."""
        parser, escapes = XTermParser(self._debug), Escapes()
        decode = getincrementaldecoder("utf-8")("replace").decode
        watched, ticks = [self.fileno, self._ended], 0
        while not self.exit_event.is_set():
            ready, _, _ = select.select(watched, [], [], TICK_SECONDS if ticks else None)
            ticks = max(0, ticks - 1)
            if self.fileno in ready:
                try:
                    data = os.read(self.fileno, READ_BYTES)
                except OSError:
                    data = b""
                if not data:
                    watched.remove(self.fileno)
                    _end_without_terminal()
                typed = escapes.apart(decode(self._without_answers(data)))
                ticks = SETTLED_TICKS if typed else ticks
                # "", for half a character, would end the parser
                for event in parser.feed(typed) if typed else ():
                    self.process_message(event)
            for event in parser.tick():
                escapes.decided()
                self.process_message(event)
        try:
            list(parser.feed(""))
        except (EOFError, ParseError):
            pass


def promptly(driver: type[Driver]) -> type[Driver]:
    """Return the driver to use where Textual would use ``driver``."""
    return PromptDriver if driver is LinuxDriver else driver
