"""NVML readings, versions of drivers and of pynvml, starting and closing."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pynvml
import pytest

from gpuscope.collect.clock_events import CLOCK_EVENT_REASONS, clock_event_words
from gpuscope.collect.nvml import HARMLESS_CLOCK_EVENTS, Nvml, NvmlUnavailable
from gpuscope.wire.frames import GpuDef, Unknown
from tests.fakes.nvml import GIB, FakeNvml
from tests.fakes.program import python

REPO = Path(__file__).resolve().parents[2]


def code(reading: object) -> str:
    assert isinstance(reading, Unknown), reading
    return reading.code


def text(reading: object) -> str:
    assert isinstance(reading, Unknown), reading
    return reading.text


# ── readings ──────────────────────────────────────────────────────────────────────────────────────


def test_a_healthy_gpu() -> None:
    fake = FakeNvml(gpus=2)
    fake.set(1, fan=30, ecc=2)
    with fake.install():
        nvml = Nvml.open()
        assert (nvml.driver_version, nvml.cuda_version, nvml.device_count()) == (
            "580.159.03",
            "13.0",
            2,
        )
        assert nvml.binding_note is None
        device = nvml.device(1)
        assert nvml.device(1) is device
        definition, unknown = device.static()
        assert unknown == {}
        assert definition == GpuDef(
            uuid="GPU-00000002-0000-4000-8000-000000000000",
            index=1,
            name="NVIDIA H200",
            pci_bus_id="00000000:19:00.0",
            total_bytes=150_754_820_096,
            compute_capability="9.0",
            max_sm_clock_mhz=1980,
            max_pcie_generation=5,
            max_pcie_width=16,
        )
        fast, slow = device.fast(), device.slow()
    assert {column: value for column, value in fast.items() if not isinstance(value, Unknown)} == {
        "utilization_percent": 55,
        "memory_utilization_percent": 21,
        "used_bytes": 20 * GIB,
        "free_bytes": 150_754_820_096 - 20 * GIB - 700_000_000,
        "driver_reserved_bytes": 700_000_000,
        "power_watts": pytest.approx(412.345),
        "temperature_celsius": 61,
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 3201,
        "clock_event_reasons": 4,
    }
    assert {name: slow[name] for name in list(slow)[:6]} == {
        "power_limit_watts": 700.0,
        "performance_state": 0,
        "fan_percent": 30,
        "ecc_uncorrected_count": 2,
        "pcie_generation": 5,
        "pcie_width": 16,
    }


def test_zero_is_a_reading() -> None:
    fake = FakeNvml(gpus=1)
    fake.set(
        0, utilisation=0, memory_utilisation=0, used=0, power=0, event_reasons=0, temperature=0
    )
    with fake.install():
        readings = Nvml.open().device(0).fast()
    for column in (
        "utilization_percent",
        "used_bytes",
        "power_watts",
        "clock_event_reasons",
        "temperature_celsius",
    ):
        assert readings[column] == 0
        assert not isinstance(readings[column], Unknown)


def test_memory_is_asked_as_version_2_by_its_constant() -> None:
    """A strict driver refuses a literal 2; version 1 would count the driver's share as used."""
    fake = FakeNvml(gpus=1)
    with fake.install():
        assert Nvml.open().device(0).fast()["used_bytes"] == 20 * GIB
        assert fake.count("nvmlDeviceGetMemoryInfo") == 0


@pytest.mark.parametrize(
    "refusal", ["missing", "NotSupported", "FunctionNotFound", "ArgumentVersionMismatch"]
)
def test_memory_version_1_says_what_it_cannot(refusal: str) -> None:
    fake = FakeNvml(gpus=1)
    if refusal == "missing":
        fake.missing("nvmlDeviceGetMemoryInfo_v2")
    else:
        fake.fail("nvmlDeviceGetMemoryInfo_v2", 0, refusal)
    with fake.install():
        device = Nvml.open().device(0)
        readings = device.fast()
        assert readings["used_bytes"] == 20 * GIB + 700_000_000
        assert readings["free_bytes"] == 150_754_820_096 - 20 * GIB - 700_000_000
        assert code(readings["driver_reserved_bytes"]) == "not_supported"
        assert "nvmlDeviceGetMemoryInfo_v2" in text(readings["driver_reserved_bytes"])
        assert device.static()[0].total_bytes == 150_754_820_096


@pytest.mark.parametrize("how", ["not supported", "a total of zero"])
def test_an_integrated_gpu_has_unknown_memory_never_the_hosts(how: str) -> None:
    fake = FakeNvml(gpus=1)
    fake.set(0, name="NVIDIA GB10", total=0, used=0, reserved=0)
    if how == "not supported":
        for call in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
            fake.fail(call, 0, "NotSupported")
    with fake.install():
        device = Nvml.open().device(0)
        definition, unknown = device.static()
        readings = device.fast()
    assert definition.total_bytes is None
    assert unknown["total_bytes"].code == "not_supported"
    for column in ("used_bytes", "free_bytes", "driver_reserved_bytes"):
        assert code(readings[column]) == "not_supported"
        assert "nvmlDeviceGetMemoryInfo" in text(readings[column])
    assert readings["utilization_percent"] == 55


@pytest.mark.parametrize(
    ("field", "value", "column"),
    [
        ("utilisation", 0xFFFFFFFF, "utilization_percent"),
        ("utilisation", 4000, "utilization_percent"),
        ("power", 0xFFFFFFFF, "power_watts"),
        ("temperature", 100_000, "temperature_celsius"),
        ("used", 1 << 63, "used_bytes"),
        ("performance_state", 32, "performance_state"),
        ("sm_clock", 0xFFFFFFFF, "sm_clock_mhz"),
        ("ecc", (1 << 64) - 1, "ecc_uncorrected_count"),
        ("pcie_width", 0xFFFFFFFF, "pcie_width"),
    ],
)
def test_what_cannot_be_is_unknown(field: str, value: int, column: str) -> None:
    fake = FakeNvml(gpus=1)
    if field == "used":
        fake.set(0, total=1 << 63, reserved=0)
    fake.set(0, **{field: value})
    with fake.install():
        device = Nvml.open().device(0)
        reading = {**device.fast(), **device.slow()}[column]
    no_value = value in (0xFFFFFFFF, (1 << 64) - 1)  # NVML_VALUE_NOT_AVAILABLE
    assert code(reading) == ("not_supported" if no_value else "driver_error")


def test_a_name_that_is_no_text() -> None:
    fake = FakeNvml(gpus=1)
    fake.set(0, name=b"NVIDIA \xff\xfe")
    with fake.install():
        definition, unknown = Nvml.open().device(0).static()
    assert definition.name is None
    assert unknown["name"].code == "driver_error"
    assert "UTF-8" in unknown["name"].text
    assert definition.uuid == fake.gpus[0].uuid


# ── drivers ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("driver", "used"),
    [
        ("430.10", 20 * GIB + 700_000_000),
        ("450.80.02", 20 * GIB + 700_000_000),
        ("535.54.03", 20 * GIB),
    ],
)
def test_old_drivers_lack_newer_calls_but_not_readings(driver: str, used: int) -> None:
    fake = FakeNvml(gpus=1, driver=driver)
    with fake.install():
        nvml = Nvml.open()
        readings = nvml.device(0).fast()
    assert nvml.driver_version == driver
    assert readings["used_bytes"] == used
    assert readings["temperature_celsius"] == 61
    assert readings["clock_event_reasons"] == 4


def test_versions_may_be_unknown() -> None:
    fake = FakeNvml(gpus=1)
    fake.fail("nvmlSystemGetDriverVersion", None, "Unknown")
    fake.missing("nvmlSystemGetCudaDriverVersion_v2")
    with fake.install():
        nvml = Nvml.open()
        assert code(nvml.driver_version) == "driver_error"
        assert nvml.cuda_version == "13.0"
        assert nvml.device(0).processes() == []


# ── pynvml ────────────────────────────────────────────────────────────────────────────────────────


def without(names: set[str]) -> types.ModuleType:
    """pynvml as an older release has it, on the same library."""
    old = types.ModuleType("pynvml")
    for name, value in vars(pynvml).items():
        if name not in names and not name.startswith("__"):
            setattr(old, name, value)
    return old


def test_the_old_pynvml_package_works_degraded_and_says_which_to_remove(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = without(
        {
            "nvmlMemory_v2", "c_nvmlMemory_v2_t", "nvmlDeviceGetTemperatureV",
            "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlSystemGetCudaDriverVersion_v2", "_nvmlGetFunctionPointer",
        }
    )  # fmt: skip
    old.nvml = pynvml  # type: ignore[attr-defined]  # there the functions live in a submodule
    old.nvmlDeviceGetName = lambda handle: pynvml.nvmlDeviceGetName(handle).encode()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", old)
    fake = FakeNvml(gpus=1)
    with fake.install():
        nvml = Nvml.open()
        device = nvml.device(0)
        readings = device.fast()
        assert nvml.binding_note is not None
        assert "pip uninstall pynvml" in nvml.binding_note
        assert device.static()[0].name == "NVIDIA H200"
        assert readings["used_bytes"] == 20 * GIB + 700_000_000
        assert readings["temperature_celsius"] == 61
        assert code(readings["driver_reserved_bytes"]) == "not_supported"
        assert "too old" in text(readings["sm_active_percent"])
        assert device.processes() == []


def test_without_pynvml_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlUnavailable, match="pip install nvidia-ml-py") as caught:
        Nvml.open()
    assert caught.value.unknown.code == "not_initialised"


def test_a_broken_module_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text("raise RuntimeError('half installed')\n")
    monkeypatch.delitem(sys.modules, "pynvml")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NvmlUnavailable, match="half installed"):
        Nvml.open()


def test_importing_imports_no_pynvml() -> None:
    script = (
        "import sys, gpuscope.collect.nvml; assert 'pynvml' not in sys.modules; "
        "print(len(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(REPO)!r})\n{script}"]
    )
    assert done.returncode == 0


# ── starting and closing ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ("DriverNotLoaded", "driver_error", "modprobe nvidia"),
        ("LibRmVersionMismatch", "driver_error", "reboot or reload the kernel module"),
        ("NoPermission", "no_permission", "/dev/nvidia"),
        ("Unknown", "driver_error", "dmesg says why"),
        ("GpuIsLost", "lost", "nvmlInitWithFlags"),
        ("Timeout", "timeout", "nvmlInitWithFlags"),
        (12345, "driver_error", "12345"),
    ],
)
def test_why_nvml_does_not_start(error: str | int, kind: str, words: str) -> None:
    fake = FakeNvml(gpus=1)
    fake.fail("nvmlInitWithFlags", None, error)
    with fake.install(), pytest.raises(NvmlUnavailable) as caught:
        Nvml.open()
    assert caught.value.unknown.code == kind
    assert words in caught.value.unknown.text


def test_no_driver_on_this_host() -> None:
    """The real library loader, in a process whose search path has no such library."""
    script = f"""
import sys; sys.path.insert(0, {str(REPO)!r})
import ctypes, pynvml
def missing(name): raise OSError(name)
pynvml.CDLL = missing
from gpuscope.collect.nvml import Nvml, NvmlUnavailable
try: Nvml.open()
except NvmlUnavailable as error: print(error.unknown.code, error.unknown.text)
"""
    done = python("-c", script)
    assert done.stdout.startswith("not_supported no NVIDIA driver here"), done.stderr


def test_a_count_that_fails_is_no_nvml() -> None:
    fake = FakeNvml(gpus=2)
    fake.fail("nvmlDeviceGetCount_v2", None, "Unknown")
    with fake.install(), pytest.raises(NvmlUnavailable):
        Nvml.open()


def test_a_start_that_hangs_can_be_told() -> None:
    import threading

    fake = FakeNvml(gpus=1)
    with fake.install():
        hang = fake.hang("nvmlInitWithFlags", None)
        nvml = Nvml()
        worker = threading.Thread(target=nvml.start, daemon=True)
        worker.start()
        assert hang.entered.wait(20)
        assert nvml.current_call is not None
        assert nvml.current_call[0] == "nvmlInitWithFlags"
        hang.release()
        worker.join(20)
        assert nvml.current_call is None
        assert nvml.device_count() == 1


def test_after_closing_readings_are_unknown() -> None:
    fake = FakeNvml(gpus=1)
    with fake.install():
        nvml = Nvml.open()
        device = nvml.device(0)
        device.fast()
        assert nvml.close()
        assert fake.initialised == 0
        before = len(fake.calls)
        assert {code(value) for value in device.fast().values()} == {"not_initialised"}
        assert code(device.processes()) == "not_initialised"
        assert len(fake.calls) == before, "no call into a library that was shut down"


def test_nothing_is_shut_down_at_exit() -> None:
    script = f"""
import sys; sys.path.insert(0, {str(REPO)!r})
from tests.fakes.nvml import FakeNvml
from gpuscope.collect.nvml import Nvml
import atexit
fake = FakeNvml(1)
atexit.register(lambda: print(fake.count("nvmlShutdown")))
block = fake.install()
block.__enter__()
Nvml.open().device(0).fast()
"""
    done = python("-c", script)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


# ── clock events ──────────────────────────────────────────────────────────────────────────────────


def test_clock_event_bits_are_those_of_nvml() -> None:
    assert CLOCK_EVENT_REASONS[pynvml.nvmlClocksEventReasonSwPowerCap] == "power cap"
    assert CLOCK_EVENT_REASONS[pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown] == "power brake"
    for name in dir(pynvml):
        value = getattr(pynvml, name)
        if name.startswith(
            ("nvmlClocksEventReason", "nvmlClocksThrottleReason")
        ) and not name.endswith(("All", "None")):
            assert value in CLOCK_EVENT_REASONS, name
    assert {
        pynvml.nvmlClocksEventReasonGpuIdle,
        pynvml.nvmlClocksEventReasonApplicationsClocksSetting,
    } <= {bit for bit in CLOCK_EVENT_REASONS if bit & HARMLESS_CLOCK_EVENTS}


def test_clock_event_words() -> None:
    assert clock_event_words(0) == ()
    assert clock_event_words(0x1) == ()
    assert clock_event_words(0x1, harmless=True) == ("idle",)
    assert clock_event_words(0x44 | 0x2) == ("power cap", "hardware thermal slowdown")
    assert clock_event_words(1 << 20) == ("reason 0x100000",)
