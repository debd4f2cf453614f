"""This module answers keys that come faster than they are answered.

They are typed ahead, over a slow link, or pasted by a terminal as keys. Textual hands each key
to the widget that has the focus, lets it climb to the app, and looks for a binding only there.
Of keys that came together all but the first would start at the widget that had the focus before
the first was answered and end at the bindings in force afterwards: of "/Ken" in a list of
processes the K would not be typed but ask for a signal. Here each key is answered, with what
follows from it, before the next is looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from textual import events
from textual.app import App, ScreenStackError
from textual.message_pump import MessagePump
from textual.screen import Screen

WAIT_SECONDS = 0.5
"""For a screen to be ready, or for a widget to deal with what a key led to: no longer than this
does a key wait for the one before while the program has all the time it wants. See :func:`_within`.
"""
LONGEST_SECONDS = 5.0
"""The same limit on a machine that is so busy that the program gets no time."""
SLICE_SECONDS, LATE_SECONDS = 0.05, 0.01


class TypeAhead:
    """What answers the keys of one app in turn, each as a message of its own.

    What a key puts off to the app's next message, such as a change of focus, is done before the
    next key. ``pressed`` is called before a key is answered, and ``unanswered`` after one that does
    nothing where the user is. The keys of ``leaving`` drop what was typed before them.
    """

    def __init__(
        self,
        app: App[Any],
        unanswered: Callable[[str], None] = lambda key: None,
        pressed: Callable[[], None] = lambda: None,
        leaving: Collection[str] = (),
    ) -> None:
        self._app, self._unanswered, self._pressed = app, unanswered, pressed
        self._leaving = leaving
        self._keys: deque[events.Key | events.Paste] = deque()

    def take(self, event: events.Key | events.Paste) -> bool:
        """Return whether this key of the terminal, or pasted text, will be answered here.

        Else it is Textual's.
        """
        if event.is_forwarded:
            return False
        # who leaves waits for nothing typed before
        if isinstance(event, events.Key) and event.key in self._leaving:
            while len(self._keys) > 1:
                self._keys.pop()
        self._keys.append(event)
        if len(self._keys) == 1:
            self._app.call_later(self._next)
        return True

    async def _next(self) -> None:
        try:
            await self._answer(self._keys[0])
        finally:
            self._keys.popleft()
            if self._keys:
                self._app.call_later(self._next)

    async def _answer(self, event: events.Key | events.Paste) -> None:
        app = self._app
        try:
            screen = app.screen
        except ScreenStackError:  # not there yet
            return
        if app._exit:  # on its way out
            return
        app.app_focus = True
        # opened by the key before: its lists and fields are still being made
        if not screen.is_mounted:
            await _within(screen._mounted_event.wait())
        focused = screen.focused
        self._pressed()
        if isinstance(event, events.Paste):  # for the field that a key before it opened
            (focused or screen)._forward_event(event)
        elif await app._check_bindings(event.key, priority=True):
            pass
        elif focused is not None and focused.check_consume_key(event.key, event.character):
            focused._forward_event(event)  # a text field: its character
        elif not await app._check_bindings(event.key):
            self._unanswered(event.key)
        nodes = (
            focused.ancestors_with_self if focused is not None and focused.is_attached else [screen]
        )
        for node in nodes:
            await _wait_until_idle(node)
            if isinstance(node, Screen):
                return


async def _wait_until_idle(node: MessagePump) -> None:
    """Wait until a widget has handled all its messages."""
    done = asyncio.Event()
    if node.call_later(done.set):
        await _within(done.wait())


async def _within(waiting: Coroutine[Any, Any, Any]) -> None:
    """Wait for this, but not for ever.

    It may itself wait for a key, or for a host. Only time counts in which this program was
    woken when it wanted to be: where it is busy, or starved by others, the answer to a key is
    under way.
    """
    task = asyncio.ensure_future(waiting)
    left, ends = WAIT_SECONDS, time.monotonic() + LONGEST_SECONDS
    while left > 0 and (asleep := time.monotonic()) < ends:
        done, _ = await asyncio.wait((task,), timeout=SLICE_SECONDS)
        if done:
            return
        if time.monotonic() - asleep < SLICE_SECONDS + LATE_SECONDS:
            left -= SLICE_SECONDS
    task.cancel()
