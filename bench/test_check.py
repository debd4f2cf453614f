"""A check of a GPT with 124 million parameters takes at most 10 s, from the shell's prompt."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench
BAR_SECONDS = 10.0
TABLE = '[check.training.gpt]\nfactory = "gpt-small"\nfits = "4090"\nregression = "2 %"\n'


def test_a_check_of_a_small_gpt_takes_seconds(tmp_path: Path) -> None:
    (tmp_path / "gpuscope.toml").write_text(TABLE)
    words = [sys.executable, "-m", "gpuscope", "check", "--fail-on", "problem"]
    took = []
    for more in (["--update"], [], []):
        begin = time.perf_counter()
        done = subprocess.run([*words, *more], cwd=tmp_path, capture_output=True, text=True)
        took.append(time.perf_counter() - begin)
        assert done.returncode == 0, done.stdout + done.stderr
    print(f"\ncheck of GPT-124M: {', '.join(f'{seconds:.1f}' for seconds in took)} s")
    assert statistics.median(took) <= BAR_SECONDS
