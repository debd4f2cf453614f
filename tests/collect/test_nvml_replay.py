"""What ``demos/nvml_dump.py`` writes down is told again from its bytes.

The bytes are those of the fake, and of real machines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from demos import nvml_dump
from gpuscope.collect.nvml import Nvml
from gpuscope.wire.frames import Unknown
from tests.fakes.nvml import FakeNvml, FakeProcess
from tests.fakes.nvml_replay import ReplayNvml

DUMPS = sorted((Path(__file__).parent.parent / "data").glob("nvml-*.json"))


def told_again(dump: dict[str, Any]) -> tuple[dict[str, Any], list[Any], ReplayNvml]:
    replay = ReplayNvml(dump)
    with replay.install():
        nvml = Nvml(wall=lambda: dump["wall"])
        nvml.start()
        told, load = nvml_dump.tell(nvml, dump["index"], pause=0.1)
    return told, load, replay


def check(dump: dict[str, Any]) -> None:
    told, load, replay = told_again(dump)
    assert not replay.mismatched
    assert {name: told.get(name) for name in dump["told"]} == dump["told"]
    for name, why in dump["unknown"].items():
        assert isinstance(told[name], Unknown)
        assert told[name].text == why
    for again, before in zip(load, dump["load"], strict=True):
        if isinstance(again, Unknown):
            assert again.text == before
        else:
            assert {str(pid): sm for pid, sm in again.items()} == before


def test_a_dump_of_the_fake_is_told_again(tmp_path: Path) -> None:
    fake = FakeNvml(gpus=2, processes=[FakeProcess(4711, sm=64), FakeProcess(4712)])
    fake.set(0, retired=(1, 2), temperature=71, margin=16, fan=None)
    with fake.install():
        dump = nvml_dump.record(0, pause=0.1)
    file = tmp_path / "dump.json"
    file.write_text(json.dumps(dump))
    dump = json.loads(file.read_text())
    assert (dump["told"]["retired_pages_count"], dump["told"]["slowdown_margin_celsius"]) == (3, 16)
    assert "nvmlDeviceGetFanSpeed" in dump["unknown"]["fan_percent"]
    assert len(dump["calls"]) > 60
    assert dump["load"] == [{"4711": 64.0}] * 2
    check(dump)


def test_another_layout_is_seen() -> None:
    with FakeNvml(gpus=1).install():
        dump = nvml_dump.record(0, pause=0.1)
    for row in dump["calls"]:
        if row["call"] == "nvmlDeviceGetUtilizationRates":
            row["after"] = [
                one and nvml_dump.packed(nvml_dump.unpacked(one) + b"\0\0\0\0")
                for one in row["after"]
            ]
    _, _, replay = told_again(dump)
    assert replay.mismatched == ["nvmlDeviceGetUtilizationRates: 8 bytes, recorded 12"] * 2


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_a_dump_of_a_real_machine_is_told_again(path: Path) -> None:
    check(json.loads(path.read_text()))
