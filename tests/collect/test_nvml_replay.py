"""What ``demos/nvml_dump.py`` writes down is told again from its bytes: of the fake, and of real machines."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from demos import nvml_dump
from gpuscope.collect.nvml import Nvml
from gpuscope.wire.frames import Unknown
from tests.fakes.nvml import FakeNvml
from tests.fakes.nvml_replay import ReplayNvml

DUMPS = sorted((Path(__file__).parent.parent / "data").glob("nvml-*.json"))
CHANGING = ("energy_joules",)


def told_again(dump: dict[str, object]) -> tuple[dict[str, object], ReplayNvml]:
    replay = ReplayNvml(dump)
    with replay.install():
        nvml = Nvml.open()
        device = nvml.device(int(str(dump["index"])))
        device.fast()
        device.slow()
        time.sleep(0.1)
        definition, _ = device.static()
        told: dict[str, object] = dict(vars(definition))
        ways, _ = device.paths(nvml.device_count())
        for readings in (device.fast(), device.slow(), device.inventory(), ways, device.health()):
            told.update(readings)
    return told, replay


def check(dump: dict[str, object]) -> None:
    told, replay = told_again(dump)
    assert not replay.mismatched
    readable = dump["told"]
    assert isinstance(readable, dict)
    assert {name: told.get(name) for name in readable} == readable
    unknown = dump["unknown"]
    assert isinstance(unknown, dict)
    for name, why in unknown.items():
        reading = told[name]
        assert isinstance(reading, Unknown)
        assert reading.text == why


def test_a_dump_of_the_fake_is_told_again(tmp_path: Path) -> None:
    fake = FakeNvml(gpus=2)
    fake.set(0, retired=(1, 2), temperature=71, margin=16, fan=None)
    with fake.install():
        dump = nvml_dump.record(0)
    file = tmp_path / "dump.json"
    file.write_text(json.dumps(dump))
    dump = json.loads(file.read_text())
    assert (dump["told"]["retired_pages_count"], dump["told"]["slowdown_margin_celsius"]) == (3, 16)
    assert "nvmlDeviceGetFanSpeed" in dump["unknown"]["fan_percent"]
    assert len(dump["calls"]) > 60
    check(dump)


def test_another_layout_is_seen() -> None:
    with FakeNvml(gpus=1).install():
        dump = nvml_dump.record(0)
    for row in dump["calls"]:
        if row["call"] == "nvmlDeviceGetUtilizationRates":
            row["after"] = [one + "00000000" if one else one for one in row["after"]]
    _, replay = told_again(dump)
    assert replay.mismatched == ["nvmlDeviceGetUtilizationRates: 8 bytes, recorded 12"] * 2


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_a_dump_of_a_real_machine_is_told_again(path: Path) -> None:
    check(json.loads(path.read_text()))
