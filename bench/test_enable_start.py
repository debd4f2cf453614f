"""Measure what an enabled environment costs its programs.

These are programs that do not use torch, and programs that import it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes import pythons

pytestmark = pytest.mark.bench

TURNS = 100
BARE_SECONDS = 0.0105
"""The duration of a bare start on this machine when it is idle; on a busy machine the bar grows
with it.
"""
FAKE_TORCH = "import torch.compiler"


def environments(tmp_path: Path, python: str) -> tuple[str, str]:
    """Return the Pythons of two new environments that differ only in `gpuscope enable`."""
    made = []
    for name in ("bare", "enabled"):
        subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / name], check=True)
        made.append(str(tmp_path / name / "bin/python"))
        (site,) = (tmp_path / name / "lib").glob("python*/site-packages")
        (site / "torch").mkdir()
        (site / "torch/__init__.py").write_text(FAKE_TORCH)
        (site / "torch/compiler.py").write_text("")
        # its byte code is there from now on
        subprocess.run([made[-1], "-c", "import torch"], check=True)
    command = [sys.executable, "-m", "gpuscope", "enable", "--python", made[1]]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return made[0], made[1]


def seconds(python: str, code: str) -> float:
    """Return the CPU time of one start, user and system.

    Other programs influence it less than the time on the clock.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GPUSCOPE", "PYTHON"))
    }
    pid = os.posix_spawn(python, [python, "-c", code], env)
    _, status, used = os.wait4(pid, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime


def difference(first: str, second: str, code: str, turns: int) -> tuple[float, float]:
    """Return the median start of ``first``, and the median of what ``second`` takes more.

    They run in pairs, and which comes first alternates.
    """
    starts, more = [], []
    for turn in range(turns):
        order = (first, second) if turn % 2 else (second, first)
        took = {python: seconds(python, code) for python in order}
        starts.append(took[first])
        more.append(took[second] - took[first])
    return statistics.median(starts), statistics.median(more)


@pytest.mark.parametrize("minor", pythons.MINORS)
def test_a_program_without_torch_starts_as_fast_as_before(
    minor: int, tmp_path: Path, report: Callable[..., None]
) -> None:
    python = pythons.find(minor)
    if python is None:
        pytest.skip(f"no python3.{minor} on this machine")
    bare, enabled = environments(tmp_path, python)
    start, more = difference(bare, enabled, "pass", TURNS)
    _, more_with_torch = difference(bare, enabled, "import torch", TURNS // 5)
    report(
        f"start of Python 3.{minor} in an enabled environment, {TURNS} interleaved pairs",
        bare_ms=f"{start * 1e3:.2f}",
        more_ms=f"{more * 1e3:.2f}",
        more_where_torch_is_imported_ms=f"{more_with_torch * 1e3:.1f} (beside a torch of two "
        "empty files)",
    )
    assert more <= 0.002 * max(1.0, start / BARE_SECONDS)
