"""A real training on the CPU is acted on from the program in a real terminal.

Shown are its stacks, and a profile of some steps as a table.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.tmux import TMUX, Tmux, assigned, homes
from tests.fakes.waiting import until
from tests.snapshot import synthetic

pytestmark = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
ROOT = Path(__file__).parents[2]

TRAINING = """
import time
import torch

def one_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 32)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.05)

model = torch.nn.Linear(32, 32)
optimizer = torch.optim.AdamW(model.parameters())
one_step(model, optimizer)
open(__file__ + ".steps", "w").close()
ends = time.time() + 120
while time.time() < ends:
    one_step(model, optimizer)
"""


@pytest.fixture
def training(tmp_path):
    """The pid's process: a training started by ``gpuscope run``."""
    pytest.importorskip("torch")
    script = tmp_path / "acted_upon.py"
    script.write_text(TRAINING)
    command = [sys.executable, "-m", "gpuscope", "run", "--", sys.executable, str(script)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        # two starts of Python and torch, on a core that is shared
        until(Path(f"{script}.steps").exists, 150.0)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.mark.slow
def test_stacks_and_a_profile_of_a_running_training(tmp_path, training):
    settings = assigned({**homes(tmp_path), "XDG_DATA_HOME": str(tmp_path / "XDG_DATA_HOME")})
    where = f"PYTHONPATH={shlex.quote(os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')]).rstrip(os.pathsep))}"  # noqa: E501
    program = f"{shlex.quote(sys.executable)} -m gpuscope"
    terminal = Tmux(
        tmp_path, f"env -u SSH_CONNECTION -u NO_COLOR {settings} {where} {program}", 120, 40
    )
    try:
        terminal.wait(r"● live")
        terminal.keys("/")  # the trainers of other tests are on this machine too
        terminal.wait("filter: text")
        terminal.keys(*"acted_upon", "Enter")
        terminal.wait(r"(?s)▸ acted_upon\.py .*step", absent="no job matches")
        terminal.keys("S")
        stacks = terminal.wait(r"(?s)Stacks of pid \d+, acted_upon\.py.*training, main")
        assert "one_step" in stacks or "acted_upon.py:" in stacks
        terminal.keys("Escape")
        terminal.wait("─ GPUs", absent="Stacks of")
        terminal.keys("p")
        terminal.wait("Profile some steps")
        terminal.keys("Enter")
        terminal.wait("Enter Open it")
        terminal.keys("Enter")
        table = terminal.wait(r"(?s)CPU, busiest thread.*On the CPU, by self time.*aten::")
        assert "5 measured" in table or "4 measured" in table
        (trace,) = (tmp_path / "XDG_DATA_HOME" / "gpuscope" / "profiles").iterdir()
        assert json.loads(trace.read_text())["traceEvents"]
        assert training.poll() is None, "the training continues"
        terminal.keys("Escape")
        terminal.wait("─ GPUs", absent="busiest thread")
        terminal.keys("q")
        terminal.wait("EXIT=0")
    finally:
        terminal.close()


@pytest.mark.slow
def test_a_snapshot_file_opens_on_a_terminal_and_as_text_elsewhere(tmp_path):
    path = synthetic.write(synthetic.training(600), tmp_path / "s.pickle")
    program = (
        f"PYTHONPATH={shlex.quote(str(ROOT))} {shlex.quote(sys.executable)} -m gpuscope "
        f"snapshot {path}"
    )
    terminal = Tmux(tmp_path, f"env -u NO_COLOR XDG_STATE_HOME={tmp_path}/state {program}", 100, 30)
    try:
        terminal.wait(r"(?s)largest free run.*Fragmentation: segments")
        terminal.keys("2")
        terminal.wait("Who holds most")
        terminal.keys("q")
        terminal.wait("EXIT=0")
    finally:
        terminal.close()
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "reserved" in done.stdout
