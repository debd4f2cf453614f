"""Quitting while a run of the Lab is in progress asks once."""

from __future__ import annotations

from gpuscope.lab.config import LabConfig
from tests.fakes import views
from tests.tui import lab_data
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.test_lab_screen import running


@in_loop
async def test_quitting_asks_once_where_a_run_would_end(monkeypatch):
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(100, 30)) as pilot:
        left: list[int] = []
        monkeypatch.setattr(app, "leave", lambda code=0: left.append(code))
        runs = running(app, LabConfig(model="mlp-small", device="cpu"))
        runs._record(lab_data.step(145))
        await pilot.press("q")
        await until(pilot, "at step 145 and keep it as a run?", "Enter Stop and quit", "Stay")
        await pilot.press("escape")
        await until(pilot, "Demo trainer", absent="keep it as a run")
        await pilot.press("ctrl+c")
        await until(pilot, "keep it as a run")
        assert left == []
        await pilot.press("ctrl+c")
        assert left == [0]
