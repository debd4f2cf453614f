"""What comes late changes nothing of what was asked for meanwhile.

That is the tab gone to, and the filter that is typed.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.main_screen import MainScreen, ViewChanged
from gpuscope.tui.log.pane import LogPane
from gpuscope.tui.widgets.filter import FilterLine
from gpuscope.tui.widgets.table import LiveTable
from tests.fakes import views
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.test_hosts_pane import SIX, app_of
from tests.tui.test_typeahead import burst

PID = 48216


class SlowOverview:
    """An Overview that is mounted only when ``built`` is set.

    ``begun`` says that it waits for that.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.built = asyncio.Event(), asyncio.Event()
        mount = MainScreen.mount

        async def late(main: MainScreen, *widgets: Any, **where: Any) -> None:
            await mount(main, *widgets, **where)
            if widgets and widgets[0].id == "overview":
                self.begun.set()
                await self.built.wait()

        monkeypatch.setattr(MainScreen, "mount", late)


@in_loop
async def test_a_tab_that_is_asked_for_while_the_first_is_still_built_stays(monkeypatch):
    slow, app = SlowOverview(monkeypatch), make_app(views.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await slow.begun.wait()
        burst(app, "6")
        while app.main._panes.get("log") is None or not app.main._panes["log"].is_mounted:
            await asyncio.sleep(0.01)
        slow.built.set()
        await until(pilot, "WHAT", "live")
        assert app.main.tab == "log"
        burst(app, "1")
        await until(pilot, "─ GPUs", absent="WHAT")


async def typing(app: GpuscopeApp, pilot: Any) -> FilterLine:
    """Return a filter line with something in it.

    It is there before anything is known of several hosts or of who was sought.
    """
    burst(app, "/al")
    await until(pilot, "filter: al")
    return app.main.query_one(FilterLine)


@pytest.mark.slow
@in_loop
async def test_the_offer_of_all_hosts_leaves_who_types_a_filter_on_the_tab():
    app = app_of(SIX)
    # they are made in a thread, and may take a while
    sources, app.session.hosts = app.session.hosts, None
    async with app.run_test(size=(120, 40)) as pilot:
        line = await typing(app, pilot)
        app.session.hosts = sources
        app.main.post_message(ViewChanged())
        await until(pilot, "0 Fleet")
        burst(app, "pha\r")
        await until(pilot, "filter: alpha")
        assert (app.main.tab, app.session.state.filter, app.session.fleet_filter) == (
            "overview",
            "alpha",
            "",
        )
        assert not line.is_attached


@pytest.mark.slow
@in_loop
async def test_a_process_that_was_sought_waits_until_nobody_types_or_is_asked():
    app = make_app(views.training())
    found = []

    def sought():
        if found:
            return None
        found.append(app.session.host)
        return app.session.host, PID

    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        burst(app, "/al")
        await until(pilot, "filter: al")
        app.session.sought = sought
        app.main.post_message(ViewChanged())
        await pilot.pause()
        burst(app, "\x1b?")
        await until(pilot, "On this row")
        app.main.post_message(ViewChanged())
        await pilot.pause()
        assert not found, "nobody takes the keyboard from a filter, or lies down over a dialog"
        burst(app, "\x1b")
        await until(pilot, "Jobs", absent="On this row")
        app.main.post_message(ViewChanged())
        await until(pilot, f"{PID}", "rank 3")
        assert len(app.screen_stack) == 2


# ── dialogs: their list or field has the keyboard before the next key is looked at ────────────────


@in_loop
async def test_a_key_behind_the_one_that_opens_a_list_moves_in_it():
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Demo trainer")
        burst(app, "pj")
        await until(pilot, "Pitfalls", "WHAT IS WRONG")
        table = app.screen.query_one(LiveTable)
        while app._keys._keys:
            await pilot.pause()
        assert table.cursor_key == table.rows[1].key


@in_loop
async def test_a_recording_that_was_read_leaves_who_types_another_path_alone(monkeypatch, tmp_path):
    from gpuscope.tui.lab import recording_dialog

    begun, done = asyncio.Event(), asyncio.Event()
    trainings = [SimpleNamespace(title=title, pids=(7,), steps=5) for title in ("first", "second")]

    async def slowly(_: Any) -> Any:
        begun.set()
        await done.wait()
        return trainings

    monkeypatch.setattr(recording_dialog, "in_own_thread", slowly)
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Demo trainer")
        app.push_screen(recording_dialog.RecordingDialog(app.session.labs, lambda entry: None))
        await until(pilot, "A recording as a run")
        dialog = app.screen
        asked = asyncio.create_task(dialog._read("a"))
        await begun.wait()
        burst(app, "b")
        await until(pilot, " b ")
        done.set()
        await asked
        await until(pilot, "second")
        assert app.focused is dialog._input
        await dialog._read("b")
        assert app.focused is dialog._table


@in_loop
async def test_a_log_that_is_left_before_it_was_drawn_does_not_turn_in_circles(monkeypatch):
    asked = []
    show = LogPane._show_chosen
    monkeypatch.setattr(LogPane, "_show_chosen", lambda pane: (asked.append(1), show(pane)))
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await app.action_do("log")
        await app.action_do("overview")
        await pilot.pause(0.3)
        assert 0 < len(asked) < 40, "in circles it would be asked hundreds of times"
        await app.action_do("log")
        await until(pilot, "WHAT", "probe of pid 48213 answers")
