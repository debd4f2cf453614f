"""The collector on a real NVIDIA GPU: ``pytest -m gpu tests/collect -s``."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time

import pytest

from gpuscope.collect.nvml import Nvml, NvmlUnavailable
from gpuscope.collect.nvml_readings import GPM_COLUMNS
from gpuscope.wire.frames import Unknown

pytestmark = pytest.mark.gpu
MIB = 1 << 20


@pytest.fixture(scope="module")
def nvml() -> Nvml:
    try:
        return Nvml.open()
    except NvmlUnavailable as error:
        pytest.skip(error.unknown.text)


def test_the_same_devices_as_nvidia_smi(nvml: Nvml) -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs nvidia-smi")
    query = "--query-gpu=uuid,name,pci.bus_id,memory.total,memory.used,driver_version"
    done = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    assert len(rows) == nvml.device_count()
    for index, (uuid, name, bus, total, used, driver) in enumerate(rows):
        definition, unknown = nvml.device(index).static()
        assert unknown == {}
        assert (definition.uuid, definition.name, definition.pci_bus_id) == (uuid, name, bus)
        assert definition.total_bytes is not None
        assert definition.total_bytes // MIB == int(total)
        reading = nvml.device(index).fast()["used_bytes"]
        assert isinstance(reading, int)
        assert abs(reading // MIB - int(used)) < 1024
        assert nvml.driver_version == driver


def test_every_column_is_a_reading_or_a_reason(nvml: Nvml) -> None:
    device = nvml.device(0)
    device.fast()
    time.sleep(0.2)
    readings = {**device.fast(), **device.slow()}
    for column, value in readings.items():
        print(f"{column:28} {value}")
        assert not isinstance(value, Unknown) or value.text
    total = device.static()[0].total_bytes
    parts = [readings[column] for column in ("used_bytes", "free_bytes", "driver_reserved_bytes")]
    if not any(isinstance(part, Unknown) for part in parts):
        assert sum(parts) == pytest.approx(total, abs=64 * MIB)  # type: ignore[arg-type]
    assert isinstance(device.processes(), list)


def test_gpm_where_the_gpu_has_it(nvml: Nvml) -> None:
    device = nvml.device(0)
    values = []
    for _ in range(5):
        values.append([device.fast()[column] for column in GPM_COLUMNS])
        time.sleep(0.15)
    capability = device.static()[0].compute_capability
    if capability is None or float(capability) < 9.0:
        pytest.skip("GPM needs Hopper or newer")
    for row in values[2:]:
        assert all(isinstance(value, float) and 0 <= value <= 100 for value in row), row


def test_what_the_fast_tier_costs(nvml: Nvml) -> None:
    device = nvml.device(0)
    seconds = []
    for _ in range(60):
        began = time.perf_counter()
        device.fast()
        seconds.append(time.perf_counter() - began)
        time.sleep(0.1)
    median = statistics.median(seconds)
    print(f"fast tier with GPM: median {median * 1e6:.0f} µs, max {max(seconds) * 1e6:.0f} µs")
    assert median < 1e-3
