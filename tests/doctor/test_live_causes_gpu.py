"""Each mistake that a look sees is named on a real card, and its cure keeps what was promised.

Run with ``pytest -m gpu -s tests/doctor/test_live_causes_gpu.py`` on a card that nobody else uses:
``-s`` prints each look, as the probe tells it, in a line that begins with ``LOOK``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpuscope.wire.frames import Result
from tests.fakes.asking import ask
from tests.fakes.probe_client import ROOT, Reader, sockets

from . import gym, gym_subjects

pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
NAMES = gym_subjects.LOOKED_AT
CAUSES = {
    "fp32-products": "look.products_plain",
    "host-bound": "look.launches",
    "synchronising-reads": "look.reads",
    "copies-to-host": "look.copies_out",
    "small-batch": "look.small_batch",
    "allocator-retries": "look.allocates",
}
BOUNDED = ("fp32-products", "synchronising-reads", "copies-to-host")
"""The cures of the others make the kernels fewer too, so they bring more than the idle time."""
WITH_LINE = ("synchronising-reads", "copies-to-host")


def verb(*words: str) -> str:
    command = [sys.executable, "-m", "gpuscope", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=gym.environment(), cwd=ROOT
    )
    assert done.stdout, done.stderr
    return done.stdout


def raw_look(told: dict[str, Any]) -> dict[str, Any]:
    """What the probe remembers of the look that ``why`` has told of."""
    reader = Reader(sockets(told["pid"])[0], 60.0)
    answer, _, _ = ask(reader, "time", {}, 30.0)
    reader.close()
    assert isinstance(answer, Result), answer
    assert "look" in answer.value, told
    found: dict[str, Any] = answer.value["look"]
    return found


def of_step(output: Path) -> float | None:
    """Milliseconds, as the script printed them last."""
    found = re.findall(r"([\d.]+) ms a step", output.read_text())
    return float(found[-1]) if found else None


def trained(name: str, cured: bool, folder: Path) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """What ``why`` and then the doctor say of a demo that runs, and its step as it prints it."""
    subject = gym_subjects.of_pitfall(gym_subjects.PITFALLS[name], cured)
    output = folder / "printed.txt"
    with gym.watched(subject, output) as process:
        began = time.monotonic()
        while "step 40" not in output.read_text() and time.monotonic() - began < 90:
            assert process.poll() is None, output.read_text()
            time.sleep(0.2)
        before = of_step(output)
        told = json.loads(verb("why", str(process.pid), "--json"))
        said = json.loads(verb("doctor", str(process.pid), "--json"))
        print(f"\nLOOK {name}{' cured' if cured else ''} {json.dumps(raw_look(told))}")
        print(verb("why", str(process.pid), "--no-look"))
    return told, said, before


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_is_named_and_its_cure_is_quiet_and_brings_no_more_than_was_said(name, tmp_path):
    told, said, faulty = trained(name, False, tmp_path)
    named = gym_subjects.PITFALLS[name].named
    first = told["causes"][0]
    assert (first["pitfall"], first["cause"]) == (named, CAUSES[name]), told["causes"]
    assert said["findings"][0]["pitfall"] == named, said["findings"]
    low, high = first["saves_share_at_most_low"], first["saves_share_at_most_high"]
    assert 0.2 < low <= first["saves_share_at_most"] <= high
    if name in WITH_LINE:
        script = gym_subjects.PITFALLS[name].faulty.name
        assert any(script in line for line in first["evidence"]), first["evidence"]
    quiet, healthy, cured = trained(name, True, tmp_path)
    assert named not in [one["pitfall"] for one in quiet["causes"] if one["severity"] != "info"]
    assert not [one for one in healthy["findings"] if one["severity"] != "info"], healthy
    if name in BOUNDED:
        gained = 1 - cured / faulty
        promised = first["saves_share_at_most_high"]
        print(f"{name}: {gained:.0%} of a step was won, {promised:.0%} at most was promised")
        assert 0.2 < gained < promised + 0.05, (faulty, cured, told["causes"])


HEALTHY = """
import sys, time, torch
torch.manual_seed(0)
device = "cuda"
layers = [one for _ in range(8) for one in (torch.nn.Linear(4096, 4096), torch.nn.GELU())]
model = torch.nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
data = torch.randn(8, 8192, 4096, device=device)
end, step = time.monotonic() + 60, 0
while time.monotonic() < end:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(data[step % 8]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 40 == 0:
        print(f"step {step}  loss {loss.item():.4f}", flush=True)
"""


def test_a_healthy_training_gets_no_finding_of_a_look(tmp_path):
    script, output = tmp_path / "healthy.py", tmp_path / "printed.txt"
    script.write_text(HEALTHY)
    with gym.watched(gym_subjects.Subject("healthy", script, ("live",), gpus=1), output) as process:
        began = time.monotonic()
        while "step 40" not in output.read_text() and time.monotonic() - began < 90:
            assert process.poll() is None, output.read_text()
            time.sleep(0.2)
        told = json.loads(verb("why", str(process.pid), "--json"))
        said = json.loads(verb("doctor", str(process.pid), "--json"))
        print(f"\nLOOK healthy {json.dumps(raw_look(told))}")
    assert told["causes"] == []
    assert not [one for one in said["findings"] if one["cause"].startswith("look.")]
