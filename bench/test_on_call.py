"""What ``gpuscope run --on-call`` costs two ranks that do nothing but small collectives.

Compared are torch as it is, torch with the flight recorder off, as in older versions, and torch
with ``--on-call``. It is the processor time of both ranks that is compared, because another program
on the machine changes it least.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.attach import on_call

pytestmark = pytest.mark.bench

ROUNDS = 5
CALLS = 2000
MOST = 1.05  # of the time of torch as it is: more than the noise of the fastest rounds
MOST_MICROSECONDS = 20.0  # for each collective, where torch would not record it

RANK = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(16)
for _ in range(200): dist.all_reduce(value)
begun = time.process_time()
for _ in range(int(sys.argv[1])): dist.all_reduce(value)
print(time.process_time() - begun)
dist.destroy_process_group()
"""


def seconds(folder: Path, side: str) -> float:
    """Return the processor time of both ranks for all collectives."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env["OMP_NUM_THREADS"] = "1"
    if side == "recorder off":
        env["TORCH_FR_BUFFER_SIZE"] = "0"
    elif side == "on call":
        env, _ = on_call.prepare([sys.executable], env, str(folder))
    words = [sys.executable, "-W", "ignore", "-c", RANK, str(CALLS)]
    ranks = [
        subprocess.Popen(words, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    return sum(float(rank.communicate(timeout=120)[0]) for rank in ranks)


def test_on_call_costs_nearly_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    took: dict[str, list[float]] = {"as it is": [], "recorder off": [], "on call": []}
    for number in range(ROUNDS):
        for side in list(took)[:: 1 if number % 2 else -1]:
            took[side].append(seconds(tmp_path, side))
    usual, off, on = (min(times) for times in took.values())
    microseconds = (on - off) / CALLS / 2 * 1e6
    print(
        f"--on-call: {on / usual:.3f} × the time of torch as it is; {microseconds:.1f} µs more for"
    )
    print(f"each collective than without the recorder ({off / CALLS / 2 * 1e6:.0f} µs); {took}")
    assert on / usual < MOST
    assert microseconds < MOST_MICROSECONDS
