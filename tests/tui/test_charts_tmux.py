"""Many partial updates leave what drawing everything anew shows.

They are compared cell by cell, in a real terminal.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.waiting import until
from tests.tui.terminal import Look, Terminal

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux")

SCRIPT = """
import random
from textual.events import Key
from tests.tui.test_charts_strips import Board, fill

class Live(Board):
    moment, rng = 0, random.Random(3)
    async def on_key(self, event: Key) -> None:
        if event.key == "n":
            self.moment += 1
            fill(self, self.rng, self.moment)
            self.sub_title = str(self.moment)
        elif event.key == "r":
            self.shadow.forget()
            self._driver.write("\\x1b[2J")
            self._display(self.screen, self.screen._compositor.render_full_update())
            self._driver.write("\\x1b]2;all anew\\x07")

Live().run()
"""


class Tmux:
    def __init__(self, socket: str) -> None:
        self.base = ["tmux", "-L", socket, "-f", "/dev/null"]

    def __call__(self, *args: str) -> str:
        return subprocess.run(
            [*self.base, *args], check=True, capture_output=True, text=True, timeout=20
        ).stdout

    def screen(self) -> str:
        return self("capture-pane", "-p", "-e")

    def settled(self, *, other_than: str | None = None) -> str:
        """The screen once it has stopped changing (and differs from ``other_than``)."""
        deadline = time.monotonic() + 20
        before = ""
        while time.monotonic() < deadline:
            now = self.screen()
            if now == before and now.strip() and now != other_than:
                return now
            before = now
            time.sleep(0.15)
        raise AssertionError("the screen did not settle:\n" + before)


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    session = Tmux(f"gpuscope-charts-{os.getpid()}")
    script = tmp_path / "live.py"
    script.write_text(SCRIPT)
    root = shlex.quote(str(Path(__file__).parents[2]))
    command = (
        f"env PYTHONPATH={root} COLORTERM=truecolor {shlex.quote(sys.executable)} {script} 2>&1"
    )
    session("new-session", "-d", "-x", "100", "-y", "34", "-c", str(tmp_path), command)
    yield session
    subprocess.run([*session.base, "kill-server"], capture_output=True, timeout=20)


def test_a_real_terminal_ends_up_with_the_same_screen(tmux: Tmux) -> None:
    shown = tmux.settled()
    for _ in range(8):
        tmux("send-keys", "n")
        shown = tmux.settled(other_than=shown)
    assert "row" in shown or "train.py" in shown
    tmux("send-keys", "r")
    until(lambda: tmux("display-message", "-p", "#{pane_title}").strip() == "all anew", 20)
    assert seen(tmux.settled()) == seen(shown)


def seen(captured: str) -> list[list[tuple[str, Look]]]:
    """Each cell and what is seen of its look."""
    screen = Terminal(100, 34)
    screen.feed(
        "".join(f"\x1b[{y};1H{line}" for y, line in enumerate(captured.split("\n")[:34], 1))
    )
    return screen.rows
