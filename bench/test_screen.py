"""Measure what a monitor costs while nobody touches it, and how fast it leaves.

The costs are bytes, processor time and memory.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.terminal import Terminal
from tests.fakes import shim

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=lambda s: f"{s[0]}x{s[1]}")
def test_steady_cost_with_eight_gpus_at_2_hz(
    size: tuple[int, int], report: Callable[..., None], tmp_path: Path
) -> None:
    env = {
        **shim.environment(gpus=8),
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    with Terminal([sys.executable, "-m", "gpuscope"], size[0], size[1], env) as terminal:
        terminal.wait_for("Overview")
        terminal.pump(15.0)
        begin, cpu, drawn = time.perf_counter(), terminal.cpu_seconds(), terminal.bytes_read
        terminal.pump(40.0)
        elapsed = time.perf_counter() - begin
        cpu = (terminal.cpu_seconds() - cpu) / elapsed
        rate = (terminal.bytes_read - drawn) / elapsed
        rss = terminal.rss_bytes()
    report(
        f"steady state {size[0]}x{size[1]}",
        kilobytes_per_second=f"{rate / 1000:.1f}",
        cpu_percent=f"{cpu * 100:.1f}",
        rss_mib=f"{sum(rss.values()) / 2**20:.0f}",
        each=[f"{v / 2**20:.0f}" for v in rss.values()],
    )
    if size == (120, 40):
        assert rate <= 15_000
        assert cpu <= 0.03
        assert sum(rss.values()) <= 90 * 2**20


@contextlib.contextmanager
def crowd(processes: int, gpus: int) -> Iterator[str]:
    """Start real processes that sleep, spread over the GPUs.

    Yields what ``shim.environment`` takes as ``pid``.
    """
    sleeping = [subprocess.Popen(["sleep", "600"]) for _ in range(processes)]
    try:
        yield ",".join(f"{one.pid}:{number % gpus}" for number, one in enumerate(sleeping))
    finally:
        for one in sleeping:
            one.kill()
            one.wait()


def test_16_gpus_with_300_processes_at_1_hz(report: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "gpuscope").mkdir()
    (tmp_path / "gpuscope" / "config.toml").write_text("rate_hz = 1.0\n")
    with crowd(300, 16) as pids:
        env = {
            **shim.environment(gpus=16, pid=pids),
            "XDG_STATE_HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path),
        }
        with Terminal([sys.executable, "-m", "gpuscope"], 120, 40, env) as terminal:
            terminal.wait_for("Overview")
            terminal.pump(10.0)
            begin, before = time.perf_counter(), terminal.cpu_by_process()
            terminal.pump(30.0)
            elapsed, after = time.perf_counter() - begin, terminal.cpu_by_process()
            rss = terminal.rss_bytes()
    each = {pid: (spent - before.get(pid, 0.0)) / elapsed * 100 for pid, spent in after.items()}
    report(
        "16 GPUs, 300 processes, 1 Hz, 120x40",
        cpu_percent=f"{sum(each.values()):.1f}",
        each=[f"{v:.1f}" for v in each.values()],
        rss_mib=f"{sum(rss.values()) / 2**20:.0f}",
    )
    assert sum(each.values()) <= 10.0


def test_q_leaves_at_once_with_a_hung_driver(report: Callable[..., None], tmp_path: Path) -> None:
    env = {
        **shim.environment(gpus=2, hang="nvmlDeviceGetUtilizationRates"),
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    with Terminal([sys.executable, "-m", "gpuscope"], 120, 40, env) as terminal:
        terminal.wait_for("Overview")
        terminal.wait_for("in nvmlDeviceGetUtilizationRates", 30)
        terminal.send("q")
        seconds = terminal.wait_exit()
    report("q with a hung driver call", seconds=f"{seconds:.3f}")
    assert seconds <= 0.3
