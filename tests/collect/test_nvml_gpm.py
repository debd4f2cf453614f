"""GPM: two samples make a reading, and the driver's buffers are not leaked."""

from __future__ import annotations

import math
import threading
import time

import pytest

from gpuscope.collect.nvml import Nvml
from gpuscope.collect.nvml_readings import GPM_COLUMNS
from gpuscope.wire.frames import Unknown
from tests.fakes.nvml import Clock, FakeNvml, started


def gpm(readings: dict[str, object]) -> list[object]:
    return [readings[column] for column in GPM_COLUMNS]


def test_the_second_tick_has_the_readings() -> None:
    fake, clock = FakeNvml(gpus=2), Clock()
    with fake.install():
        device = started(clock).device(0)
        for reading in gpm(device.fast()):
            assert isinstance(reading, Unknown)
            assert (reading.code, "two samples" in reading.text) == ("not_initialised", True)
        clock.now += 0.5
        assert gpm(device.fast()) == [88.0, 42.0, 27.0]
        fake.set(0, gpm={2: 0.0, 3: 0.0, 5: 0.0})
        clock.now += 0.5
        assert gpm(device.fast()) == [0.0, 0.0, 0.0]


def test_asked_too_soon_the_last_answer_holds() -> None:
    fake, clock = FakeNvml(gpus=1), Clock()
    with fake.install():
        device = started(clock).device(0)
        device.fast()
        clock.now += 0.5
        device.fast()
        for _ in range(5):
            clock.now += 0.01
            assert gpm(device.fast()) == [88.0, 42.0, 27.0]
        assert fake.count("nvmlGpmSampleGet") == 2


def test_buffers_are_not_leaked_and_are_given_back() -> None:
    fake, clock = FakeNvml(gpus=2), Clock()
    with fake.install():
        nvml = started(clock)
        for tick in range(40):
            if tick in (7, 21):
                fake.fail("nvmlGpmSampleGet", 0, "Unknown")
            if tick in (9, 23):
                fake.heal()
            for index in (0, 1):
                nvml.device(index).fast()
            clock.now += 1
        assert len(fake.live_samples) == 4
        assert gpm(nvml.device(0).fast()) == [88.0, 42.0, 27.0]
        assert nvml.close()
        assert fake.live_samples == set()


def test_after_a_failure_two_new_samples_are_needed() -> None:
    fake, clock = FakeNvml(gpus=1), Clock()
    with fake.install():
        device = started(clock).device(0)
        for _ in range(3):
            device.fast()
            clock.now += 1
        fake.fail("nvmlGpmSampleGet", 0, "Unknown")
        assert {reading.code for reading in gpm(device.fast())} == {"driver_error"}  # type: ignore[attr-defined]
        fake.heal()
        clock.now += 1
        assert {reading.code for reading in gpm(device.fast())} == {"not_initialised"}  # type: ignore[attr-defined]
        clock.now += 1
        assert gpm(device.fast()) == [88.0, 42.0, 27.0]


def test_a_gpu_without_such_counters_is_asked_once() -> None:
    fake, clock = FakeNvml(gpus=1), Clock()
    fake.set(0, gpm_supported=False)
    with fake.install():
        device = started(clock).device(0)
        for _ in range(5):
            for reading in gpm(device.fast()):
                assert isinstance(reading, Unknown)
                assert reading.code == "not_supported"
                assert "nvmlGpmQueryDeviceSupport" in reading.text
            clock.now += 1
        assert fake.count("nvmlGpmQueryDeviceSupport") == 1
        assert fake.count("nvmlGpmSampleAlloc") == 0


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({2: math.nan, 3: math.inf, 5: -math.inf}, "driver_error"),
        ({2: 1e9, 3: 1e9, 5: -7.0}, "driver_error"),
        ({}, "not_supported"),
    ],
)
def test_what_is_no_percentage_is_unknown(values: dict[int, float], code: str) -> None:
    fake, clock = FakeNvml(gpus=1), Clock()
    fake.set(0, gpm=values)
    with fake.install():
        device = started(clock).device(0)
        device.fast()
        clock.now += 1
        for reading in gpm(device.fast()):
            assert isinstance(reading, Unknown)
            assert reading.code == code


def test_one_metric_may_fail_alone() -> None:
    fake, clock = FakeNvml(gpus=1), Clock()
    fake.set(0, gpm={2: 50.0, 3: math.nan, 5: 100.0001})
    with fake.install():
        device = started(clock).device(0)
        device.fast()
        clock.now += 1
        active, occupancy, tensor = gpm(device.fast())
    assert (active, tensor) == (50.0, 100.0)
    assert isinstance(occupancy, Unknown)


def test_no_room_for_samples() -> None:
    """nvmlGpmSampleAlloc names no device, so it is not in the table of failures."""
    fake = FakeNvml(gpus=1)
    fake.fail("nvmlGpmSampleAlloc", None, "Memory")
    with fake.install():
        readings = Nvml.open().device(0).fast()
    assert all(
        isinstance(reading, Unknown) and "nvmlGpmSampleAlloc" in reading.text
        for reading in gpm(readings)
    )
    assert readings["utilization_percent"] == 55


def test_gpm_calls_of_two_devices_are_never_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real drivers crash the process then."""
    inside: list[str] = []
    overlaps: list[tuple[str, ...]] = []
    answer = FakeNvml._answer

    def slow(self: FakeNvml, symbol: str, arguments: tuple[object, ...]) -> object:
        if not symbol.startswith("nvmlGpm"):
            return answer(self, symbol, arguments)
        inside.append(symbol)
        time.sleep(0.003)
        if len(inside) > 1:
            overlaps.append(tuple(inside))
        try:
            return answer(self, symbol, arguments)
        finally:
            inside.remove(symbol)

    monkeypatch.setattr(FakeNvml, "_answer", slow)
    fake = FakeNvml(gpus=4)
    with fake.install():
        nvml = Nvml.open()

        def read(index: int) -> None:
            for _ in range(4):
                nvml.device(index).fast()
                time.sleep(0.1)

        threads = [threading.Thread(target=read, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert fake.count("nvmlGpmMetricsGet") >= 4
    assert overlaps == []


def test_a_device_whose_metrics_hang_costs_the_others_these_readings_alone() -> None:
    fake, clock = FakeNvml(gpus=2), Clock()
    with fake.install():
        nvml = started(clock)
        for index in (0, 1):
            nvml.device(index).fast()
        clock.now += 0.5
        hang = fake.hang("nvmlGpmMetricsGet", 0)
        stuck = threading.Thread(target=nvml.device(0).fast, daemon=True)
        stuck.start()
        assert hang.entered.wait(10)
        first = nvml.device(1).fast()
        assert {reading.code for reading in gpm(first) if isinstance(reading, Unknown)} == {
            "not_initialised"
        }
        clock.now += 6
        readings = nvml.device(1).fast()
        assert {reading.code for reading in gpm(readings) if isinstance(reading, Unknown)} == {
            "timeout"
        }
        assert readings["utilization_percent"] == fake.gpus[1].utilisation
        hang.release()
        stuck.join(10)
        clock.now += 0.5
        assert gpm(nvml.device(1).fast()) == [88.0, 42.0, 27.0]
