"""The tables besides the Overview's take headings, wheel and clicks.

How one looked survives a restart.
"""

from __future__ import annotations

from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widget import Widget

from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.background import view_state
from gpuscope.tui.background.view_state import ViewState
from gpuscope.tui.processes.process_screen import ProcessScreen
from gpuscope.tui.shell.session import Session
from tests.fakes import views
from tests.tui.pilot import in_loop, make_app, place_of, until
from tests.tui.test_hosts_pane import SIX, app_of, lines_of, settled

SIZE = (140, 40)


async def turn(pilot: Pilot[Any], widget: Widget, down: bool) -> None:
    """The wheel by one notch over a widget."""
    kind = events.MouseScrollDown if down else events.MouseScrollUp
    widget.post_message(kind(widget, 1, 1, 0, 0, 0, False, False, False))
    await pilot.pause()


@pytest.mark.slow
@in_loop
async def test_headings_rows_and_wheel_of_the_process_screen():
    app = make_app(views.training(4.0))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "USED/TOTAL")
        await pilot.press("P")
        screen = await until(pilot, "GPU▾", "GPU MEM")
        table = app.screen.query_one("#processes")
        await pilot.click(offset=place_of(screen, "GPU MEM"))
        screen = await until(pilot, "sorted by memory", absent="GPU▾")
        assert app.session.state.process_sort == "memory"
        await pilot.click(offset=place_of(screen, "USER"))
        screen = await until(pilot, "sorted by user", "USER▾")
        await pilot.click(offset=place_of(screen, "GPU MEM"))
        screen = await until(pilot, "sorted by memory", absent="USER▾")
        await pilot.click(offset=place_of(screen, "COMMAND"))
        assert app.session.state.process_sort == "memory", (
            "a column that is not sorted by does nothing"
        )
        keys = [row.key for row in table.rows]
        table.move_to(keys[0])
        await turn(pilot, table, down=True)
        assert table.cursor_key == keys[3]
        await turn(pilot, table, down=False)
        assert table.cursor_key == keys[0]
        x, y = place_of(screen, "COMMAND")
        await pilot.click(offset=(x, y + 3))
        await pilot.pause()
        assert table.cursor_key == keys[2]
        await pilot.click(offset=(x, y + 3))
        await until(pilot, " · started ", "GPU memory")
        assert not isinstance(app.screen, ProcessScreen), "a second click opens it"


@in_loop
async def test_headings_of_the_fleet():
    app = app_of(SIX)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "6 hosts")
        screen = await settled(pilot)
        await pilot.click(offset=place_of(screen, "HOST"))
        screen = await until(pilot, "HOST▾", "hosts sorted by name")
        assert lines_of(app) == sorted(SIX)
        await pilot.click(offset=place_of(screen, "HOST▾"))
        await until(pilot, "STATE▾", "hosts sorted worst first", absent="HOST▾")
        assert lines_of(app) != sorted(SIX)


@in_loop
async def test_wheel_and_click_on_the_jobs():
    app = make_app(views.training(4.0))
    async with app.run_test(size=SIZE) as pilot:
        screen = await until(pilot, "USED/TOTAL")
        jobs = app.main.pane.query_one("#jobs")
        jobs.focus()
        await pilot.pause()
        first = jobs.current
        await turn(pilot, jobs, down=True)
        second = jobs.current
        assert second is not None
        assert second != first
        await turn(pilot, jobs, down=False)
        assert jobs.current == first
        await pilot.click(offset=place_of(screen, second.cells["job"][0]))
        await pilot.pause()
        assert jobs.current == second


@pytest.mark.slow
@in_loop
async def test_columns_and_sorting_survive_a_restart_and_filters_do_not():
    first = make_app(views.training(4.0), state=view_state.load()[0])
    async with first.run_test(size=SIZE) as pilot:
        await until(pilot, "USED/TOTAL")
        await pilot.press("slash", *"lin", "enter", "greater_than_sign", "P")
        await until(pilot, "RSS GiB", "AGE")
        await pilot.press("c")
        await until(pilot, "Columns")
        await pilot.press(
            *"jjj", "space", "escape", "T", "slash", *"gpu 6", "enter", "greater_than_sign"
        )
        await until(pilot, "filter: gpu 6", "sorted by memory", absent="RSS GiB  ")
    assert view_state.save(first.session.state) == ""

    remembered, problem = view_state.load()
    assert problem == ""
    assert remembered == ViewState(
        sort="used", process_sort="memory", process_tree=True, process_hidden="rss"
    )
    again = GpuscopeApp(Session(views.store_of(views.training(4.0)), state=remembered), "overview")
    async with again.run_test(size=SIZE) as pilot:
        await until(pilot, "USED▾", "lin")
        await pilot.press("P")
        screen = await until(pilot, "Processes  8", "tree", "sorted by memory", absent="RSS GiB  ")
        assert "AGE" in screen
