"""Random keys and sizes go over a random host, a short piece of ``make soak-screens``.

The piece goes in order, and what the terminal shows afterwards is what there is to show.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.keys import _character_to_key

from gpuscope.store.store import Store
from gpuscope.store.view import Link
from gpuscope.tui.app import app as app_module
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.shell.session import Session
from tests.fakes import views
from tests.fakes.random_host import RandomHost
from tests.tui.pilot import feed, in_loop
from tests.tui.terminal import Mirrored

SEEDS = range(int(os.environ.get("GPUSCOPE_SOAK_SEEDS", "0"))) or (9, 16)
STEPS = 60
SIZES = ((80, 24), (120, 40), (200, 60), (50, 14))
KEYS = [
    *"0123555PjjjkkuzZnNcmwlhxXoyvfF+-<>,.{}[]?",
    "enter",
    "enter",
    "tab",
    "tab",
    "escape",
    "escape",
    "escape",
]


class Screen(GpuscopeApp, Mirrored):
    CSS_PATH = str(Path(app_module.__file__).parent / "app.tcss")
    draws = True  # type: ignore[assignment]


def press(app: Screen, key: str) -> None:
    char = key if len(key) == 1 else None
    app.post_message(
        events.Key(_character_to_key(char) if char and not char.isalnum() else key, char)
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@in_loop
async def test_the_terminal_shows_what_there_is_after_random_keys_and_sizes(seed):
    chance, host, rooms = random.Random(seed), RandomHost(seed), [float("inf")]
    store = Store()
    store.add_source(views.SOURCE, "test")
    store.set_link(views.SOURCE, Link("live"))
    app = Screen(Session(store))
    app.session.doctor.prepare()
    app.link.room = lambda: rooms[0]  # type: ignore[method-assign]
    async with app.run_test(size=SIZES[seed % 4]) as pilot:
        await pilot.pause()
        feed(app, *host.begin())
        for step in range(STEPS):
            rooms[0] = chance.choice((float("inf"), float("inf"), 400.0, 0.0))
            feed(app, *host.sample())
            press(app, chance.choice(KEYS))
            if chance.random() < 0.5:
                app.main.refresh_all()
            if step % 15 == 14:
                await resize(pilot, *chance.choice(SIZES))
            if chance.random() < 0.7:
                await pilot.pause()
        while len(app.screen_stack) > 1:
            await pilot.press("escape")
        rooms[0] = float("inf")
        app.direct.send()
        await pilot.pause()
        assert app.terminal.rows == app.redrawn().rows


async def resize(pilot: Any, width: int, height: int) -> None:
    """Another size, in which a terminal shows nothing of ours at first."""
    await pilot.resize_terminal(width, height)
    pilot.app.terminal = None
    pilot.app.redraw()
