"""A sweep runs on a real GPU.

It shows peaks, the tensor share from the driver, and an out-of-memory cell beside good ones.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuscope.lab.ledger import PATH_VARIABLE
from tests.fakes.program import program

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.gpu


def sweep(tmp_path: Path, *words: str, seconds: float = 400) -> tuple[int, dict, str]:
    env = {**os.environ, PATH_VARIABLE: str(tmp_path / "lab.sqlite")}
    words = ("--device", "cuda", "--share-gpus", "--json", *words)
    done = program("lab", "sweep", *words, timeout=seconds, env=env)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def test_interleaved_repeats_with_peaks_and_tensor_share(tmp_path: Path) -> None:
    words = ["--model", "gpt-small", "--vary", "amp=off,bf16", "--steps", "120", "--repeats", "3"]
    code, found, errors = sweep(tmp_path, *words)
    assert code == 0, errors
    off, bf16 = found["cells"]
    for cell in (off, bf16):
        assert cell["failure"] is None
        assert 0 < cell["peak_allocated_bytes"] < cell["peak_reserved_bytes"]
        assert cell["samples_per_second"] > 0
    assert bf16["tensor_active_percent"] is None or 0 < bf16["tensor_active_percent"] <= 100
    rows = {row["key"]: row for row in bf16["ratios"]}
    assert rows["samples_per_second"]["basis"] == "3 interleaved repeats"
    assert rows["samples_per_second"]["low"] > 1.0, (
        "bf16 is faster than float32 on any GPU with tensor cores"
    )
    memory = rows["peak_allocated_bytes"]
    assert memory["low"] == pytest.approx(memory["high"], rel=0.01), (
        "peaks hardly vary between fresh processes"
    )
    assert rows["loss"]["ratio"] == pytest.approx(1.0, rel=0.1)


def test_running_out_of_memory_is_a_row_of_the_table(tmp_path: Path) -> None:
    words = ["--model", "gpt-small", "--vary", "batch=1,65536", "--steps", "10", "--repeats", "1"]
    code, found, errors = sweep(tmp_path, *words)
    assert code == 1, errors
    reasons = [cell["failure"] for cell in found["cells"]] + [
        row["what"] for row in found["refused"]
    ]
    assert found["cells"][0]["failure"] is None
    assert any(reason and "memory" in reason for reason in reasons), reasons
