"""Keys that come together mean what they would one after the other."""

from __future__ import annotations

import asyncio
import unicodedata

import pytest
from textual import events
from textual.keys import _character_to_key

from gpuscope.tui.screens.process_signal import SignalDialog
from tests.fakes import views
from tests.tui.pilot import in_loop, make_app, until

NAMES = {"\r": "enter", "\x1b": "escape"}


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def burst(app, keys: str) -> None:
    """As the terminal's driver does with what it has read at once."""
    for char in keys:
        name = NAMES.get(char) or (char if char.isalnum() else _character_to_key(char))
        app.post_message(events.Key(name, char if unicodedata.category(char) != "Cc" else None))


@in_loop
async def test_what_is_typed_behind_a_slash_is_typed_and_not_carried_out():
    app = make_app(views.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        await pilot.press("P")
        await until(pilot, "Processes  8")
        signals = []
        app.screen.action_signal = lambda: signals.append(1)
        burst(app, "/Kernel\r")
        await until(pilot, "filter: Kernel", "0 of 8")
        assert not signals
        assert not any(isinstance(screen, SignalDialog) for screen in app.screen_stack)


@in_loop
async def test_keys_for_a_screen_that_a_key_before_them_opens():
    app = make_app(views.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        burst(app, "P/jupyter\r>")
        await until(pilot, "filter: jupyter", "1 of 8", "sorted by memory")
        burst(app, "/\x1bqj/H200\r3")
        await until(pilot, "Findings", absent="Devices")
        assert app.session.state.process_filter == ""
        assert app.session.state.filter == "H200"


@in_loop
async def test_keys_behind_the_last_one_do_nothing():
    app = make_app(views.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        burst(app, "qP/x\r")
        for _ in range(100):
            if app._exit:
                break
            await asyncio.sleep(0.02)
        assert app._exit
        assert len(app.screen_stack) <= 1
        assert app._exception is None
