"""The SM share of a process is never another's, never old, and never more than all.

It is read through the driver's own structs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from gpuscope.collect.nvml import Nvml, NvmlDevice
from gpuscope.collect.nvml_process_load import (
    CALL,
    NEWER_CALL,
    NO_SAMPLE,
    WINDOW_SECONDS,
    NewerRequest,
    NewerSample,
    ProcessLoad,
    ProcessSample,
)
from gpuscope.wire.frames import Unknown
from tests.fakes.nvml import FakeNvml, FakeProcess

BUSY = [
    FakeProcess(101, sm=61),
    FakeProcess(102, sm=7),
    FakeProcess(103),
    FakeProcess(201, gpu=1, sm=33),
]


def opened(index: int = 0) -> NvmlDevice:
    return Nvml.open().device(index)


def test_the_sizes_are_those_of_nvml_h() -> None:
    assert (
        ctypes.sizeof(ProcessSample),
        ctypes.sizeof(NewerSample),
        ctypes.sizeof(NewerRequest),
    ) == (
        32,
        40,
        24,
    )


@pytest.mark.parametrize("older_is_missing", [False, True])
def test_each_device_names_those_that_ran_kernels(older_is_missing: bool) -> None:
    fake = FakeNvml(gpus=2, processes=BUSY)
    if older_is_missing:
        fake.missing(CALL)
    with fake.install():
        assert opened(0).process_load() == {101: 61.0, 102: 7.0}
        assert opened(1).process_load() == {201: 33.0}
    assert fake.count(NEWER_CALL) == (2 if older_is_missing else 0)


@pytest.mark.parametrize("older_is_missing", [False, True])
def test_many_processes_make_the_room_grow(older_is_missing: bool) -> None:
    fake = FakeNvml(gpus=1, processes=[FakeProcess(1000 + n, sm=n % 100) for n in range(500)])
    if older_is_missing:
        fake.missing(CALL)
    with fake.install():
        device = opened()
        assert device.process_load() == {1000 + n: float(n % 100) for n in range(500)}
        device.process_load()
    assert fake.count(NEWER_CALL if older_is_missing else CALL) == 3, "the room is kept"


def test_nobody_ran_a_kernel() -> None:
    with FakeNvml(gpus=1, processes=[FakeProcess(101)]).install():
        assert opened().process_load() is NO_SAMPLE


def test_neither_call() -> None:
    fake = FakeNvml(gpus=1, processes=BUSY)
    fake.missing(CALL, NEWER_CALL)
    with fake.install():
        told = opened().process_load()
    assert isinstance(told, Unknown)
    assert told.code == "not_supported"


class Driver:
    """Answers the older call with these rows, (pid, seconds, sm), whatever it is asked."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, int]] = []
        self.asked: list[int] = []

    def __call__(self, symbol: str) -> Callable[..., int]:
        def function(
            handle: object,
            rows: ctypes.Array[ProcessSample],
            count: object,
            since: ctypes.c_ulonglong,
        ) -> int:
            self.asked.append(since.value)
            for slot, (pid, seconds, sm) in zip(rows, self.rows, strict=False):
                slot.pid, slot.microseconds, slot.sm = pid, int(seconds * 1e6), sm
            count._obj.value = len(self.rows)  # type: ignore[attr-defined]
            return 0

        return function


WALL = 1_800_000_000.0


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def load(driver: Driver) -> ProcessLoad:
    from gpuscope.collect.nvml_calls import DeviceCalls, Gate

    return ProcessLoad(driver, DeviceCalls(Gate()), lambda: WALL)


def test_the_window_is_the_same_each_time_and_what_is_older_is_not_believed(
    driver: Driver, load: ProcessLoad
) -> None:
    driver.rows = [
        (11, WALL - 1.0, 40),
        (12, WALL - 0.5, 20),
        (13, WALL - WINDOW_SECONDS - 0.5, 90),
    ]
    assert load.read(None) == {11: 40.0, 12: 20.0}
    assert load.read(None) == {11: 40.0, 12: 20.0}, "asked again at once, the same"
    assert driver.asked == [int((WALL - WINDOW_SECONDS) * 1e6)] * 2


def test_the_newest_of_several_samples_counts(driver: Driver, load: ProcessLoad) -> None:
    driver.rows = [(11, WALL - 0.3, 90), (11, WALL - 0.6, 10), (11, WALL - 0.9, 50)]
    assert load.read(None) == {11: 90.0}


def test_what_is_no_sample_of_now_is_left_out(driver: Driver, load: ProcessLoad) -> None:
    driver.rows = [
        (0, WALL - 0.1, 50),  # nobody
        (11, WALL - 0.1, 4_000_000_000),  # more than all
        (12, 0.0, 50),  # a slot that was never written
        (13, WALL - 600, 50),  # ten minutes ago
        (14, WALL - 0.1, 100),
    ]
    assert load.read(None) == {14: 100.0}
