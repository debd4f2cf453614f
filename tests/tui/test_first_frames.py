"""A tab that is opened shows what is known in its first frame, not what it will show later."""

from __future__ import annotations

import time
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import default_path
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.widgets.pane import WAITING
from tests.fakes import views
from tests.tui import lab_data
from tests.tui.pilot import WAIT_SECONDS, in_loop, make_app, until
from tests.tui.snapshots import text

SHOWN = {
    "2": (
        "memory",
        ("GPU 3 H200 · train.py rank 3", "allocated", "89.2 GiB", "All GPUs", "Timeline, GiB"),
    ),
    "3": ("time", ("train.py rank 3", "median step 901 ms", "rank 6", "Time per step, by rank")),
    "4": ("doctor", ("Rank 5 waits for input", "Load in worker processes", "Fragmentation")),
    "5": ("lab", ("Demo trainer", "≠ amp off → bf16", "A  #1", "B  #2", "Loss over samples")),
    "6": ("log", ("Events [all]", "train.py ×7", "started")),
    "1": ("overview", ("train.py ×7", "4,002", "901 ms", "VRAM of GPU")),
}
"""Key of a tab → its name, and words that only the numbers of :func:`views.training` bring."""

SCREENS = {
    "processes": (
        "ProcessScreen",
        ("Processes  8 · sorted by gpu", "job train.py", "48219", "540 GiB in 7 processes"),
    ),
    "job": ("JobScreen", ("train.py", "rank 5", "901 ms", "input")),
}
"""What is opened over a tab → its screen, and words of the same numbers."""


@pytest.fixture(autouse=True)
def no_frames_for_nobody() -> None:
    """Let the app put every frame together: they are what is looked at here."""


class Frames:
    """Every picture that goes to the terminal, as text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str]] = []
        display = GpuscopeApp._display

        def shown(app: GpuscopeApp, screen: Screen[Any], renderable: Any) -> None:
            display(app, screen, renderable)
            if renderable is not None and not app._batch_count:
                over = len(app.screen_stack) > 1
                self.seen.append((type(screen).__name__ if over else app.main.tab, text(app)))

        monkeypatch.setattr(GpuscopeApp, "_display", shown)

    async def first_of(self, pilot: Pilot[Any], tab: str) -> str:
        """Return the first picture in which the tab, or the screen over it, is the visible one."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            for shown_tab, picture in self.seen:
                if shown_tab == tab:
                    return picture
            await pilot.pause(0.02)
        raise AssertionError(f"no picture of {tab}")


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=["120x40", "80x24"])
@in_loop
async def test_the_first_frame_of_each_tab_has_what_the_store_has(size, monkeypatch):
    configs = LabConfig(device="cpu"), LabConfig(device="cpu", amp="bf16")
    lab_data.ledger(default_path(), *(lab_data.document(config, 100.0) for config in configs))
    app = make_app(views.training(3.0), "log" if size[0] > 100 else "doctor")
    frames = Frames(monkeypatch)
    async with app.run_test(size=size) as pilot:
        await until(pilot, "train.py" if size[0] > 100 else "waits for input")
        await app.session.labs.book.read()
        for key, (tab, words) in SHOWN.items():
            if tab == app.main.tab:
                continue
            frames.seen.clear()
            await pilot.press(key)
            first = await frames.first_of(pilot, tab)
            assert WAITING not in first, tab
            told = words if size[0] > 100 else words[:1]
            assert [word for word in told if word not in first] == [], f"{tab}\n{first}"


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=["120x40", "80x24"])
@pytest.mark.parametrize("kind", SCREENS)
@in_loop
async def test_the_first_frame_of_a_screen_over_a_tab_has_what_the_store_has(
    kind, size, monkeypatch
):
    name, words = SCREENS[kind]
    app = make_app(views.training(3.0))
    frames = Frames(monkeypatch)
    async with app.run_test(size=size) as pilot:
        await until(pilot, "train.py ×7")
        app.open(kind, *([app.session.host.jobs[0].key] if kind == "job" else []))
        first = await frames.first_of(pilot, name)
        assert [word for word in words if word not in first] == [], first
