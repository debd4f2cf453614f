"""Every NVML call in use is tried with the ways it can fail, on one of two GPUs.

The calls go through the real pynvml wrappers.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Sequence

import pytest

from gpuscope.collect import nvml_errors, nvml_events
from gpuscope.collect.nvml import FAST_COLUMNS, SLOW_COLUMNS, Nvml, NvmlDevice
from gpuscope.collect.nvml_events import XidWatch
from gpuscope.collect.nvml_readings import WATCHED_COLUMNS
from gpuscope.wire.frames import CODES, DEVICE_COLUMNS, Unknown
from tests.fakes.cases import each
from tests.fakes.nvml import GIB, Clock, FakeNvml, FakeProcess, started

PROCESSES = [
    FakeProcess(101, used=5 * GIB, sm=61),
    FakeProcess(102, used=GIB, kind="graphics"),
    FakeProcess(103, used=GIB, kind="mps"),
    FakeProcess(201, used=2 * GIB, gpu=1, sm=33),
]
CODE_OF = {
    "NotSupported": "not_supported",
    "FunctionNotFound": "not_supported",
    "GpuIsLost": "lost",
    "NoPermission": "no_permission",
    "Unknown": "driver_error",
    "Timeout": "timeout",
}


def everything(
    device: NvmlDevice, clock: Clock, paths: bool = True, watch: XidWatch | None = None
) -> dict[str, object]:
    """Return all that a device tells.

    That is its definition, every column after two ticks, the process list and their load, its
    ``paths`` to the other one, and whether its errors are heard by ``watch``.
    """
    device.fast()
    device.slow()
    clock.now += 1.0
    definition, unknown = device.static()
    told: dict[str, object] = {f"def {name}": value for name, value in vars(definition).items()}
    told.update((f"def {name}", value) for name, value in unknown.items())
    told.update(device.fast())
    told.update(device.slow())
    listed = device.processes()
    told["processes"] = listed
    told["processes gap"] = device.processes_gap
    told["processes load"] = device.process_load()
    told["idle"] = device.idle_seconds()
    told.update((f"def {name}", value) for name, value in device.inventory().items())
    ways, unsure = device.paths(2 if paths else 0)
    told.update((f"path {name}", value) for name, value in ways.items())
    told.update((f"path {name}, why", unsure.get(name)) for name in ("topology", "peer_access"))
    topology = device.topology([1 - device.index] if paths else [])
    told.update(
        (f"topology {name}", value) for name, value in topology._asdict().items() if name != "pairs"
    )
    for pair in topology.pairs:
        told.update((f"path {name}", value) for name, value in pair._asdict().items())
    told.update((f"health {name}", value) for name, value in device.health().items())
    if watch is not None:
        watch.open()
        told["xid heard"] = watch.why_not.get(device.index)
        watch.close()
    return told


NO_SAMPLES = "580.159.04"
"""The fake has no older call for the load of processes then."""


def reasons(told: dict[str, object]) -> list[Unknown]:
    return [value for value in told.values() if isinstance(value, Unknown)]


def full_fake(driver: str) -> FakeNvml:
    """Two GPUs with all that a call can be about: cut into parts, with retired pages."""
    fake = FakeNvml(gpus=2, processes=PROCESSES, driver=driver)
    for gpu in (0, 1):
        fake.set(
            gpu, retired=(1, 0), mig_modes=(1, 1), mig_names=("MIG 1g.18gb",), samples=((0.1, 55),)
        )
    if driver == NO_SAMPLES:
        fake.missing("nvmlDeviceGetProcessUtilization")
    return fake


@functools.lru_cache
def what_is_told(driver: str) -> list[dict[str, object]]:
    """What two well GPUs tell."""
    with full_fake(driver).install():
        clock = Clock()
        nvml = started(clock)
        return [everything(nvml.device(index), clock, watch=nvml.xid_watch()) for index in (0, 1)]


def calls_in_use() -> list[str]:
    """Return the calls that concern a device, as a fake recorded them.

    They are recorded with a new driver and with one where newer calls are missing, so that the
    older ones are in use too.
    """
    seen = set()
    for driver in ("580.159.03", "450.80.02", "430.10", NO_SAMPLES):
        fake = full_fake(driver)
        with fake.install():
            clock = Clock()
            nvml = started(clock)
            everything(nvml.device(0), clock, watch=nvml.xid_watch())
        seen |= {name for name, gpu in fake.calls if gpu == 0}
    return sorted(seen)


CALLS = calls_in_use()
DRIVER_OF = {
    "nvmlDeviceGetComputeRunningProcesses": "430.10",
    "nvmlDeviceGetGraphicsRunningProcesses": "430.10",
    "nvmlDeviceGetMPSComputeRunningProcesses": "430.10",
    "nvmlDeviceGetComputeRunningProcesses_v2": "450.80.02",
    "nvmlDeviceGetGraphicsRunningProcesses_v2": "450.80.02",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2": "450.80.02",
    "nvmlDeviceGetMemoryInfo": "450.80.02",
    "nvmlDeviceGetTemperature": "450.80.02",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "450.80.02",
    "nvmlDeviceGetGpuFabricInfo": "450.80.02",
    "nvmlDeviceGetProcessesUtilizationInfo": NO_SAMPLES,
}


def test_the_table_is_about_the_calls_that_matter() -> None:
    for call in (
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlGpmSampleGet",
        "nvmlGpmMetricsGet",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetProcessesUtilizationInfo",
        "nvmlDeviceRegisterEvents",
        "nvmlDeviceGetPersistenceMode",
    ):
        assert call in CALLS
    assert len(CALLS) >= 50


def test_no_call_that_sleeps_in_the_driver_is_used() -> None:
    dear = ("PcieThroughput", "InforomConfiguration", "PerformanceModes")
    assert [call for call in CALLS if any(word in call for word in dear)] == []


def test_dear_calls_are_not_made_each_tick() -> None:
    fake, clock = FakeNvml(gpus=1), Clock()
    with fake.install():
        device = started(clock).device(0)
        for _ in range(10):
            device.fast()
            clock.now += 0.5
        asked = {name for name, _ in fake.calls}
        assert not {
            name
            for name in asked
            if "Energy" in name or "FieldValues" in name or "ProcessUtil" in name
        }
        assert fake.metrics_asked == {3}, "metrics by call of nvmlGpmMetricsGet"
        for _ in range(2):
            device.slow()
            clock.now += 5
        assert fake.metrics_asked == {3, 9}


def failures(calls: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Each call with the two errors that another call may answer.

    The others differ, for whatever call, by their code and by what is asked after them only; each
    call has one of them in turn.
    """
    others = itertools.cycle(sorted(set(CODE_OF) - {"NotSupported"}))
    return [(call, ("NotSupported", "missing symbol", next(others))) for call in calls]


@each(
    ("call", "error"),
    [(call, errors[number % 3]) for number, (call, errors) in enumerate(failures(CALLS))],
)
def test_a_failing_call_costs_only_its_own_readings(call: str, error: str) -> None:
    costs_only_its_own_readings(call, error)


@pytest.mark.slow
@each(("call", "errors"), failures(CALLS))
def test_so_does_each_of_its_errors(call: str, errors: tuple[str, ...]) -> None:
    for error in errors:
        costs_only_its_own_readings(call, error)


def costs_only_its_own_readings(call: str, error: str) -> None:
    driver = DRIVER_OF.get(call, "580.159.03")
    healthy = [dict(one) for one in what_is_told(driver)]
    fake = full_fake(driver)
    with fake.install():
        clock = Clock()
        nvml = started(clock)
        if error == "missing symbol":
            fake.missing(call)
        else:
            fake.fail(call, 0, error)
        told = [everything(nvml.device(index), clock, watch=nvml.xid_watch()) for index in (0, 1)]

    if call == "nvmlDeviceGetHandleByIndex_v2":  # a path has two ends
        for one in (told[1], healthy[1]):
            path = {key: one.pop(key) for key in list(one) if key.startswith("path ")}
            assert len(path) == 11
    assert nvml.device_count() == 2
    assert set(told[0]) == set(healthy[0]), "a failure takes no column away"
    if error != "missing symbol":
        assert told[1] == healthy[1], "the other GPU"
    substituted = error in ("NotSupported", "FunctionNotFound", "missing symbol") and (
        reasons(told[0]) == reasons(healthy[0])
    )
    if substituted:  # another call of the driver gave the same
        assert {k: v for k, v in told[0].items() if not isinstance(v, Unknown)}.keys() == {
            k: v for k, v in healthy[0].items() if not isinstance(v, Unknown)
        }.keys()
        return
    named = [unknown for unknown in reasons(told[0]) if call in unknown.text]
    assert named, "the reason says which call"
    assert all(unknown.code in CODES and unknown.text for unknown in reasons(told[0]))
    assert {unknown.code for unknown in named} == {CODE_OF.get(error, "not_supported")}
    unchanged = [key for key in told[0] if told[0][key] == healthy[0][key]]
    if call != "nvmlDeviceGetHandleByIndex_v2":
        assert len(unchanged) > len(told[0]) / 2, "one call is not the whole device"


LIBRARY = ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2", "nvmlGpmSampleAlloc",
           "nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlEventSetFree")  # fmt: skip
"""The calls in use that are about no device, but those of starting (test_nvml.py)."""


@pytest.mark.parametrize(("call", "errors"), failures(LIBRARY))
def test_a_failing_call_of_the_library_has_its_reason(
    call: str, errors: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_events.time, "sleep", lambda _: None)
    for error in errors:
        has_its_reason(call, error)


def has_its_reason(call: str, error: str) -> None:
    fake = full_fake("580.159.03")
    fake.missing("nvmlSystemGetCudaDriverVersion")
    with fake.install():
        if error == "missing symbol":
            fake.missing(call)
        else:
            fake.fail(call, None, error)
        clock = Clock()
        nvml = started(clock)
        told = everything(nvml.device(0), clock, watch=nvml.xid_watch())
        watch = nvml.xid_watch()
        watch.open()
        fake.xid(0, 79)
        heard = watch.wait()
        watch.close()
    told.update(driver=nvml.driver_version, cuda=nvml.cuda_version)
    named = [unknown for unknown in reasons(told) if call.replace("_v2", "") in unknown.text]
    if call == "nvmlEventSetWait_v2":
        assert heard is None
    elif call != "nvmlEventSetFree":
        assert named
        assert {unknown.code for unknown in named} == {CODE_OF.get(error, "not_supported")}
    assert told["utilization_percent"] == 55


@pytest.mark.slow
@each("call", CALLS)
def test_a_call_that_hangs_holds_only_its_device(call: str) -> None:
    driver = DRIVER_OF.get(call, "580.159.03")
    fake = full_fake(driver)
    with fake.install():
        clock = Clock()
        nvml = started(clock)
        hang = fake.hang(call, 0)
        result: list[dict[str, object]] = []
        watch = nvml.xid_watch()
        worker = threading.Thread(
            target=lambda: result.append(everything(nvml.device(0), clock, watch=watch)),
            daemon=True,
        )
        worker.start()
        assert hang.entered.wait(20)
        current = (
            nvml.device(0).current_call or nvml.device(0).path_calls.current or watch.current_call
        )
        assert current is not None
        assert current[0] == call
        assert current[1] <= clock.now

        other = everything(nvml.device(1), clock, paths=False)
        assert other["utilization_percent"] == 55
        assert nvml.device(1).current_call is None
        assert not nvml.close(), "shutting down under a running call would crash"
        assert fake.initialised == 1

        hang.release()
        worker.join(20)
        assert result[0]["utilization_percent"] == 55
        assert nvml.device(0).current_call is None
        assert nvml.close()


def test_what_hardly_changes_is_asked_seldom_and_lost_with_the_rest() -> None:
    fake, clock = FakeNvml(gpus=1), Clock()
    with fake.install():
        device = started(clock).device(0)
        for _ in range(5):
            readings = device.slow(seldom=False)
            clock.now += 5
        assert readings["energy_joules"] == pytest.approx(912345.678)
        assert fake.count("nvmlDeviceGetTotalEnergyConsumption") == 1
        assert fake.count("nvmlDeviceGetPerformanceState") == 5
        fake.set(0, energy=1_000_000)
        assert device.slow(seldom=False)["energy_joules"] == pytest.approx(912345.678)
        assert device.slow()["energy_joules"] == 1000.0
        fake.lose(0)
        clock.now += 5
        gone = device.slow(seldom=False)
        assert all(isinstance(value, Unknown) for value in gone.values())
        assert gone["energy_joules"] == Unknown("lost", gone["energy_joules"].text)


def test_a_lost_gpu_is_a_device_with_reasons() -> None:
    fake = FakeNvml(gpus=3)
    fake.lose(1)
    with fake.install():
        nvml = Nvml.open()
        device = nvml.device(1)
        definition, unknown = device.static()
        assert (definition.uuid, definition.index, definition.total_bytes) == ("unknown:1", 1, None)
        assert unknown["uuid"].code == "lost"
        assert set(device.fast()) == set(FAST_COLUMNS)
        assert set(device.slow()) == set(SLOW_COLUMNS)
        for value in [*device.fast().values(), *device.slow().values(), device.processes()]:
            assert isinstance(value, Unknown)
            assert value.code == "lost"
            assert "nvmlDeviceGetHandleByIndex_v2" in value.text
        assert nvml.device(2).fast()["used_bytes"] == 20 * GIB


def test_a_gpu_lost_while_watched_and_found_again() -> None:
    fake, clock = FakeNvml(gpus=2), Clock()
    with fake.install():
        nvml = started(clock)
        device = nvml.device(0)
        assert device.static()[0].uuid == fake.gpus[0].uuid
        assert device.fast()["power_watts"] == pytest.approx(412.345)
        fake.lose(0)
        clock.now += 1
        assert all(isinstance(value, Unknown) for value in device.fast().values())
        fake.heal()
        clock.now += 60
        device.fast()
        clock.now += 1
        assert not [value for value in device.fast().values() if isinstance(value, Unknown)]


def test_what_is_not_supported_is_not_asked_each_tick() -> None:
    fake, clock = FakeNvml(gpus=1), Clock()
    with fake.install():
        device = started(clock).device(0)
        for _ in range(10):
            assert isinstance(device.slow()["fan_percent"], Unknown)
            clock.now += 5
        assert fake.count("nvmlDeviceGetFanSpeed") == 1
        assert fake.count("nvmlDeviceGetPerformanceState") == 10
        fake.set(0, fan=35)
        clock.now += 60
        assert device.slow()["fan_percent"] == 35


def test_a_lost_gpu_is_asked_again_less_and_less_often() -> None:
    fake, clock = FakeNvml(gpus=1), Clock()
    with fake.install():
        device = started(clock).device(0)
        device.fast()
        fake.lose(0)
        asked = []
        for _ in range(300):
            before = fake.count("nvmlDeviceGetPowerUsage")
            device.fast()
            if fake.count("nvmlDeviceGetPowerUsage") > before:
                asked.append(clock.now)
            clock.now += 1
        gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
        assert gaps[:4] == [2, 4, 8, 16]
        assert max(gaps) == 60


def test_a_passing_error_is_asked_again_at_once() -> None:
    fake, clock = FakeNvml(gpus=1), Clock()
    with fake.install():
        device = started(clock).device(0)
        fake.fail("nvmlDeviceGetPowerUsage", 0, "Unknown")
        assert isinstance(device.fast()["power_watts"], Unknown)
        fake.heal()
        assert device.fast()["power_watts"] == pytest.approx(412.345)


def test_two_arguments_of_one_call_fail_apart() -> None:
    """nvmlDeviceGetClockInfo serves two columns: the back-off of one must not silence the other."""
    fake = FakeNvml(gpus=1)
    with fake.install():
        device = Nvml.open().device(0)
        fake.fail("nvmlDeviceGetClockInfo", 0, "NotSupported", after=1)
        readings = device.fast()
        assert readings["sm_clock_mhz"] == 1755
        assert isinstance(readings["memory_clock_mhz"], Unknown)
        fake.heal()
        assert device.fast()["sm_clock_mhz"] == 1755
        assert fake.count("nvmlDeviceGetClockInfo") == 3, (
            "only the one that was supported is asked again"
        )


def test_the_call_in_progress_has_its_time() -> None:
    fake = FakeNvml(gpus=1, delay={"nvmlDeviceGetPowerUsage": 0.3})
    with fake.install():
        device = Nvml.open().device(0)
        worker = threading.Thread(target=device.fast, daemon=True)
        began = time.monotonic()
        worker.start()
        deadline = began + 20
        while (device.current_call or ("",))[
            0
        ] != "nvmlDeviceGetPowerUsage" and time.monotonic() < deadline:
            time.sleep(0.005)
        current = device.current_call
        assert current is not None
        assert current[0] == "nvmlDeviceGetPowerUsage"
        assert began <= current[1] <= time.monotonic()
        worker.join(20)


def test_the_tiers_are_the_columns_of_the_wire() -> None:
    assert sorted(FAST_COLUMNS + SLOW_COLUMNS + WATCHED_COLUMNS) == sorted(DEVICE_COLUMNS)


class _Returned(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@pytest.mark.parametrize("code", [nvml_errors.LIBRARY_NOT_FOUND, nvml_errors.UNKNOWN_RETURN])
def test_only_within_a_container_a_container_is_spoken_of(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {}
    for inside in (None, "docker"):
        monkeypatch.setattr(nvml_errors, "container", lambda inside=inside: inside)
        said[inside] = nvml_errors.explain_start("nvmlInit_v2", _Returned(code)).text
    assert "container" not in said[None]
    assert "this container" in said["docker"].lower()
    first, _, _ = said[None].partition(". ")
    assert said["docker"].startswith(first)
