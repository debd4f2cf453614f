"""What a monitor costs while nobody touches it (bytes, processor time, memory), and how fast it leaves."""

from __future__ import annotations

import sys
import time

import pytest

from tests.bench.terminal import Terminal
from tests.fakes import shim

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=lambda s: f"{s[0]}x{s[1]}")
def test_steady_cost_with_eight_gpus_at_2_hz(size, report, tmp_path):
    env = {**shim.environment(gpus=8), "XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with Terminal([sys.executable, "-m", "gpuscope"], *size, env) as terminal:
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


def test_q_leaves_at_once_with_a_hung_driver(report, tmp_path):
    env = {
        **shim.environment(gpus=2, hang="nvmlDeviceGetUtilizationRates"),
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    with Terminal([sys.executable, "-m", "gpuscope"], 120, 40, env) as terminal:
        terminal.wait_for("Overview")
        terminal.wait_for("not returned", 30)
        terminal.send("q")
        seconds = terminal.wait_exit()
    report("q with a hung driver call", seconds=f"{seconds:.3f}")
    assert seconds <= 0.3
