"""Measure how long ``gpuscope doctor`` takes as a process of its own.

It runs on a log, and on this machine. ``test_doctor_log`` has large ones.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes import shim

pytestmark = pytest.mark.bench

RUNS = 9
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total "
    "capacity of 23.50 GiB of which 0.75 GiB is free. Including non-PyTorch memory, this process "
    "has 22.50 GiB memory in use. Of the allocated memory 21.00 GiB is allocated by PyTorch, and "
    "0.75 GiB is reserved by PyTorch but unallocated.\n"
)


def seconds(target: str, text: bytes) -> float:
    begin = time.perf_counter()
    words = [sys.executable, "-m", "gpuscope", "doctor", "--json", target]
    done = subprocess.run(words, input=text, capture_output=True, timeout=60)
    assert done.returncode == 2, done.stderr
    return time.perf_counter() - begin


def test_a_log_on_standard_input() -> None:
    taken = [seconds("-", OOM.encode()) for _ in range(RUNS)]
    print(
        f"\ndoctor on a log: median {statistics.median(taken):.3f} s, longest {max(taken):.3f} s "
        f"of {RUNS}"
    )
    assert statistics.median(taken) <= 0.4


def test_without_a_target() -> None:
    """A run takes 0.4 s without a driver, and 2 s with as many GPUs as a host has."""
    bar = 2.0 if Path("/proc/driver/nvidia/version").exists() else 0.4
    taken = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        words = [sys.executable, "-m", "gpuscope", "doctor", "--json"]
        done = subprocess.run(words, capture_output=True, timeout=60)
        taken.append(time.perf_counter() - begin)
        assert done.returncode in (0, 1, 2), done.stdout
    print(
        f"\ndoctor here: median {statistics.median(taken):.3f} s, longest {max(taken):.3f} s of "
        f"{RUNS}, bar {bar:g} s"
    )
    assert statistics.median(taken) <= bar


def test_with_eight_gpus_that_answer_as_slowly_as_real_ones(tmp_path: Path) -> None:
    """Every pair of GPUs is asked, with calls as slow as on 8 H200s.

    A whole program runs on a fake driver whose calls take what they took there.
    """
    told = []
    for as_measured in (0, 1):
        asked = shim.environment(gpus=8, as_measured=as_measured) | {
            "GPUSCOPE_BLACKBOX_DIR": str(tmp_path)
        }
        taken = []
        for _ in range(RUNS):
            begin = time.perf_counter()
            words = [sys.executable, "-m", "gpuscope", "doctor", "--json"]
            done = subprocess.run(words, capture_output=True, timeout=60, env=asked)
            taken.append(time.perf_counter() - begin)
            assert done.returncode in (0, 1, 2), done.stdout
            assert b"8 GPUs" in done.stdout
        told.append(statistics.median(taken))
    print(
        f"\ndoctor, 8 GPUs: median {told[1]:.3f} s with the latencies of H200s, {told[0]:.3f} s "
        f"without, of {RUNS}"
    )
    assert told[1] <= 2.0
