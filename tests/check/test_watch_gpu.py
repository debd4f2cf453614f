"""The marker on a real GPU: memory, what is left, and calls that wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check.test_pytest_plugin import run

pytestmark = pytest.mark.gpu
TESTS = """\
import pytest, torch

MIB = 1 << 20
kept = []

def make(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")

@pytest.mark.gpuscope(peak="64 MiB", leak=0, syncs=0)
def test_within():
    x = make(32)
    del x

@pytest.mark.gpuscope(peak="64 MiB")
def test_peak():
    x = make(40)
    y = make(80)
    del x, y
    make(8)

@pytest.mark.gpuscope(leak="1 MiB")
def test_leak():
    kept.append(make(24))

@pytest.mark.gpuscope(syncs=1)
def test_syncs():
    for _ in range(3):
        torch.ones(2, device="cuda").sum().item()

@pytest.mark.gpuscope(leak=0)
def test_after():
    make(8)
"""


def test_memory_and_synchronising_calls_fail_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "test_cuda.py").write_text(TESTS)
    out = run(tmp_path, "-q")
    failed = {line.split("::")[1].split(" ")[0] for line in out.splitlines() if "FAILED" in line}
    assert failed == {"test_peak", "test_leak", "test_syncs"}, out
    assert "needed 120 MiB at their peak, 56.0 MiB more than 64.0 MiB" in out
    assert "80.0 MiB" in out
    assert "test_cuda.py:17 in test_peak" in out
    assert "24.0 MiB of tensors are left after it; 1.00 MiB may be" in out
    assert "in test_leak" in out
    assert "3 calls waited for the GPU; 1 may be" in out
    assert "test_cuda.py:28" in out
