"""Calls in the event loop that need no message.

A message of Textual's goes through a queue, a task and a search for handlers: several turns of the
event loop, which on a screen that changes twice a second are a good part of its processor time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.screen import Screen
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


ROUNDS, TURNS = 4, 200
"""How often a new tab is drawn before its first frame at most, and for how many turns of the event
loop the charts that it has made are waited for: what is late comes with the next frame.
"""


async def draw_before_showing(
    screen: Screen[Any], tab: Widget, draw: Callable[[], object], new: bool
) -> None:
    """Draw a tab that becomes visible before its first frame, which would else be an empty one.

    What is drawn depends on the sizes of the widgets, and these on what is drawn. A ``new`` tab has
    no sizes yet, and makes its charts while it is drawn.
    """
    for number in range(ROUNDS if new else 1):
        _lay_out(screen)
        draw()
        made = await _all_mounted(tab)
        if not screen.is_running or (number and not made):
            return


async def _all_mounted(tab: Widget) -> bool:
    """Wait until all parts of a tab are mounted, and return whether any was not."""
    for turn in range(TURNS):
        if all(one.is_mounted for one in tab.walk_children(Widget)):
            return turn > 0
        await asyncio.sleep(0)
    return False


def _lay_out(screen: Screen[Any]) -> None:
    """Give every widget its size now, which else it has after the next frame only."""
    if screen.is_current:
        screen._refresh_layout()


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
