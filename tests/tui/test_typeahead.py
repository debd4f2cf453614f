"""Keys that come together mean what they would one after the other."""

from __future__ import annotations

import asyncio
import time
import unicodedata

import pytest
from textual import events
from textual.keys import _character_to_key

from gpuscope.tui.processes.signal_dialog import SignalDialog
from gpuscope.tui.terminal import typeahead
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.fakes.waiting import until_true
from tests.tui.pilot import WAIT_SECONDS, feed, in_loop, make_app, until

NAMES = {"\r": "enter", "\x1b": "escape"}


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


@pytest.mark.slow
@in_loop
async def test_keys_for_a_screen_that_a_key_before_them_opens():
    app = make_app(views.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        burst(app, "P/jupyter\r>")
        await until(pilot, "filter: jupyter", "1 of 8", "sorted by memory")
        burst(app, "/\x1bqj/H200\r4")
        await until(pilot, "Findings", absent="─ GPUs")
        assert app.session.state.process_filter == ""
        assert app.session.state.filter == "H200"


@in_loop
async def test_news_of_the_driver_does_not_take_the_keyboard_from_a_filter_that_is_being_typed():
    """News of the driver does not take the keyboard from a filter that is being typed.

    Until it is known whether there are devices, each sample settles anew which list has the
    keyboard.
    """
    frames = views.cpu_only(5.0)
    first = next(i for i, frame in enumerate(frames) if isinstance(frame, f.Sample))
    told = frames[first]
    frames[first] = f.Sample(told.q, told.m, h=told.h, p=told.p, t=told.t, a=told.a)
    app = make_app(frames[:-2])
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        burst(app, "/")
        await until(pilot, "filter: text")
        for frame, typed in zip(frames[-2:], ("wor", "ker\r"), strict=True):
            frame.why = told.why
            feed(app, frame)
            await pilot.pause()
            burst(app, typed)
        await until(pilot, "filter: worker", absent="filter: text")
        assert len(app.screen_stack) == 1
        assert app.session.state.filter == "worker"


@in_loop
async def test_a_key_waits_for_the_one_before_as_long_as_the_machine_is_too_busy_to_answer_it(
    monkeypatch,
):
    monkeypatch.setattr(typeahead, "WAIT_SECONDS", 0.2)
    app = make_app(views.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        mount = app.main.mount

        async def late(*args, **kwargs):
            # as on a core shared with many: a little work, and long until the next
            for _ in range(12):
                time.sleep(0.08)
                await asyncio.sleep(0)
            await mount(*args, **kwargs)

        app.main.mount = late
        burst(app, "/qa\r")
        await until(pilot, "filter: qa")
        assert not app._exit


@in_loop
async def test_a_key_does_not_wait_for_ever_for_one_that_waits_itself(monkeypatch):
    monkeypatch.setattr(typeahead, "WAIT_SECONDS", 0.2)
    never = asyncio.Event()
    await asyncio.wait_for(typeahead._within(never.wait()), 2 * typeahead.LONGEST_SECONDS)


@in_loop
async def test_keys_behind_the_last_one_do_nothing():
    app = make_app(views.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        burst(app, "qP/x\r")
        await until_true(lambda: app._exit, WAIT_SECONDS)
        assert len(app.screen_stack) <= 1
        assert app._exception is None


@in_loop
async def test_who_leaves_waits_for_no_key_typed_before():
    app = make_app(views.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        done: list[str] = []
        act = app.main.action_do

        async def note(name: str) -> None:
            done.append(name)
            await act(name)

        app.main.action_do = note
        burst(app, "23456" * 20)
        app.post_message(events.Key("ctrl+c", None))
        await until_true(lambda: app._exit, WAIT_SECONDS)
        assert done[-1] == "quit"
        assert len(done) <= 2, "the key that is being answered, and that"
