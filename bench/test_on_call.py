"""What ``gpuscope run --on-call`` costs two ranks that do nothing but small collectives.

The processor time of each rank is compared, which another program on the machine changes least.
On torch 2.6 and newer both sides keep the flight recorder, as is torch's own default.
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
MOST = 1.05  # of the time without it: more than the noise of the fastest rounds

RANK = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(16)
for _ in range(200): dist.all_reduce(value)
begun = time.process_time()
for _ in range(2000): dist.all_reduce(value)
print(time.process_time() - begun)
dist.destroy_process_group()
"""


def seconds(folder: Path, on: bool) -> float:
    """Return the processor time of both ranks for 2000 collectives."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env["OMP_NUM_THREADS"] = "1"
    if on:
        env, _ = on_call.prepare([sys.executable], env, str(folder))
    words = [sys.executable, "-W", "ignore", "-c", RANK]
    ranks = [
        subprocess.Popen(words, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    return sum(float(rank.communicate(timeout=120)[0]) for rank in ranks)


def test_on_call_costs_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(ROUNDS):
        for on in (True, False) if number % 2 else (False, True):
            took[on].append(seconds(tmp_path, on))
    ratio = min(took[True]) / min(took[False])
    print(f"--on-call: {ratio:.3f} × the time without it (of {ROUNDS} runs each, {took})")
    assert ratio < MOST
