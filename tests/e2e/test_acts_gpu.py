"""A running training on a real GPU is acted on by its pid.

That is a history with its price, and a snapshot with what is read out of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.snapshot.reader import open_snapshot
from tests.fakes.waiting import until

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
TRAINING = """
import os, time
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def one_step():
    optimizer.zero_grad()
    model(torch.randn(64, 512, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    torch.cuda.synchronize()
one_step()
open(os.environ["STEPPED"], "w").write(str(os.getpid()))
ends = time.time() + 240
while time.time() < ends:
    one_step()
    time.sleep(0.01)
"""


def verb(*words: str) -> dict[str, object]:
    """The JSON of ``gpuscope snapshot`` with these words."""
    command = [sys.executable, "-m", "gpuscope", "snapshot", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_a_snapshot_of_a_running_training(tmp_path):
    script, stepped = tmp_path / "train.py", tmp_path / "stepped"
    script.write_text(TRAINING)
    environ = {**os.environ, "STEPPED": str(stepped)}
    command = [sys.executable, "-m", "gpuscope", "run", "--", sys.executable, str(script)]
    training = subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        pid = until(lambda: stepped.read_text() if stepped.exists() else "", 120.0)
        price = verb(pid, "--history", "20000", "--trial")
        assert price["enabled"] is False
        assert isinstance(price["cost_percent"], float)
        assert verb(pid, "--history", "20000")["enabled"] is True
        path = tmp_path / "snapshot.pickle"
        taken = verb(pid, "-o", str(path))
        assert taken["bytes"] == path.stat().st_size > 0
        verb(pid, "--history", "0")
        with open_snapshot(path) as reading:
            device = reading.summary.devices[0]
        assert device.totals.allocated_bytes > 8 * 512 * 512 * 4, "at least the parameters"
        assert device.trace is not None
        assert training.poll() is None, "the training continues"
    finally:
        training.terminate()
        try:
            training.wait(20)
        except subprocess.TimeoutExpired:
            training.kill()
