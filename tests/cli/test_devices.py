"""``gpuscope devices`` runs on a fake driver under the real pynvml.

The tests see the document, the exit code and the text.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys

import pytest

from gpuscope.cli import local_look, output
from gpuscope.cli.commands.devices import verb as devices_verb
from gpuscope.cli.remote_look import all_answered
from gpuscope.store.store import Store
from gpuscope.wire import frames
from tests.fakes import shim, wire
from tests.fakes.nvml import FakeNvml, FakeProcess
from tests.fakes.program import program, python


@pytest.fixture
def fake():
    fake = FakeNvml(gpus=2, processes=[FakeProcess(os.getpid(), used=5 << 30, gpu=1)])
    with fake.install():
        yield fake


def run(capsys, *words):
    parser = argparse.ArgumentParser()
    devices_verb.add_arguments(parser)
    code = devices_verb.run(parser.parse_args(words))
    return code, capsys.readouterr().out


def run_json(capsys, *words):
    code, out = run(capsys, "--json", *words)
    document = json.loads(out)
    assert document["exit_code"] == code
    check_schema(document)
    return code, document


NUMBER = (int, float)
KEYS = {
    "index": int,
    "uuid": str,
    "name": str,
    "memory": dict,
    "utilization_percent": NUMBER,
    "power_watts": NUMBER,
    "temperature_celsius": NUMBER,
    "sm_active_percent": NUMBER,
    "tensor_active_percent": NUMBER,
    "sm_clock_mhz": NUMBER,
    "memory_clock_mhz": NUMBER,
    "power_limit_watts": NUMBER,
    "clock_event_reasons": list,
    "processes": list,
}
MEMORY = ("total_bytes", "used_bytes", "driver_reserved_bytes", "free_bytes")


def check_schema(document):
    """Keys and types; a null has a row in ``unknown`` that says why."""
    assert {"host", "driver_version", "devices", "problems", "unknown"} <= document.keys()
    assert isinstance(document["host"], str)
    why = {row["path"]: row for row in document["unknown"]}
    assert all(
        row.keys() == {"path", "code", "reason"} and row["reason"] for row in document["unknown"]
    )
    for row in document["problems"]:
        assert row.keys() == {"device", "severity", "reason"}
        assert row["severity"] in ("warning", "problem", "unchecked")
    for position, device in enumerate(document["devices"]):
        for key, kind in KEYS.items():
            if device[key] is None:
                assert f"devices[{position}].{key}" in why
            else:
                assert isinstance(device[key], kind), key
        for key in MEMORY:
            if device["memory"][key] is None:
                assert f"devices[{position}].memory.{key}" in why
            else:
                assert isinstance(device["memory"][key], int)


def test_two_devices(fake, capsys):
    code, document = run_json(capsys)
    assert code == 0
    assert document["problems"] == []
    assert document["driver_version"] == "580.159.03"
    first, second = document["devices"]
    assert (first["index"], first["uuid"]) == (0, fake.gpus[0].uuid)
    assert second["memory"] == {
        "total_bytes": 150_754_820_096,
        "used_bytes": 20 << 30,
        "driver_reserved_bytes": 700_000_000,
        "free_bytes": 150_754_820_096 - (20 << 30) - 700_000_000,
    }
    assert second["power_watts"] == pytest.approx(412.345)
    assert second["clock_event_reasons"] == ["power cap"]
    (process,) = second["processes"]
    assert (process["pid"], process["used_bytes"]) == (os.getpid(), 5 << 30)
    assert "python" in process["command"]
    assert first["processes"] == []
    # not supported here is no problem, but it is no zero either
    assert first["fan_percent"] is None


def test_a_lost_device_is_a_problem_and_the_other_is_still_told(fake, capsys):
    fake.lose(1)
    code, document = run_json(capsys)
    assert code == 2
    (row,) = document["problems"]
    assert (row["device"], row["severity"]) == (1, "problem")
    assert "fallen off the bus" in row["reason"]
    assert document["devices"][0]["power_watts"] is not None
    assert document["devices"][1]["power_watts"] is None
    assert {r["code"] for r in document["unknown"] if r["path"] == "devices[1].power_watts"} == {
        "lost"
    }
    code, out = run(capsys)
    assert code == 2
    assert "PROBLEM  GPU 1: " in out
    assert "fallen off the bus" in out


def test_gpus_with_the_same_problem_are_named_together_in_the_text(fake, capsys):
    fake.lose(0)
    fake.lose(1)
    _, document = run_json(capsys)
    assert [row["device"] for row in document["problems"]] == [0, 1]
    assert document["problems"][0]["reason"] == document["problems"][1]["reason"]
    _, out = run(capsys)
    assert f"PROBLEM  GPU 0, 1: {document['problems'][0]['reason']}" in out
    assert out.count("PROBLEM ") == 1


def test_memory_that_no_process_holds_is_one_line_for_all_gpus(fake, capsys):
    fake.set(0, used=10 << 30)
    fake.set(1, used=30 << 30)
    _, out = run(capsys)
    (told,) = [line for line in out.splitlines() if "held by no visible process" in line]
    assert told.startswith("– GPU 0, 1: 35.0 GiB in all held by"), "a process holds 5 GiB"


def test_without_a_driver(fake, capsys):
    fake.fail("nvmlInitWithFlags", None, "DriverNotLoaded")
    code, document = run_json(capsys)
    assert code == 3
    assert document["devices"] == []
    assert document["driver_version"] is None
    assert "modprobe" in document["problems"][0]["reason"]
    assert {"devices", "driver_version"} <= {row["path"] for row in document["unknown"]}
    code, out = run(capsys)
    assert code == 3
    assert "modprobe" in out
    assert "gpuscope ps" in out


@pytest.mark.parametrize(
    "call",
    ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetUUID", "nvmlDeviceGetComputeRunningProcesses_v3"],
)
def test_a_hung_call_prints_what_came(fake, capsys, call):
    with fake.hang(call, 1):
        code, document = run_json(capsys, "--timeout", "1")
    assert code == 3
    assert document["devices"][0]["power_watts"] == pytest.approx(412.345)
    assert any(row["device"] == 1 and call in row["reason"] for row in document["problems"])
    assert any(row["code"] == "timeout" and call in row["reason"] for row in document["unknown"])
    if "Processes" in call:
        assert document["devices"][1]["power_watts"] is not None  # what came before the hang
        assert document["devices"][1]["processes"] is None


def test_counters_that_need_two_samples_get_them(fake, capsys):
    _, document = run_json(capsys)
    assert document["devices"][0]["sm_active_percent"] == 88.0
    assert document["devices"][0]["tensor_active_percent"] == 27.0


def test_a_limit_too_short_for_the_driver_is_said(fake, capsys):
    fake.delay = 0.02
    code, document = run_json(capsys, "--timeout", "0.1")
    assert code == 3
    assert any(row["severity"] == "unchecked" for row in document["problems"])


def test_opening_that_hangs(fake, capsys):
    with fake.hang("nvmlInitWithFlags", None):
        code, document = run_json(capsys, "--timeout", "1")
        assert code == 3
        assert "nvmlInitWithFlags has not returned" in document["problems"][0]["reason"]


def test_heat_and_memory_errors_are_warnings(fake, capsys):
    fake.set(0, event_reasons=0x40)
    fake.set(1, ecc=3)
    code, document = run_json(capsys)
    assert code == 1
    assert [(row["device"], row["severity"]) for row in document["problems"]] == [
        (0, "warning"),
        (1, "warning"),
    ]
    assert "thermal" in document["problems"][0]["reason"]
    assert "3 uncorrected" in document["problems"][1]["reason"]


def test_a_sick_device_is_a_problem_one_sick_reading_a_warning(fake, capsys):
    fake.fail("*", 0, "Unknown")
    code, document = run_json(capsys)
    assert code == 2
    assert {row["severity"] for row in document["problems"] if row["device"] == 0} == {"problem"}
    fake.heal()
    fake.fail("nvmlDeviceGetPowerUsage", 0, "Unknown")
    code, document = run_json(capsys)
    assert code == 1
    assert "power_watts" in document["problems"][0]["reason"]


def test_text_is_aligned_whatever_a_driver_calls_its_device(fake, capsys):
    fake.set(0, name="显卡 H200 ✨".encode())
    fake.set(1, name=b"evil \x1b]52;c;\x07 name")
    code, out = run(capsys)
    assert code == 0
    assert "\x1b" not in out
    from gpuscope.text.width import cells

    head, *rows = [line for line in out.splitlines() if line.startswith(("GPU", "  0", "  1"))]
    column = head.index("USED") + len("USED")
    for row in rows:
        used = next(i for i in range(len(row)) if cells(row[:i]) == column)
        assert row[:used].endswith("20.0")


def test_a_narrow_terminal_gets_shorter_names_and_fewer_columns(fake, capsys, monkeypatch):
    widths, heads = {}, {}
    for columns in (None, 120, 85, 80, 60):
        monkeypatch.setattr(output, "terminal_width", lambda columns=columns: columns)
        _, out = run(capsys)
        table = [line for line in out.splitlines() if "TOTAL GiB" in line or "H200" in line]
        widths[columns], heads[columns] = max(map(len, table)), table[0]
        assert ("NVIDIA H200" in out) == (columns in (None, 120))
    assert widths[120] == widths[None] > 85
    assert all(widths[columns] <= columns for columns in (85, 80, 60) if columns != 60)
    assert "SM CLOCK" in heads[None]
    assert "SM CLOCK" not in heads[80]
    assert "PROCESSES" in heads[60], "who uses a GPU is never left out"


def test_a_process_whose_pid_the_driver_cannot_name_is_no_zero(fake, capsys):
    fake.processes = [FakeProcess(os.getpid(), used=None, gpu=0)]
    _, document = run_json(capsys)
    assert document["devices"][0]["processes"][0]["used_bytes"] is None
    assert any(row["path"] == "devices[0].processes[0].used_bytes" for row in document["unknown"])


def test_as_a_command_it_is_bounded_and_loads_nothing_heavy():
    done = python("-X", "importtime", "-m", "gpuscope", "devices", "--json")
    assert done.returncode in (0, 1, 2, 3)
    check_schema(json.loads(done.stdout))
    loaded = {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time")
    }
    assert not {"textual", "torch", "msgspec", "asyncio", "rich", "plotext", "numpy"} & loaded


@pytest.mark.parametrize("words", [["--timeout", "0"], ["--timeout", "soon"]])
def test_usage(words):
    done = program("devices", *words)
    assert done.returncode == 64
    assert "0.1" in done.stderr


def test_the_document_has_the_whole_card(fake, capsys):
    fake.set(0, mig_modes=(1, 1), mig_names=("MIG 1g.18gb",))
    _, document = run_json(capsys)
    first, second = document["devices"]
    assert (first["architecture"], first["memory_bus_bits"], first["vbios_version"]) == (
        "Hopper",
        6144,
        "96.00.A5.00.01",
    )
    assert (first["ecc_enabled"], first["mig_enabled"], second["mig_enabled"]) == (
        True,
        True,
        False,
    )
    assert "MIG 1g.18gb" in first["mig_instances"]
    assert second["mig_instances"] == ""
    assert (first["topology"], second["topology"]) == ("X NV18", "NV18 X")
    assert (first["numa_node"], first["cpu_affinity"]) == ("0", "0-23,48-71")
    assert (first["min_power_limit_watts"], first["slowdown_celsius"]) == (200.0, 87)
    assert first["nvlink_rx_bytes_per_second"] == 9340 << 20
    assert (first["dram_active_percent"], first["energy_joules"]) == (42.0, 912345.678)
    assert (
        first["remapped_correctable_count"],
        first["pcie_replay_count"],
        first["xid_count"],
    ) == (1, 2, 0)
    assert (first["unaccounted_bytes"], second["unaccounted_bytes"]) == (20 << 30, 15 << 30)
    assert first["retired_pages_count"] is None
    assert first["last_xid"] is None
    assert [
        row["reason"] for row in document["unknown"] if row["path"] == "devices[0].last_xid"
    ] == ["no XID error since gpuscope started"]


def test_a_device_that_must_wait_for_its_turn_has_its_counters_too(fake, capsys):
    """Only one device may be asked for them at a time, and each asks for two kinds of them."""
    fake.delay = {"nvmlGpmMetricsGet": 0.1}
    _, document = run_json(capsys)
    assert [one["nvlink_rx_bytes_per_second"] for one in document["devices"]] == [9340 << 20] * 2
    assert None not in [one["sm_active_percent"] for one in document["devices"]]


def test_what_waits_for_a_reset_is_a_warning(fake, capsys):
    fake.set(1, remapped=(0, 2, 1, 0))
    code, document = run_json(capsys)
    assert code == 1
    assert [(row["device"], "next reset" in row["reason"]) for row in document["problems"]] == [
        (1, True)
    ]


def test_watching_prints_lines_until_a_device_is_lost(fake, capsys):
    looks = []

    def look(**options):
        if len(looks) == 2:
            fake.lose(1)
        looks.append(options)
        return local_look.look(**options)

    parser = argparse.ArgumentParser()
    devices_verb.add_arguments(parser)
    code = devices_verb.run(parser.parse_args(["--watch", "0.1"]), look)
    lines = capsys.readouterr().out.splitlines()
    assert code == 2
    assert len(looks) == 3
    assert sum("GPU 0 NVIDIA H200 used 20.0/140 GiB util 55 %" in line for line in lines) == 3
    assert "problem: " in lines[-1]
    assert "fallen off the bus" in lines[-1]


def test_holders_are_the_processes_with_the_device_open(tmp_path):
    from gpuscope.collect.holders import holders

    for pid, target in ((41, "/dev/nvidia1"), (42, "/dev/nvidia10"), (43, "/dev/nvidia1")):
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        (folder / "0").symlink_to("/dev/null")
        (folder / "7").symlink_to(target)
    (tmp_path / "self").mkdir()
    (tmp_path / "44").mkdir()  # it ended
    assert holders([1, 3], str(tmp_path)) == ({1: (41, 43), 3: ()}, 0, "")


def test_since_when_a_gpu_is_idle_and_what_cuda_calls_it(fake, capsys):
    fake.set(0, utilisation=0, samples=((14.0, 0), (0.1, 0)))
    with subprocess.Popen(
        ["sleep", "60"], env={**os.environ, "CUDA_VISIBLE_DEVICES": "1,0"}
    ) as child:
        fake.processes = [FakeProcess(child.pid, used=5 << 30), FakeProcess(1, gpu=1)]
        _, document = run_json(capsys)
        _, out = run(capsys)
        child.kill()
    assert [device["idle_seconds"] for device in document["devices"]] == [
        pytest.approx(14, abs=3),
        0.0,
    ]
    assert f"pid {child.pid} 5.00 GiB · idle ≥ 1" in out
    assert f"cuda  pid {child.pid}: cuda:0 = GPU 1, cuda:1 = GPU 0" in out
    row = next(row for row in document["cuda_order"] if row["pid"] == child.pid)
    assert (row["source"], row["visible_devices"], row["reason"]) == ("environment", "1,0", None)
    assert [(one["ordinal"], one["index"], one["uuid"]) for one in row["ordinals"]] == [
        (0, 1, fake.gpus[1].uuid),
        (1, 0, fake.gpus[0].uuid),
    ]


def test_holders_here_are_named_with_why_they_may_not_be_all(fake, capsys, monkeypatch):
    from gpuscope.collect import holders

    told = {
        "devices": [
            {"minor": 1, "processes": [{"pid": 41, "user": None, "command": "x\x1b[2J"}], "more": 2}
        ],
        "hidden_processes": 7,
        "why": "seven of others",
    }
    monkeypatch.setattr(holders, "holders_document", lambda minors, redact: told)
    _, document = run_json(capsys, "--holders")
    assert document["devices"][0]["holders"] is None
    assert document["devices"][1]["holders"]["processes"] == [
        {"pid": 41, "user": None, "command": "x\\x1b[2J"}
    ]
    _, out = run(capsys, "--holders")
    assert "GPU 1 is open in someone pid 41  x\\x1b[2J" in out
    assert "GPU 1 is open in 2 more" in out
    assert out.rstrip().endswith("seven of others")


@pytest.mark.slow
def test_another_host_is_asked_the_same(tmp_path):
    """Another host is asked the same.

    It is asked through a real agent in another process, over a fake library: processes, shares,
    holders, CUDA's numbers.
    """
    with subprocess.Popen(
        ["sleep", "60"], env={**os.environ, "CUDA_VISIBLE_DEVICES": "1,0"}
    ) as child:
        environment = {
            **shim.environment(gpus=2, pid=f"{child.pid}:0", idle="1"),
            "XDG_STATE_HOME": str(tmp_path),
        }
        command = [
            sys.executable,
            "-m",
            "gpuscope",
            "devices",
            "--json",
            "--holders",
            "--via",
            "env A=1",
        ]
        # 5 s of a user's patience say nothing about a machine that is very busy
        command += ["--timeout", "40"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)
        child.kill()
    assert done.returncode in (0, 1), (
        json.loads(done.stdout)["problems"] if done.stdout else done.stderr
    )
    document = json.loads(done.stdout)
    check_schema(document)
    busy, idle = document["devices"]
    assert [row["pid"] for row in busy["processes"]] == [child.pid]
    assert busy["processes"][0]["sm_percent"] >= 40
    assert busy["sm_active_percent"] is not None, "what needs two samples has had them"
    assert (busy["idle_seconds"], idle["processes"]) == (0.0, [])
    assert idle["idle_seconds"] >= 15
    assert busy["holders"]["processes"] == []
    assert [one["index"] for one in document["cuda_order"][0]["ordinals"]] == [1, 0]


def test_a_device_of_another_host_that_is_late_is_waited_for():
    store = Store()
    store.add_source("k", "label")

    def say(second: int, why: list[list[object]], **numbers: object) -> None:
        rows = {"h": [wire.row(0, "h", load_1m=1.0)], "g": [wire.row(1, "g", **numbers)]}
        store.apply("k", frames.Sample(second, second * 10**9, why=why, **rows), 1.0)

    store.apply("k", wire.hello(), 1.0)
    store.apply("k", frames.Def(1, gpu=frames.GpuDef("GPU-a", 0)), 1.0)
    late = "nvmlDeviceGetMemoryInfo_v2 has not returned for 1 s"
    say(101, [[1, "used_bytes", frames.TIMEOUT, late]])
    assert not all_answered(store.host("k"))
    say(102, [[1, "used_bytes", "", ""]], used_bytes=7)
    assert store.host("k").devices[0].reading("used_bytes") == 7
    assert all_answered(store.host("k"))


@pytest.mark.parametrize(
    "words",
    [
        "devices --json",
        pytest.param("ps --json", marks=pytest.mark.slow),
        pytest.param("doctor --json", marks=pytest.mark.slow),
        "-u devices --json",
    ],
)
def test_a_driver_that_prints_does_not_spoil_a_document(words):
    unbuffered = ["-u"] if words.startswith("-u ") else []
    words = words.removeprefix("-u ").split()
    command = [sys.executable, *unbuffered, "-m", "gpuscope", *words]
    done = subprocess.run(
        command, env=shim.environment(gpus=1, chatty=1), capture_output=True, text=True, timeout=60
    )
    # what the library's own buffer keeps is written at the end, or never
    assert json.loads(done.stdout)
    assert "driver: at once" in done.stderr


@pytest.mark.slow
def test_a_chatty_driver_harms_neither_pipes_nor_closed_streams():
    command = f"{shlex.quote(sys.executable)} -m gpuscope"
    line = f"{command} devices --json 2>/dev/null | head -c 1; {command} ps --json 2>&-"
    env = shim.environment(gpus=1, chatty=1)
    done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout[0] == "{"
    assert json.loads(done.stdout[1:])
