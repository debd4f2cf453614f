"""The collector and a peer on a whole fake library: a real shared object under real ctypes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fakes import shim
from tests.fakes.program import python

REPO = Path(__file__).resolve().parents[2]
SCRIPT = f"""
import json, sys, threading, time
sys.path.insert(0, {str(REPO)!r})
from gpuscope.collect.nvml import Nvml, NvmlUnavailable
from gpuscope.wire.frames import Unknown
def plain(readings):
    return {{k: {{"code": v.code, "text": v.text}} if isinstance(v, Unknown) else v for k, v in readings.items()}}
try:
    nvml = Nvml.open()
except NvmlUnavailable as error:
    print(json.dumps({{"unavailable": error.unknown.text}}))
    raise SystemExit
out = []
for index in range(nvml.device_count()):
    device = nvml.device(index)
    definition, unknown = device.static()
    device.fast()
    time.sleep(0.12)
    out.append({{"uuid": definition.uuid, "name": definition.name, **plain(unknown), **plain(device.fast()),
                **plain(device.slow()), "processes": device.processes() or []}})
print(json.dumps({{"devices": out, "closed": nvml.close()}}))
"""  # noqa: E501


def collected(**asked: object) -> dict[str, object]:
    done = python("-c", SCRIPT, env=shim.environment(**asked))
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_eight_gpus_that_move() -> None:
    found = collected(gpus=8, pid=f"{os.getpid()},{os.getpid()}:3")
    devices = found["devices"]
    assert isinstance(devices, list)
    assert len({device["uuid"] for device in devices}) == 8
    assert found["closed"]
    for device in devices:
        assert device["name"] == "NVIDIA H200"
        assert 40 <= device["utilization_percent"] <= 100
        assert 0 < device["tensor_active_percent"] < device["sm_active_percent"] < 100
        assert (
            device["used_bytes"] + device["free_bytes"] + device["driver_reserved_bytes"]
            == 150754820096
        )
        assert device["fan_percent"]["code"] == "not_supported"
    assert len({device["used_bytes"] for device in devices}) > 4, "each GPU has its own course"
    assert [len(device["processes"]) for device in devices] == [1, 0, 0, 1, 0, 0, 0, 0]
    assert devices[0]["processes"][0][0] == os.getpid()


def test_one_gpu_is_lost() -> None:
    devices = collected(gpus=2, lost=1)["devices"]
    assert isinstance(devices, list)
    assert isinstance(devices[0]["power_watts"], float)
    assert devices[1]["name"] == "NVIDIA H200"
    assert devices[1]["power_watts"]["code"] == "lost"


def test_no_start() -> None:
    assert "reboot or reload the kernel module" in str(collected(init_error=18)["unavailable"])


def test_a_hung_call_does_not_keep_the_process() -> None:
    hangs = "nvmlDeviceGetPowerUsage"
    script = f"""
import sys, threading, time, os
sys.path.insert(0, {str(REPO)!r})
from gpuscope.collect.nvml import Nvml
device = Nvml.open().device(0)
threading.Thread(target=device.fast, daemon=True).start()
while (device.current_call or [""])[0] != {hangs!r}: time.sleep(0.01)
print("hangs", flush=True)
"""
    env = shim.environment(gpus=1, hang=hangs)
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "hangs\n"
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()
