"""For all tests of screens."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from textual._compositor import Compositor
from textual._context import active_app, visible_screen_stack
from textual.css.stylesheet import Stylesheet

_render_update = Compositor.render_update
_parse_rules = Stylesheet._parse_rules
_parsed: dict[object, Any] = {}


def _parse_rules_once(self: Stylesheet, css: str, read_from: Any, **more: Any) -> Any:
    """Parse a style sheet once for all apps of a process, each of which would parse it again."""
    key = (css, read_from, *more.items(), frozenset(self._variables.items()))
    if key not in _parsed:
        _parsed[key] = _parse_rules(self, css, read_from, **more)
    return _parsed[key]


Stylesheet._parse_rules = _parse_rules_once  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a remembered state and a ledger that are empty, and the time of UTC."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.fixture(autouse=True)
def _no_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no Lab that is only looked at start a child with torch; tests that want one say so."""
    monkeypatch.setattr("gpuscope.tui.lab.first_run.SETTLED_SECONDS", 1e9)


@pytest.fixture(autouse=True)
def _load_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure no load of the viewer, which the header would show on a slow machine only."""
    monkeypatch.setattr("gpuscope.tui.shell.self_cpu.MEASURED_SECONDS", math.inf)


@pytest.fixture(autouse=True)
def no_frames_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put no frames together that no terminal shows.

    They are a sixth of what a test of a screen costs. What a test reads of the screen is drawn when
    it reads it. Apps that say that they draw, those with a terminal of the tests among them, draw
    each frame, as does a file of tests that looks at what goes to the terminal: it has a fixture of
    this name that does nothing.
    """

    def render_update(
        self: Compositor, full: bool = False, screen_stack: Any = None, **more: Any
    ) -> Any:
        app = active_app.get()
        if full or getattr(app, "draws", not app.is_headless):
            return _render_update(self, full, screen_stack, **more)
        visible_screen_stack.set(screen_stack or [])
        self._dirty_regions.clear()
        return None

    monkeypatch.setattr(Compositor, "render_update", render_update)
