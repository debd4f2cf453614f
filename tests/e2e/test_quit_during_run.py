"""What happens to a run of the Lab when the program ends while it trains."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from gpuscope.lab.launch import PYTHON_VARIABLE
from gpuscope.lab.ledger import Entry, RunLedger
from tests.e2e.tmux import TMUX, Tmux, assigned, homes
from tests.fakes.forking import forking_python
from tests.fakes.waiting import until

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(TMUX is None, reason="tmux is not installed"),
]


@pytest.fixture
def training(tmp_path):
    """A terminal in which a small model trains in a fork, and the path of its ledger."""
    path = tmp_path / "lab.sqlite"
    found = assigned(homes(tmp_path))
    program = f"{shlex.quote(sys.executable)} -m gpuscope lab --model mlp-tiny --device cpu"
    command = (
        f"env -u SSH_CONNECTION GPUSCOPE_LEDGER={shlex.quote(str(path))} {found} "
        f"{PYTHON_VARIABLE}={shlex.quote(forking_python(tmp_path))} sh -c "
        f"'echo $$ > {shlex.quote(str(tmp_path / 'pid'))}; exec {program}'"
    )
    screen = Tmux(tmp_path, command, 140, 30)
    try:
        screen.wait(r"now .*mlp-tiny.* [1-9][\d,]* *│")
        yield screen, path, int((tmp_path / "pid").read_text())
    finally:
        screen.close()


def _kept(path: Path) -> Entry:
    until(lambda: path.exists() and bool(RunLedger(path).entries()), seconds=20)
    (entry,) = RunLedger(path).entries()
    assert entry.document["steps"] > 0
    assert entry.config is not None
    assert entry.config.model == "mlp-tiny"
    return entry


def test_quitting_asks_once_and_keeps_the_run(training):
    screen, path, _ = training
    screen.keys("q")
    screen.wait(r"Stop mlp-tiny at step [\d,]+ and keep it as a run\?")
    screen.keys("Escape")
    screen.wait("now .*mlp-tiny", absent="keep it as a run")
    screen.keys("q")
    screen.wait("keep it as a run")
    screen.keys("Enter")
    screen.wait("EXIT=0")
    assert RunLedger(path).entries(), "it is there when the program has ended"
    _kept(path)


@pytest.mark.parametrize("way", ["SIGTERM", "SIGHUP", "SIGKILL", "Ctrl-C twice", "closed terminal"])
def test_however_the_program_ends_the_run_is_kept(training, way):
    screen, path, pid = training
    if way == "closed terminal":
        screen.close()
    elif way == "Ctrl-C twice":
        screen.keys("C-c", "C-c")
        screen.wait("EXIT=0")
    else:
        os.kill(pid, getattr(signal, way))
        screen.wait(r"EXIT=\d+")
    _kept(path)
