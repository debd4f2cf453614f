"""The whole program runs in a real terminal.

It starts, moves, resizes and leaves; and it leaves the terminal as it was.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.e2e.tmux import TMUX, WAIT_SECONDS, Tmux, assigned, homes
from tests.fakes.waiting import alive, until

pytestmark = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")

PROGRAM = f"{shlex.quote(sys.executable)} -m gpuscope"


@pytest.fixture
def terminal(tmp_path):
    made = []
    home = assigned(homes(tmp_path))

    def start(
        words: str = "", columns: int = 100, rows: int = 30, environ: str = "", after: str = ""
    ) -> Tmux:
        command = (
            f"env -u SSH_CONNECTION -u NO_COLOR -u COLUMNS -u LINES {home} {environ} "
            f"{PROGRAM} {words} {after}"
        )
        made.append(Tmux(tmp_path, command, columns, rows))
        return made[-1]

    yield start
    for one in made:
        one.close()


def _pid_of_program(terminal: Tmux) -> int:
    shell = terminal.flag("pane_pid")
    children = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", shell], capture_output=True, text=True
    ).stdout
    return next(int(line.split()[0]) for line in children.splitlines() if "gpuscope" in line)


def _descendants(pid: int) -> list[int]:
    out = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
    ).stdout
    children = [int(word) for word in out.split()]
    return children + [grandchild for child in children for grandchild in _descendants(child)]


def test_starts_goes_through_its_tabs_and_leaves_nothing_behind(terminal):
    screen = terminal()
    screen.wait(r"(?s)● live.*1 Overview.*Jobs.*─ GPUs")
    program = _pid_of_program(screen)
    agents = _descendants(program)
    assert agents, "the agent is a child of its own"
    for key, wanted in (
        ("2", "Where the bytes are|there is no memory to show"),
        ("3", "Where the time (goes|went)|its time goes|Step breakdown"),
        ("4", "Findings"),
        ("5", "Demo trainer"),
        ("6", "WHAT"),
        ("1", "─ GPUs"),
    ):
        screen.keys(key)
        screen.wait(wanted)
    screen.keys("?")
    screen.wait("On this row")
    screen.keys("q")
    screen.wait("─ GPUs", absent="On this row")
    screen.keys("q")
    screen.wait("EXIT=0")
    assert screen.flag("alternate_on") == "0"
    assert screen.flag("mouse_any_flag") == "0"
    until(lambda: not any(map(alive, agents)), WAIT_SECONDS)


@pytest.mark.slow
def test_opens_on_the_overview_whatever_tab_was_open_last(terminal):
    screen = terminal()
    screen.wait("● live")
    screen.keys("6")
    screen.wait(r"WHAT +WHO")
    screen.keys("q")
    screen.wait("EXIT=0")
    screen.close()
    assert not re.search(r"WHAT +WHO", terminal().wait("● live"))


@pytest.mark.slow
def test_follows_the_size_of_the_terminal(terminal):
    screen = terminal(columns=80, rows=24)
    screen.wait("● live|1 Hz")
    screen.resize(140, 45)
    screen.wait("CPU %|GPU utilisation")
    screen.resize(60, 12)
    found = screen.wait("gpuscope", absent="CPU %|GPU utilisation")
    assert max(len(line) for line in found.splitlines()) <= 60
    screen.keys("q")
    screen.wait("EXIT=0")


def test_keys_that_arrive_together_and_a_character_that_arrives_in_halves(terminal):
    screen = terminal()
    screen.wait("● live")
    screen.keys("?")
    screen.wait("On this row")
    screen.keys("Escape", "4")  # as a slow link brings them: to most programs Alt and 4
    screen.wait("Findings", absent="On this row")
    screen.keys("/")
    screen.wait("filter: text")
    for half in ("c3", "a9"):
        screen.keys("-H", half)
        time.sleep(0.2)
    screen.keys("x")
    screen.wait("éx", absent="filter: text")
    screen.keys("Escape", "q")
    screen.wait("EXIT=0")


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)],
    ids=lambda n: n.name,
)
def test_signals_restore_the_terminal(terminal, number):
    screen = terminal()
    screen.wait("● live")
    assert screen.flag("alternate_on") == "1"
    assert screen.flag("mouse_any_flag") == "1"
    os.kill(_pid_of_program(screen), number)
    screen.wait(f"EXIT={128 + number}")
    assert screen.flag("alternate_on") == "0"
    assert screen.flag("mouse_any_flag") == "0"
    assert screen.flag("cursor_flag") == "1"


@pytest.mark.parametrize(
    ("environ", "after", "why"),
    [
        ("TERM=dumb", "", "TERM=dumb cannot move the cursor"),
        ("", "</dev/null", "standard input is not a terminal"),
        ("PYTHONIOENCODING=ascii", "", "not UTF-8"),
    ],
)
def test_where_no_screen_can_be_drawn_it_says_why_and_prints_devices(terminal, environ, after, why):
    screen = terminal(environ=environ, after=after, columns=140)
    found = screen.wait(r"EXIT=\d+")
    assert why in found
    assert "Here is `gpuscope devices`" in found
    assert screen.flag("alternate_on") == "0"
    expected = subprocess.run(
        [sys.executable, "-m", "gpuscope", "devices"], capture_output=True
    ).returncode
    assert re.search(rf"EXIT={expected}$", found, re.MULTILINE)


@pytest.mark.slow
def test_over_ssh_it_is_lighter_and_says_so(terminal):
    screen = terminal(environ="SSH_CONNECTION='10.0.0.1 22 10.0.0.2 22'", columns=130)
    screen.wait("over ssh: charts every 5 s")
    screen.wait("● live · 1 Hz")
    assert screen.flag("mouse_any_flag") == "0"


@pytest.mark.slow
def test_a_broken_config_is_named_and_not_overwritten(terminal, tmp_path):
    path = tmp_path / "XDG_CONFIG_HOME" / "gpuscope" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("rate_hz = 1000\n")
    screen = terminal(columns=240)
    screen.wait("● live")
    screen.keys("6")
    if sys.version_info >= (3, 11):
        screen.wait(r"config.toml:1: rate_hz: must be a number")
    screen.keys("q")
    screen.wait("EXIT=0")
    assert path.read_text() == "rate_hz = 1000\n"


def test_a_session_can_be_recorded_and_replayed(terminal, tmp_path):
    path = tmp_path / "kept.gpuscope.gz"
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope", "record", str(path), "--duration", "3", "--redact"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert f"Next: gpuscope replay {path}" in done.stderr
    again = subprocess.run(
        [sys.executable, "-m", "gpuscope", "record", str(path), "--duration", "1"],
        capture_output=True,
        text=True,
    )
    assert again.returncode == 3
    assert "--force" in again.stderr
    screen = terminal(f"replay {path} --speed 2")
    screen.wait("REPLAY")
    screen.wait("end of the recording")
    screen.keys("q")
    screen.wait("EXIT=0")


@pytest.mark.slow
def test_what_is_no_recording_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "nonsense"
    path.write_bytes(b"\x00\x1b]0;evil\x07" * 50)
    for name in (path, tmp_path / "not there"):
        done = subprocess.run(
            [sys.executable, "-m", "gpuscope", "replay", str(name)], capture_output=True, text=True
        )
        assert done.returncode == 3
        assert "\nNext: " in done.stderr
        assert len(done.stderr.splitlines()) <= 2
        assert "\x1b" not in done.stderr


def test_the_lab_without_a_terminal_names_the_command_that_needs_none():
    words = [sys.executable, "-m", "gpuscope", "lab", "--amp", "bf16"]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert "Without a screen: gpuscope lab --amp bf16 --steps 100 --headless" in done.stderr
    assert "Here is `gpuscope devices`" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch to train")
def test_the_lab_with_toggles_runs_at_once(terminal):
    screen = terminal("lab --model mlp --batch 8 --device cpu", columns=120, rows=40)
    screen.wait("Run · running")
    screen.wait(r"loss +\d")
    screen.keys("2")
    for _ in range(10):  # other tests may train beside this one
        if "gpuscope lab (pid" in screen.wait("Where the bytes are"):
            break
        screen.keys("n")
        time.sleep(1.0)
    screen.wait(r"optimizer state +[\d.]+ [KM]iB")
    screen.keys("m")
    # That of another test may be on screen, and have ended, before ours answers.
    while "no trainer with a probe" in screen.wait("Modules, largest first|no trainer with a pro"):
        screen.wait("Where the bytes are", absent="no trainer with a probe")
        screen.keys("m")
    screen.wait(r"Linear +[\d.]+ [KM]iB +[\d.]+ [KM]iB")
    screen.keys("c")
    screen.wait("no allocator statistics on a CPU")
    screen.keys("q")
    screen.wait(r"Stop mlp-small at step [\d,]+ and keep it as a run\?")
    screen.keys("Enter")
    screen.wait("EXIT=0")


CUT = """
import os, pty, select, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.executable, [sys.executable, "-m", "gpuscope"])
shown, settled = b"", None
while settled is None or time.monotonic() < settled:
    if select.select([terminal], [], [], 0.05)[0]:
        shown += os.read(terminal, 65536)
    if settled is None and b"Overview" in shown:
        settled = time.monotonic() + 2
os.close(terminal)
print(os.waitpid(pid, 0)[1])
"""


@pytest.mark.slow
def test_a_terminal_that_is_cut_ends_the_program(tmp_path):
    """A terminal that is cut ends the program.

    It may be a window that is closed or a connection that is gone: no viewer without a screen stays
    behind.
    """
    env = {
        **os.environ,
        "TERM": "xterm-256color",
        "COLUMNS": "120",
        "LINES": "40",
        "XDG_STATE_HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", CUT], env=env, capture_output=True, text=True, timeout=120
    )
    assert os.waitstatus_to_exitcode(int(done.stdout)) in (128 + signal.SIGHUP, -signal.SIGHUP), (
        done.stderr
    )
