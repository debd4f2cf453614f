"""A real training that prints a loss of NaN from some step on, asked by the verbs.

When they are asked, the first NaN no longer stands in the end of the log that is read at first.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gpuscope.exit_status import ExitStatus
from tests.fakes.probe_client import environment, wait_for

pytest.importorskip("torch")

TRAINING = """
import time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 3000):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    if step % 5 == 0:
        shown = loss.item() * (float("nan") if {lost} else 1.0)
        print("the batch:", "." * 2000)
        print(f"step {{step}} loss {{shown:.4f}} val_loss nan", flush=True)
"""


@pytest.fixture
def start(tmp_path):
    """Starts a training with a probe whose losses are NaN where the expression says so."""
    started = []

    def training(lost: str) -> int:
        script, log = tmp_path / "train.py", tmp_path / "train.log"
        script.write_text(TRAINING.format(lost=lost))
        command = [sys.executable, "-m", "gpuscope", "run", str(script)]
        with log.open("w") as out:
            child = subprocess.Popen(command, stdout=out, stderr=out, env=environment())
        started.append(child)
        wait_for(lambda: "step 100 " in log.read_text(), 60.0, "its 100th step")
        return child.pid

    yield training
    for child in started:
        child.kill()
        child.wait()


def asked(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuscope", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=60, check=False
    )


def row_of(pid: int) -> dict[str, object]:
    rows = json.loads(asked("ps", "--json").stdout)["processes"]
    return next(row for row in rows if row["pid"] == pid)


@pytest.mark.slow
def test_the_verbs_tell_a_loss_that_stays_nan_in_a_real_training(start):
    pid = start("step >= 40")
    waited = asked("wait", pid, "--timeout", 20)
    assert waited.returncode == ExitStatus.NOT_FINITE
    assert f"the loss of pid {pid} (train.py) is nan since step 36–40." in waited.stderr
    assert row_of(pid)["loss_not_finite"] == "loss is nan since step 36–40"
    found = asked("doctor", pid)
    assert found.returncode == ExitStatus.PROBLEMS
    assert "▲ The loss is NaN since step 36–40" in found.stdout
    assert "its log does not print each step: the first NaN is in one of these" in found.stdout
    assert f"kill {pid}" in found.stdout
    why = asked("why", pid, "--no-look")
    assert why.returncode == ExitStatus.WARNINGS
    assert "Its loss is nan since step 36–40" in why.stdout


@pytest.mark.slow
def test_one_nan_in_a_real_training_is_no_trouble(start):
    pid = start("step == 90")
    assert row_of(pid)["loss_not_finite"] is None
    assert asked("wait", pid, "--timeout", 2).returncode == ExitStatus.TIMED_OUT
