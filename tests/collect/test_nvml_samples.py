"""Since when a device is idle, by the driver's samples."""

from __future__ import annotations

import pytest

from gpuscope.agent.device_workers import DeviceWorker
from gpuscope.collect.nvml import Nvml
from gpuscope.wire.frames import Unknown
from tests.fakes.nvml import FakeNvml


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
    assert told.text == "nvmlDeviceGetSamples: not supported by this device"


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
