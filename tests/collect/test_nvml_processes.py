"""Process lists never scramble pids and never invent sizes.

They are read through the driver's own structs.
"""

from __future__ import annotations

import pytest

from gpuscope.collect.nvml import Nvml
from gpuscope.collect.nvml_processes import ProcessInfo, ProcessInfo535, row_struct
from gpuscope.wire.frames import Unknown
from tests.fakes.nvml import GIB, FakeNvml, FakeProcess

MANY = [FakeProcess(1000 + number, used=(number + 1) * GIB) for number in range(12)]


def listed(fake: FakeNvml, index: int = 0) -> list[tuple[int, object]]:
    with fake.install():
        found = Nvml.open().device(index).processes()
    assert isinstance(found, list), found
    return found


def test_nobody() -> None:
    assert listed(FakeNvml(gpus=1)) == []


def test_each_device_has_its_own() -> None:
    fake = FakeNvml(
        gpus=2, processes=[FakeProcess(11, used=GIB), FakeProcess(12, used=2 * GIB, gpu=1)]
    )
    assert listed(fake, 0) == [(11, GIB)]
    assert listed(fake, 1) == [(12, 2 * GIB)]


@pytest.mark.parametrize(
    "driver",
    [
        "430.10",
        "450.80.02",
        "510.39.01",
        "535.54.03",
        "535.86.05",
        "535.98",
        "535.104.05",
        "580.159.03",
    ],
)
def test_every_driver_s_struct(driver: str) -> None:
    """Each driver's own struct is read.

    535.43 to 535.86 have longer rows, 535.98 no _v3 at all; a wrong struct shows garbage from the
    second row.
    """
    fake = FakeNvml(gpus=1, processes=MANY, driver=driver)
    assert listed(fake) == [(process.pid, process.used) for process in MANY]


def test_the_struct_is_told_by_the_driver_s_version() -> None:
    assert row_struct("535.43.02") is row_struct("535.86.10") is ProcessInfo535
    for version in ("535.98", "535.104.05", "534.99", "570.1", "", "R580", "535"):
        assert row_struct(version) is ProcessInfo


def test_a_pid_in_several_lists_counts_once() -> None:
    fake = FakeNvml(
        gpus=1,
        processes=[
            FakeProcess(11, used=GIB),
            FakeProcess(11, used=GIB, kind="graphics"),
            FakeProcess(12, used=None),
            FakeProcess(12, used=3 * GIB, kind="mps"),
            FakeProcess(13, used=2 * GIB, kind="graphics"),
        ],
    )
    assert listed(fake) == [(11, GIB), (12, 3 * GIB), (13, 2 * GIB)]


def test_a_process_in_two_mig_instances_has_both_parts() -> None:
    fake = FakeNvml(
        gpus=1,
        processes=[
            FakeProcess(11, used=GIB, instance=1),
            FakeProcess(11, used=2 * GIB, instance=2),
        ],
    )
    assert listed(fake) == [(11, 3 * GIB)]


@pytest.mark.parametrize("used", [None, (1 << 63) + 5])
def test_a_size_that_the_driver_does_not_tell(used: int | None) -> None:
    [(pid, size)] = listed(FakeNvml(gpus=1, processes=[FakeProcess(11, used=used)]))
    assert pid == 11
    assert isinstance(size, Unknown)
    assert size.code == "not_supported"


def test_a_storm_of_processes_makes_the_list_grow() -> None:
    crowd = [FakeProcess(1000 + number) for number in range(3000)]
    fake = FakeNvml(gpus=1, processes=crowd)
    with fake.install():
        device = Nvml.open().device(0)
        found = device.processes()
        assert isinstance(found, list)
        assert len(found) == 3000
        calls = fake.count("nvmlDeviceGetComputeRunningProcesses_v3")
        device.processes()
        assert fake.count("nvmlDeviceGetComputeRunningProcesses_v3") == calls + 1, (
            "the room is kept"
        )


def test_a_list_that_never_fits_ends() -> None:
    fake = FakeNvml(gpus=1)
    fake.fail("nvmlDeviceGetComputeRunningProcesses_v3", 0, "InsufficientSize")
    with fake.install():
        found = Nvml.open().device(0).processes()
    assert isinstance(found, Unknown)
    assert found.code == "driver_error"


@pytest.mark.parametrize("kind", ["Graphics", "MPSCompute"])
def test_a_secondary_list_that_fails_leaves_the_first_and_is_told(kind: str) -> None:
    fake = FakeNvml(gpus=1, processes=[FakeProcess(11, used=GIB)])
    call = f"nvmlDeviceGet{kind}RunningProcesses_v3"
    fake.fail(call, 0, "NoPermission")
    with fake.install():
        device = Nvml.open().device(0)
        assert device.processes() == [(11, GIB)]
        assert device.processes_gap is not None
        assert (device.processes_gap.code, call in device.processes_gap.text) == (
            "no_permission",
            True,
        )
        fake.heal()


def test_owners_without_a_pid_are_told() -> None:
    fake = FakeNvml(gpus=1, processes=[FakeProcess(0, used=5 * GIB), FakeProcess(7, used=GIB)])
    with fake.install():
        device = Nvml.open().device(0)
        assert device.processes() == [(7, GIB)]
        assert device.processes_gap is not None
        assert device.processes_gap.code == "hidden_by_container"
