"""What other users call their processes never commands our terminal.

Every byte the program draws is looked at.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.terminal import Terminal

SCRIPT = r"""
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.shell.session import Session
from gpuscope.wire import frames as f
from tests.fakes import views

EVIL = "evil\x1b]52;c;QUJD\x07\x1b]0;title\x1b\\\x1b[2J\x9b31m\x90q\u202e\u2066\x0b\x0c[link=x]name"
frames = [*views.training(4.0), f.Def(150, proc=f.ProcDef(51120, 9, views.WALL, EVIL, EVIL, EVIL, 1, False))]
frames.append(f.Event(150, "note", int(views.END * 1e9), EVIL))
session = Session(views.store_of(frames))
session.notices.say(EVIL, "warn")
GpuscopeApp(session).run()
"""  # noqa: E501
FORBIDDEN = (
    b"\x1b]52",
    b"\x1b]0;title",
    b"\x1b[2J\xc2",
    b"\xc2\x9b",
    b"\xc2\x90",
    "\u202e".encode(),
    "\u2066".encode(),
    b"\x0b",
    b"\x0c",
)


def of_its_own(folder: Path) -> dict[str, str]:
    """Return its own settings, and the size that pytest-xdist would set otherwise."""
    places = dict.fromkeys(("XDG_STATE_HOME", "XDG_CONFIG_HOME"), str(folder))
    return {**places, "PYTHONPATH": ".", "COLUMNS": "160", "LINES": "45"}


@pytest.mark.slow
def test_no_control_byte_of_a_hostile_name_reaches_the_terminal(tmp_path):
    with Terminal([sys.executable, "-c", SCRIPT], 160, 45, of_its_own(tmp_path)) as terminal:
        terminal.wait_for("evil")
        for key, wanted in (
            ("6", "(?s)WHAT.*evil"),
            ("2", "Where the bytes"),
            ("1", " GPUs "),
            ("j", ""),
            ("j", ""),
            ("\r", "51120"),
        ):
            terminal.send(key)
            terminal.wait_for(wanted)
            terminal.pump(0.3)
        seen = terminal.tail
    for sequence in FORBIDDEN:
        assert sequence not in seen, sequence
    assert b"[link=x]name" in seen, "markup is shown, not obeyed"


PROCESSES = r"""
import asyncio
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.shell.session import Session
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.fakes.asked import AskedSource, fails, gives

EVIL = "evil\x1b]52;c;QUJD\x07\x1b]0;title\x1b\\\x1b[2J\x9b31m\x90q\u202e\u2066\x0b\x0c[link=x]name"
evil = f.ProcDef(51120, 9, views.WALL, EVIL, EVIL, EVIL, 1, False, EVIL, EVIL)
told = {"environment": {"RANK": EVIL}, "others": 1}
frames = [*views.training(4.0), f.Def(150, proc=evil)]
source = AskedSource(frames, signal=fails("refused", EVIL), environment=gives(told))
GpuscopeApp(Session(make_source=lambda hz: source)).run()
"""


@pytest.mark.slow
def test_nor_on_the_process_screen_in_its_questions_and_answers(tmp_path):
    with Terminal([sys.executable, "-c", PROCESSES], 160, 45, of_its_own(tmp_path)) as terminal:
        terminal.wait_for("evil")
        for key, wanted in (
            ("P", "Processes"),
            ("/", "slurm 4711"),
            ("evil", "filter: "),
            ("\r", ""),
            ("K", "Send a signal(?s:.*)pid 51120"),
            ("T", "Not sent: "),
            ("\x1b", ""),
            ("e", "Environment of pid"),
            ("\x1b", ""),
        ):
            terminal.send(key)
            terminal.wait_for(wanted)
            terminal.pump(0.3)
        seen = terminal.tail
    for sequence in FORBIDDEN:
        assert sequence not in seen, sequence
    assert b"[link=x]name" in seen, "markup is shown, not obeyed"
