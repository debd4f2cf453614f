"""Screens are opened by the kind of thing they show, and their modules are loaded no sooner."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import gpuscope
from gpuscope.tui.app.navigation import PLACES
from gpuscope.tui.overview.detail_screen import DetailScreen
from gpuscope.tui.processes.process_screen import ProcessScreen
from gpuscope.tui.trainer.job_screen import JobScreen
from tests.fakes import views
from tests.fakes.cases import each
from tests.fakes.collecting import collector_off
from tests.tui.pilot import in_loop, make_app, until


@cache
@collector_off()
def kinds_opened() -> set[str]:
    """The kinds of all calls of ``open`` or ``screen_for`` in the package that name one of them."""
    found = set()
    for path in Path(gpuscope.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if not any(f'"{kind}"' in text for kind in PLACES):
            continue  # it names none, and need not be parsed
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in ("open", "screen_for"):
                    found |= {
                        one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)
                    }
    return found & set(PLACES)


@each("kind", PLACES)
def test_a_kind_has_a_screen_and_somebody_who_opens_it(kind):
    place = PLACES[kind]
    assert callable(getattr(import_module(f"gpuscope.tui.{place.module}"), place.name))
    assert kind in kinds_opened()


@in_loop
async def test_a_process_opens_as_its_job_or_as_its_readings():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        host = app.session.host
        assert host is not None
        inside = {trainer.definition.pid for job in host.jobs for trainer in job.trainers}
        outside = {process.definition.pid for process in host.processes} - inside
        for pid, screen in ((min(inside), JobScreen), (min(outside), DetailScreen)):
            app.open("pid", host, pid)
            await pilot.pause()
            assert isinstance(app.screen, screen)
            app.screen.dismiss()
            await pilot.pause()
        app.open("pid", host, 999_999)  # nobody
        assert app.screen is app.main


@in_loop
async def test_what_a_screen_returns_is_passed_on():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        closed: list[object] = []
        app.open("processes", then=closed.append)
        await pilot.pause()
        assert isinstance(app.screen, ProcessScreen)
        app.screen.dismiss()
        await pilot.pause()
        assert closed == [None]


def test_neither_a_screen_nor_a_source_is_loaded_before_it_is_opened():
    code = "import sys, gpuscope.tui.app.app; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "gpuscope.tui.app.main_screen" in loaded
    assert not {f"gpuscope.tui.{place.module}" for place in PLACES.values()} & set(loaded)
    assert not {"gpuscope.store.source", "msgspec"} & set(loaded)


@in_loop
async def test_a_tab_that_is_asked_for_while_somebody_leaves_is_not_built():
    app = make_app(views.training())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "─ GPUs")
        app.exit()  # the screen is still there for a moment
        await app.main.show_tab("memory")
        await app.main.action_do("filter")
        app.main.refresh_all()
        assert "memory" not in app.main._panes
