"""What ``gpuscope run --on-call`` costs a rank that does nothing but the smallest collectives.

Compared are torch as it is, torch with the flight recorder off, as in older versions, and torch
with ``--on-call``. There is one rank, so that no time is spent on waiting, and what is compared is
processor time, because another program on the machine changes it least.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.attach import on_call
from tests.fakes.forked_scripts import free_port

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

ROUNDS = 5
CALLS = 20_000
MOST = 1.05  # of the time of torch as it is: more than the noise of the fastest rounds
MOST_MICROSECONDS = 10.0  # for each collective, where torch would not record it

RANK = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(16)
for _ in range(1000): dist.all_reduce(value)
begun = time.process_time()
for _ in range(int(sys.argv[1])): dist.all_reduce(value)
print(time.process_time() - begun)
dist.destroy_process_group()
"""


def seconds(folder: Path, side: str) -> float:
    """Return the processor time of all collectives."""
    port = free_port()
    env = {**os.environ, "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"OMP_NUM_THREADS": "1", "RANK": "0"}
    if side == "recorder off":
        env["TORCH_FR_BUFFER_SIZE"] = "0"
    elif side == "on call":
        env, _ = on_call.prepare([sys.executable], env, str(folder))
    words = [sys.executable, "-W", "ignore", "-c", RANK, str(CALLS)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=True)
    return float(done.stdout)


def test_on_call_costs_nearly_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    took: dict[str, list[float]] = {"as it is": [], "recorder off": [], "on call": []}
    for number in range(ROUNDS):
        for side in list(took)[:: 1 if number % 2 else -1]:
            took[side].append(seconds(tmp_path, side))
    usual, off, on = (min(times) for times in took.values())
    more = (on - off) / CALLS * 1e6
    print(f"--on-call: {on / usual:.3f} × the time of torch as it is; {more:.1f} µs more for each")
    print(f"collective than without the recorder, which takes {off / CALLS * 1e6:.1f} µs; {took}")
    assert on / usual < MOST
    assert more < MOST_MICROSECONDS
