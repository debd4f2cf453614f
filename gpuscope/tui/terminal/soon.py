"""Calls in the event loop that need no message.

A message of Textual's goes through a queue, a task and a search for handlers: several turns of the
event loop, which on a screen that changes twice a second are a good part of its processor time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.widget import Widget


def soon(app: App[Any], call: Callable[[], object]) -> None:
    """Call this in the event loop when what runs now is done.

    An error in it ends the app, as one in the handler of a message does.
    """
    asyncio.get_running_loop().call_soon(_guarded, app, call)


def once_after_refresh(widget: Widget, call: Callable[[], object]) -> None:
    """Call this after the next layout: once, however often it is asked for until then.

    A start and a drag of a window's edge change sizes several times before anything is drawn.
    """
    waiting: set[Callable[[], object]] = vars(widget).setdefault("_once_after_refresh", set())

    def run() -> None:
        waiting.discard(call)
        call()

    if call not in waiting and widget.call_after_refresh(run):
        waiting.add(call)


class Silence:
    """Calls ``call`` in the event loop after a number of seconds without a sign of life."""

    def __init__(self, seconds: float, call: Callable[[], object]) -> None:
        self._seconds, self._call = seconds, call
        self._waiting: asyncio.TimerHandle | None = None

    def heard(self, app: App[Any]) -> None:
        """Note a sign of life, which restarts the count."""
        if self._waiting is not None:
            self._waiting.cancel()
        loop = asyncio.get_running_loop()
        self._waiting = loop.call_later(self._seconds, _guarded, app, self._call)


def _guarded(app: App[Any], call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        app._handle_exception(error)
