"""Measure the report of ten minutes of eight GPUs: how long it takes, and how large the page is."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuscope.text.units import MIB, bytes_text
from tests.report import made_up

pytestmark = pytest.mark.bench
RUNS = 3
MOST_SECONDS = 3.0
MOST_BYTES = MIB


def test_ten_minutes_of_eight_gpus(tmp_path: Path, report: Callable[..., None]) -> None:
    """The bar is for a core of its own, so it is compared with the shortest processor time."""
    path = made_up.recording(tmp_path / "ten.gsr", 600.0, 8, 2.0)
    out = tmp_path / "ten.html"
    words = [sys.executable, "-m", "gpuscope", "report", str(path), "-o", str(out), "--force"]
    walls, used = [], []
    for _ in range(RUNS):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(words, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls.append(time.perf_counter() - began)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    size = out.stat().st_size
    report(
        "report of ten minutes of eight GPUs",
        wall=f"{min(walls):.2f} s",
        processor=f"{min(used):.2f} s",
        page=bytes_text(size),
        recording=bytes_text(path.stat().st_size),
        load=f"{os.getloadavg()[0]:.1f}",
    )
    assert min(used) <= MOST_SECONDS
    assert size <= MOST_BYTES
