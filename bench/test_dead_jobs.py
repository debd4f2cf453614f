"""How long a verdict on a large dead job takes, and how much memory it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.dead_jobs import large

SECONDS, MEBIBYTES = 20.0, 300.0
"""Bars for 256 ranks with 10 MB of log each."""

pytestmark = pytest.mark.bench


def test_a_job_of_256_ranks_with_10_mb_of_log_each(tmp_path: Path) -> None:
    folder = large.write(tmp_path / "job")
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "doctor", str(folder)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        text = process.stdout.read().decode()
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
    seconds = time.monotonic() - began
    processor, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    print(f"\n{seconds:.1f} s, of which {processor:.1f} s of a core; {memory:.0f} MiB")
    assert f"Rank {large.CULPRIT} failed first: KeyError: 'unlabelled'" in text
    assert memory <= MEBIBYTES
    assert processor <= SECONDS, "on a machine that does nothing else, so long it takes"
    if os.getloadavg()[0] < 1.5:
        assert seconds <= SECONDS
