"""Driving the app in tests: made-up data, a pilot, waiting for what must appear."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any

from textual.pilot import Pilot

from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.shell.session import Session
from gpuscope.tui.terminal import typeahead
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.tui.snapshots import text

WAIT_SECONDS = 60.0
"""What healthy parts, real processes among them, may take on a starved machine; only a failing test
waits so long.
"""
typeahead.WAIT_SECONDS = 10.0
"""No key of a test goes on without what came before it, however many tests share a core."""


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An async test without a plugin."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def make_app(frames: list[f.Frame], start: str = "overview", **options: Any) -> GpuscopeApp:
    """The app over a store that has heard these frames, with no source."""
    session = Session(views.store_of(frames), **options)
    session.doctor.prepare()  # else its rules come when their thread has loaded them
    return GpuscopeApp(session, start)


def feed(app: GpuscopeApp, *frames: f.Frame) -> None:
    """More frames, as a source would bring them."""
    for frame in frames:
        app.session._hear(views.SOURCE, frame, getattr(frame, "m", 0) / 1e9)


async def until(pilot: Pilot[Any], *wanted: str, absent: str = "") -> str:
    """Wait until all of ``wanted`` stand on the screen and ``absent`` does not.

    Returns the screen's text.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        await pilot.pause()
        shown = text(pilot.app)
        if all(part in shown for part in wanted) and not (absent and absent in shown):
            return shown
        if time.monotonic() > deadline:
            raise AssertionError(f"{wanted!r} without {absent!r} did not appear in\n{shown}")
        await asyncio.sleep(0.02)


def place_of(screen: str, words: str) -> tuple[int, int]:
    """The column and the row at which these words begin."""
    y = next(y for y, line in enumerate(screen.splitlines()) if words in line)
    return screen.splitlines()[y].index(words), y


async def at_the_jobs(pilot: Pilot[Any]) -> None:
    """Give the keyboard to the list of jobs; it is there already where a job stands still."""
    while not pilot.app.screen.query_one("#jobs").has_focus:
        await pilot.press("tab")
        await pilot.pause()
