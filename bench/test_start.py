"""Measure how long a user waits.

One-shot verbs are compared with a bare Python, the first frame with a one-widget Textual app.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.conftest import alternate
from bench.terminal import Terminal
from tests.fakes import shim

pytestmark = pytest.mark.bench

ONE_WIDGET = """
from textual.app import App
from textual.widgets import Static
class One(App):
    def compose(self):
        yield Static("one widget is here")
One().run()
"""


def _seconds(argv: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - begin


@pytest.mark.parametrize("words", [["--version"], ["devices", "--json"]], ids=" ".join)
def test_one_shot_verbs_start_quickly(words: list[str], report: Callable[..., None]) -> None:
    ours, bare, _ = alternate(
        lambda: _seconds([sys.executable, "-m", "gpuscope", *words]),
        lambda: _seconds([sys.executable, "-c", "pass"]),
        15,
    )
    report(
        "gpuscope " + " ".join(words),
        seconds=f"{ours:.3f}",
        bare_python=f"{bare:.3f}",
        over=f"{ours - bare:.3f}",
    )
    assert ours - bare <= 0.25


def _first_frame(argv: list[str], pattern: str, env: dict[str, str]) -> float:
    with Terminal(argv, 120, 40, env) as terminal:
        return terminal.wait_for(pattern)


@pytest.mark.parametrize("delay_ms", [0, 50])
def test_first_frame_waits_for_nothing(
    delay_ms: int, report: Callable[..., None], tmp_path: Path
) -> None:
    env = {
        **shim.environment(gpus=8, delay_ms=delay_ms),
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    ours, one, ratio = alternate(
        lambda: _first_frame([sys.executable, "-m", "gpuscope"], "(?s)Overview.* GPUs ", env),
        lambda: _first_frame([sys.executable, "-c", ONE_WIDGET], "one widget is here", {}),
        9,
    )
    report(
        f"first frame, 8 GPUs, {delay_ms} ms a driver call",
        seconds=f"{ours:.3f}",
        one_widget_app=f"{one:.3f}",
        ratio=f"{ratio:.2f}",
    )
    assert ratio <= 1.3
