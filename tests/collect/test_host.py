"""The host's readings: this one, and recorded trees with cgroups of either version."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from gpuscope.collect.host import HostSampler, host_definition
from gpuscope.process.cgroup import binding_level
from gpuscope.wire.frames import HOST_COLUMNS, Unknown
from tests.fakes.proctree import code, stat_line, tree

MIB = 1 << 20
GIB = 1 << 30
MEMINFO = (
    "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"
    "SwapTotal: 2048 kB\nSwapFree: 1024 kB\n"
)
STAT = (
    "cpu  {busy} 0 0 {idle} {idle} 0 0 0 5 0\ncpu0 1 0 0 1 0 0 0 0 0 0\n"
    "cpu1 1 0 0 1 0 0 0 0 0 0\nintr 5 0 0\n"
)


def host(root: Path, busy: int = 100, idle: int = 100, **more: str) -> str:
    files: dict[str, bytes | str] = {
        "proc/stat": STAT.format(busy=busy, idle=idle),
        "proc/meminfo": MEMINFO,
        "proc/loadavg": "3.25 2.00 1.00 2/345 6789\n",
        "proc/self/stat": stat_line(b"agent", cpu=100),
        "dev/shm/.keep": "",
    }
    return tree(root, {**files, **more})


# ── this host ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_this_host() -> None:
    definition, unknown = host_definition()
    assert unknown == {}
    assert definition.cpu_count
    assert definition.cpu_count >= len(os.sched_getaffinity(0)) > 0
    assert definition.memory_total_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert definition.kernel == os.uname().release
    sampler = HostSampler()
    first = sampler.sample()
    assert tuple(first) == HOST_COLUMNS
    assert code(first["cpu_percent"]) == code(first["agent_cpu_percent"]) == "not_initialised"
    deadline = time.monotonic() + 30
    while isinstance(first["cpu_percent"], Unknown) and time.monotonic() < deadline:
        time.sleep(0.1)
        first = sampler.sample()
    assert isinstance(first["cpu_percent"], float)
    assert 0 <= first["cpu_percent"] <= 100
    assert isinstance(first["agent_rss_bytes"], int)
    assert MIB < first["agent_rss_bytes"] < 10 * GIB


def test_a_load_of_its_own_far_below_a_step_of_the_kernels_clock_is_not_nothing() -> None:
    sampler = HostSampler()
    sampler.sample()
    time.sleep(0.1)
    percent = sampler.sample()["agent_cpu_percent"]  # the sample itself took some 100 µs
    assert isinstance(percent, float)
    assert percent > 0


# ── recorded ──────────────────────────────────────────────────────────────────────────────────────


def test_memory_is_read_once_a_second_and_the_load_at_every_sample(tmp_path: Path) -> None:
    now = [10.0]
    sampler = HostSampler(host(tmp_path), clock=lambda: now[0], own=lambda: 1.0)
    sampler.sample()
    host(tmp_path, busy=175, idle=100, **{"proc/loadavg": "9.00 2.00 1.00 2/345 6789\n"})
    now[0] += 0.5
    readings = sampler.sample()
    assert (readings["cpu_percent"], readings["load_1m"]) == (100.0, 3.25)
    now[0] += 0.5
    assert sampler.sample()["load_1m"] == 9.0


def test_readings_of_a_recorded_host(tmp_path: Path) -> None:
    now, own = [10.0], [1.0]
    sampler = HostSampler(host(tmp_path), clock=lambda: now[0], own=lambda: own[0])
    sampler.sample()
    own[0] += 0.03
    host(tmp_path, busy=250, idle=125)
    tree(tmp_path, {"proc/self/stat": stat_line(b"agent", cpu=103, rss=10)})
    now[0] += 2.0
    readings = sampler.sample()
    assert readings["cpu_percent"] == 75.0
    assert readings["load_1m"] == 3.25
    assert readings["memory_available_bytes"] == 8 * GIB
    assert readings["swap_used_bytes"] == MIB
    assert readings["agent_cpu_percent"] == 1.5
    assert readings["agent_rss_bytes"] == 10 * os.sysconf("SC_PAGE_SIZE")
    assert code(readings["cgroup_memory_used_bytes"]) == "not_supported"
    definition, unknown = host_definition(str(tmp_path))
    assert (definition.cpu_count, definition.memory_total_bytes) == (2, 16 * GIB)
    assert definition.cgroup_memory_limit_bytes is None
    assert unknown == {}, "no limit is nothing missing"


def test_counters_that_run_backwards_are_no_percentage_below_zero(tmp_path: Path) -> None:
    sampler = HostSampler(host(tmp_path, busy=100, idle=100))
    sampler.sample()
    host(tmp_path, busy=90, idle=300)
    assert sampler.sample()["cpu_percent"] == 0.0


@pytest.mark.parametrize("gone", ["proc/stat", "proc/meminfo", "proc/loadavg", "proc/self/stat"])
@pytest.mark.parametrize("how", ["missing", "garbage", "empty"])
def test_a_file_that_is_not_there_costs_only_its_columns(
    tmp_path: Path, gone: str, how: str
) -> None:
    root = host(tmp_path)
    if how == "missing":
        (tmp_path / gone).unlink()
    else:
        (tmp_path / gone).write_bytes(b"\xff(nonsense" if how == "garbage" else b"")
    readings = HostSampler(root).sample()
    assert tuple(readings) == HOST_COLUMNS
    failed = [
        column
        for column, value in readings.items()
        if isinstance(value, Unknown) and "two samples" not in value.text
    ]
    assert 1 <= len([column for column in failed if column != "cgroup_memory_used_bytes"]) <= 2
    definition, unknown = host_definition(root)
    for field in ("cpu_count", "memory_total_bytes"):
        assert (getattr(definition, field) is None) == (field in unknown)


def test_an_empty_tree_is_all_reasons(tmp_path: Path) -> None:
    readings = HostSampler(str(tmp_path)).sample()
    assert all(isinstance(value, Unknown) and value.text for value in readings.values())
    definition, unknown = host_definition(str(tmp_path))
    assert definition.memory_total_bytes is None
    assert {"cpu_count", "memory_total_bytes", "shm_total_bytes"} <= set(unknown)


# ── cgroups ───────────────────────────────────────────────────────────────────────────────────────

V2 = "sys/fs/cgroup/"
V1 = "sys/fs/cgroup/memory/"
NONE_V1 = "9223372036854771712\n"


def v2(path: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    base = V2 + path
    return {
        f"{base}memory.max": f"{limit}\n",
        f"{base}memory.current": f"{used}\n",
        f"{base}memory.stat": f"anon 5\ninactive_file {inactive}\n",
    }


def v1(path: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    base = V1 + path
    return {
        f"{base}memory.limit_in_bytes": limit,
        f"{base}memory.usage_in_bytes": f"{used}\n",
        f"{base}memory.stat": f"cache 5\ninactive_file 1\ntotal_inactive_file {inactive}\n",
    }


CASES = {
    "version 2, one level": (
        {"proc/self/cgroup": "0::/user.slice\n", **v2("user.slice/", str(4 * GIB), 3 * GIB, GIB)},
        (4 * GIB, 2 * GIB),
    ),
    "version 2, a job's limit above its step (Slurm)": (
        {
            "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
            **v2("system.slice/slurmstepd.scope/job_7/step_0/user/task_0/", "max", GIB),
            **v2("system.slice/slurmstepd.scope/job_7/step_0/", "max", GIB),
            **v2("system.slice/slurmstepd.scope/job_7/", str(8 * GIB), 5 * GIB),
            **v2("system.slice/", "max", 9 * GIB),
        },
        (8 * GIB, 5 * GIB),
    ),
    "version 2, the tightest of several": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            **v2("a/", str(2 * GIB), 2 * GIB),
            **v2("a/b/", str(3 * GIB), GIB),
        },
        (2 * GIB, 2 * GIB),
    ),
    "version 2, in a container with its own cgroup namespace": (
        {"proc/self/cgroup": "0::/\n", **v2("", str(6 * GIB), GIB)},
        (6 * GIB, GIB),
    ),
    "version 2, in a container that sees the host's path": (
        {"proc/self/cgroup": "0::/../../kubepods/pod1/c1\n", **v2("", str(6 * GIB), GIB)},
        (6 * GIB, GIB),
    ),
    "version 2, max": (
        {"proc/self/cgroup": "0::/user.slice\n", **v2("user.slice/", "max", GIB)},
        (None, GIB),
    ),
    "version 2, a limit above the machine's memory": (
        {"proc/self/cgroup": "0::/user.slice\n", **v2("user.slice/", str(64 * GIB), GIB)},
        (None, GIB),
    ),
    "version 1": (
        {
            "proc/self/cgroup": "9:name=systemd:/x\n4:cpu,cpuacct:/\n3:memory:/docker/abc\n0::/\n",
            **v1("docker/abc/", f"{4 * GIB}\n", 2 * GIB, GIB),
            **v1("", NONE_V1, 9 * GIB),
        },
        (4 * GIB, GIB),
    ),
    "version 1, the host's path inside a container": (
        {"proc/self/cgroup": "3:memory:/docker/abc\n", **v1("", f"{4 * GIB}\n", 2 * GIB)},
        (4 * GIB, 2 * GIB),
    ),
    "version 1, no limit": (
        {"proc/self/cgroup": "3:memory:/\n", **v1("", NONE_V1, 2 * GIB)},
        (None, 2 * GIB),
    ),
    "no memory controller": ({"proc/self/cgroup": "0::/\n"}, (None, None)),
    "no cgroups": ({}, (None, None)),
}


@pytest.mark.parametrize("case", CASES)
def test_memory_limits(tmp_path: Path, case: str) -> None:
    files, (limit, used) = CASES[case]
    root = host(tmp_path, **files)
    definition, unknown = host_definition(root)
    assert definition.cgroup_memory_limit_bytes == limit
    assert "cgroup_memory_limit_bytes" not in unknown
    reading = HostSampler(root).sample()["cgroup_memory_used_bytes"]
    if used is None:
        assert code(reading) == "not_supported"
    else:
        assert reading == used


def test_a_limit_that_cannot_be_understood_is_unknown(tmp_path: Path) -> None:
    root = host(tmp_path, **{"proc/self/cgroup": "0::/a\n", **v2("a/", "lots", GIB)})
    definition, unknown = host_definition(root)
    assert definition.cgroup_memory_limit_bytes is None
    assert unknown["cgroup_memory_limit_bytes"].text


def test_a_cgroup_path_cannot_leave_the_tree(tmp_path: Path) -> None:
    tree(tmp_path.parent, {"outside/memory.current": "1", "outside/memory.max": "5"})
    root = host(
        tmp_path,
        **{"proc/self/cgroup": "0::/../../../../outside\n", "sys/fs/cgroup/cgroup.procs": ""},
    )
    assert binding_level(root).level is None
