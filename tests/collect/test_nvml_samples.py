"""What the driver sampled by itself: since when a device is idle, and how charts begin."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpuscope.agent.device_workers import DeviceWorker
from gpuscope.collect.nvml import Nvml
from gpuscope.wire.frames import Unknown
from tests.fakes.nvml import FakeNvml
from tests.fakes.nvml_replay import ReplayNvml


@pytest.mark.parametrize(
    ("samples", "seconds"),
    [
        (((9.0, 0), (6.0, 0), (3.0, 0), (0.1, 0)), 9.0),
        (((9.0, 0), (6.0, 40), (3.0, 0), (0.1, 0)), 3.0),
        (((3.0, 0), (9.0, 0), (6.0, 40), (0.1, 0)), 3.0),  # in any order
        (((9.0, 0), (0.1, 12)), 0.0),
        ((), 0.0),
        (((7200.0, 0),), 0.0),  # two hours ago: another clock's, or none
    ],
)
def test_the_zeros_at_the_end_count(samples: tuple[tuple[float, int], ...], seconds: float) -> None:
    fake = FakeNvml(gpus=1)
    fake.set(0, samples=samples)
    with fake.install():
        assert Nvml.open().device(0).idle_seconds() == pytest.approx(seconds, abs=0.2)


def test_a_device_without_samples_says_so() -> None:
    with FakeNvml(gpus=1).install():
        told = Nvml.open().device(0).idle_seconds()
    assert isinstance(told, Unknown)
    assert told.text == "nvmlDeviceGetSamples: not supported by this GPU"


def test_a_worker_knows_since_when_nothing_runs() -> None:
    fake = FakeNvml(gpus=1)
    fake.set(0, utilisation=0, samples=((8.0, 0), (0.1, 0)))
    with fake.install():
        device = Nvml.open().device(0)
        worker = DeviceWorker(device, 1.0, lambda: None)

        def look(now: float, **values: int) -> object:
            if values:
                fake.set(0, **values)
            worker._watch_idle(now, device.fast())
            return worker.idle_since

        assert look(100.0) == pytest.approx(92.0, abs=0.3)
        assert look(105.0) == pytest.approx(92.0, abs=0.3)
        assert look(106.0, utilisation=31) == 0.0
        assert look(107.0, utilisation=0) == 107.0, (
            "the driver is not asked again for what was seen"
        )
        assert look(109.0) == 107.0
        assert fake.count("nvmlDeviceGetSamples") == 1
        fake.fail("nvmlDeviceGetUtilizationRates", 0, "GpuIsLost")
        gone = look(110.0)
        assert isinstance(gone, Unknown)
        assert gone.code == "lost"


def test_the_past_is_the_means_of_the_driver_s_samples_second_by_second() -> None:
    fake = FakeNvml(gpus=1)
    second = time.time() % 1  # samples from the middle of whole seconds, whenever this runs
    ago = [second + 0.5 + n for n in range(12)]
    load = [(at, 90) for at in ago] + [(at + 0.2, 70) for at in ago] + [(ago[0], 101)]
    watts = ((ago[0], 600_000), (ago[0] + 0.1, 500_000), (3600.0, 1))
    fake.set(0, samples=tuple(load), more_samples={0: watts})
    with fake.install():
        before = time.monotonic()
        told = Nvml.open().device(0).past()
    assert set(told) == {"m", "utilization_percent", "power_watts"}, "memory was not sampled"
    assert told["utilization_percent"] == [80.0] * 12, "what is no percentage is left out"
    assert told["power_watts"] == [None] * 11 + [550.0]
    ages = [before - moment / 1e9 for moment in told["m"]]
    assert ages == pytest.approx(ago[::-1], abs=0.2), "on the clock of the other readings"


def test_a_device_that_samples_nothing_has_no_past() -> None:
    fake = FakeNvml(gpus=1)
    with fake.install():
        assert Nvml.open().device(0).past() == {}
        fake.set(0, samples=())
        assert Nvml.open().device(0).past() == {}


def test_the_past_that_an_h200_kept_before_it_was_asked() -> None:
    data = Path(__file__).parent.parent / "data" / "nvml-h200.json"
    dump: dict[str, Any] = json.loads(data.read_text())
    with ReplayNvml(dump).install():
        nvml = Nvml(clock=lambda: 1000.0, wall=lambda: dump["wall"])
        nvml.start()
        told = nvml.device(dump["index"]).past()
    assert set(told) == {"m", "utilization_percent"}
    moments, load = told["m"], told["utilization_percent"]
    assert len(moments) == len(load) > 10
    assert moments == sorted(set(moments))
    assert load[0] < 5
    assert load[-1] == pytest.approx(75, abs=3), "the training began within this time"
