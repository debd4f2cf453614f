"""64 hosts in one viewer: its processor time, and how late its event loop is.

The agents' own time is not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.terminal import Terminal
from tests.fakes import fleet

pytestmark = pytest.mark.bench

HOSTS = 64
SECONDS = 20.0
KINDS = (
    "busy",
    "busy",
    "busy",
    "across",
    "across",
    "idle",
    "busy",
    "free",
    "stalled",
    "busy",
    "lost",
    "tight",
)
OTHER_PROCESSES = 8
"""Processes on every host besides the eight ranks: they cause about 5 kB a second."""


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    for number in range(HOSTS):
        frames = fleet.node(
            number, KINDS[number % len(KINDS)], seconds=60.0, processes=OTHER_PROCESSES
        )
        fleet.write(folder / f"node-{number:02d}.lines", frames)
    return folder


def idle_lag_ms(seconds: float = 3.0) -> float:
    """Return the p99 of how late this machine wakes a process that does nothing."""
    late = []
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        time.sleep(0.01)
        late.append(time.perf_counter() - now - 0.01)
    return sorted(late)[int(len(late) * 0.99)] * 1e3


def rounded(found: dict[str, float]) -> dict[str, str]:
    return {name: f"{value:.1f}" for name, value in found.items()}


def test_64_agents_with_drawing(agents: Path, tmp_path: Path, report: Callable[..., None]) -> None:
    out = tmp_path / "figures.json"
    env = {"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    argv = [sys.executable, "-m", "bench.fleet.viewer", str(agents), str(SECONDS), str(out)]
    with Terminal(argv, 120, 40, env) as terminal:
        terminal.wait_for("64 hosts", 30)
        while not terminal.ended:
            terminal.pump(5.0)
    found = json.loads(out.read_text())
    report("64 agents at 1 Hz, 120x40", machine_lag_p99_ms=f"{idle_lag_ms():.1f}", **rounded(found))
    assert found["on_fleet"] == 1.0
    assert found["frames_per_second"] >= 0.9 * HOSTS
    assert found["cpu_percent"] <= 15.0
    assert found["lag_p99_ms"] <= 60.0


def test_64_agents_decoded_only(agents: Path, tmp_path: Path, report: Callable[..., None]) -> None:
    out = tmp_path / "figures.json"
    argv = [
        sys.executable,
        "-m",
        "bench.fleet.viewer",
        str(agents),
        str(SECONDS),
        str(out),
        "--no-screen",
    ]
    subprocess.run(argv, check=True, timeout=120)
    found = json.loads(out.read_text())
    report(
        "64 agents at 1 Hz, decoded only",
        machine_lag_p99_ms=f"{idle_lag_ms():.1f}",
        **rounded(found),
    )
    assert found["frames_per_second"] >= 0.9 * HOSTS
    assert found["lag_p99_ms"] <= 20.0
