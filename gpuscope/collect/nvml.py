"""Read this host's devices and their processes through NVML. Only this package uses pynvml.

Nothing here raises for a driver's error: a reading is a value, or Unknown with the reason in words.
A driver call may hang for ever, so each :class:`NvmlDevice` is used by one worker thread, and
``current_call`` tells other threads what it waits for. Importing this module neither imports pynvml
nor opens the driver; :meth:`Nvml.open` does. There is no shutdown at exit, because that crashes
while a call is running, and the kernel closes the files of a process that ends.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from ..wire.frames import NOT_INITIALISED, GpuDef, Reading, Unknown
from . import nvml_inventory, nvml_samples, nvml_topology
from .clock_events import CLOCK_EVENT_REASONS, HARMLESS_CLOCK_EVENTS, clock_event_words
from .nvml_calls import DeviceCalls, Gate
from .nvml_errors import MissingWrapper, NvmlUnavailable, explain_start
from .nvml_events import XidWatch
from .nvml_gpm import MANY, GpmSampler
from .nvml_process_load import ProcessLoad
from .nvml_processes import ProcessLists
from .nvml_readings import (
    FAST,
    FAST_COLUMNS,
    GPM_COLUMNS,
    GPM_SLOW_COLUMNS,
    HEALTH,
    SELDOM,
    SLOW,
    SLOW_COLUMNS,
    STATIC,
    Spec,
    text,
)

__all__ = [
    "CLOCK_EVENT_REASONS", "FAST_COLUMNS", "HARMLESS_CLOCK_EVENTS", "SLOW_COLUMNS",
    "Nvml", "NvmlDevice", "NvmlUnavailable", "clock_event_words",
]  # fmt: skip

INSTALL = "pip install nvidia-ml-py"
SHADOWED = (
    "the old package 'pynvml' is imported before nvidia-ml-py here and lacks newer calls. "
    "Next: pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py"
)


class _Binding:
    """The pynvml module of any version. Lacking functions are :class:`MissingWrapper`."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        try:
            value = getattr(self._module, name)
        except AttributeError:
            raise MissingWrapper(name) from None
        setattr(self, name, value)
        return value

    def function(self, symbol: str) -> Any:
        """Return the library's own function, which pynvml looks up and caches.

        Raises pynvml's error when the driver has no such symbol.
        """
        return getattr(self._module, "nvml", self._module)._nvmlGetFunctionPointer(symbol)


def _import_pynvml() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailable(
            Unknown(
                NOT_INITIALISED,
                f"the Python package nvidia-ml-py is not installed ({error}). Next: {INSTALL}",
            )
        ) from None
    except Exception as error:  # a broken or foreign module of that name
        raise NvmlUnavailable(
            Unknown(
                NOT_INITIALISED,
                f"import pynvml failed: {type(error).__name__}: {str(error)[:200]}. "
                "Next: pip install --force-reinstall nvidia-ml-py",
            )
        ) from None
    return pynvml


class Nvml:
    """NVML, the driver's management library.

    ``Nvml()`` is cheap and makes no driver call. :meth:`start`, or :meth:`open` for both in one,
    may hang with a faulty driver, so it belongs in a thread; :attr:`current_call` then says what it
    waits for.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._gate = Gate()
        self._calls = DeviceCalls(self._gate, clock)
        self._binding: Any = None
        self._count = 0
        self._devices: Dict[int, NvmlDevice] = {}
        not_yet = Unknown(NOT_INITIALISED, "NVML has not been started")
        self.driver_version: Reading = not_yet
        self.cuda_version: Reading = not_yet
        """The newest CUDA version that the driver supports, such as "13.0"."""
        self.binding_note: Optional[str] = None
        """What is wrong with the installed pynvml, with the remedy; None when nothing is."""

    @classmethod
    def open(cls) -> Nvml:
        """Create and start the library.

        Raises :class:`NvmlUnavailable`, whose ``unknown`` says why and what to do next.
        """
        nvml = cls()
        nvml.start()
        return nvml

    def start(self) -> None:
        """Load pynvml and the driver's library, and count the devices.

        Raises :class:`NvmlUnavailable`.
        """
        module = _import_pynvml()
        binding = self._binding = _Binding(module)
        if not hasattr(module, "nvmlMemory_v2"):
            self.binding_note = SHADOWED
        self._start_call("nvmlInitWithFlags", lambda: binding.nvmlInit())
        self._count = self._start_call(
            "nvmlDeviceGetCount_v2", lambda: int(binding.nvmlDeviceGetCount())
        )
        self.driver_version = self._calls.attempt(
            "nvmlSystemGetDriverVersion", lambda: text(binding.nvmlSystemGetDriverVersion())
        )
        self.cuda_version = self._calls.first(
            (
                (
                    "nvmlSystemGetCudaDriverVersion_v2",
                    lambda: _cuda(binding.nvmlSystemGetCudaDriverVersion_v2()),
                ),
                (
                    "nvmlSystemGetCudaDriverVersion",
                    lambda: _cuda(binding.nvmlSystemGetCudaDriverVersion()),
                ),
            )
        )

    def _start_call(self, name: str, function: Callable[[], Any]) -> Any:
        failed: List[BaseException] = []

        def ask() -> Any:
            try:
                return function()
            except Exception as error:
                failed.append(error)
                raise

        answer = self._calls.attempt(name, ask)
        if isinstance(answer, Unknown):
            raise NvmlUnavailable(explain_start(name, failed[0]) if failed else answer) from None
        return answer

    @property
    def current_call(self) -> Optional[Tuple[str, float]]:
        """Return the call that :meth:`start` waits for, and its start in ``time.monotonic()``."""
        return self._calls.current

    def device_count(self) -> int:
        """Return how many devices the driver had when NVML was started, without a driver call."""
        return self._count

    def device(self, index: int) -> NvmlDevice:
        """Return the device of this index, always the same object, without a driver call.

        A GPU that cannot be reached is still a device, with only Unknown readings.
        """
        device = self._devices.get(index)
        if device is None:
            version = self.driver_version if isinstance(self.driver_version, str) else ""
            calls = DeviceCalls(self._gate, self._clock)
            device = self._devices[index] = NvmlDevice(
                index, self._binding, calls, version, self._clock
            )
            device.path_calls = DeviceCalls(self._gate, self._clock)
            device.past_calls = DeviceCalls(self._gate, self._clock)
            device.load = ProcessLoad(self._binding.function, calls, self._wall)
            device.wall = self._wall
        return device

    def xid_watch(self) -> XidWatch:
        """Return a receiver of critical errors of all devices, for a thread of its own."""
        return XidWatch(self._binding, DeviceCalls(self._gate, self._clock), self._count)

    def close(self) -> bool:
        """Shut NVML down; if a call is in flight, return False and do nothing.

        This is never needed before the process exits.
        """
        if not self._gate.close():
            return False
        for device in self._devices.values():
            device.close()
        try:
            self._binding.nvmlShutdown()
        except Exception:
            pass  # it was not initialised, or it is broken
        return True


class NvmlDevice:
    """One GPU, used by one thread at a time. No method raises for a driver's answer."""

    def __init__(
        self,
        index: int,
        binding: Any,
        calls: DeviceCalls,
        driver_version: str,
        clock: Callable[[], float],
    ) -> None:
        self.index = index
        self._n = binding
        self._calls = self.path_calls = self.past_calls = calls
        self._clock = clock
        self._handle: Any = None
        self._gpm = GpmSampler(binding, calls)
        self._gpm_many = GpmSampler(binding, calls, MANY)
        self._processes = ProcessLists(binding.function, calls, driver_version)
        self.load = ProcessLoad(binding.function, calls)
        self._seldom: Dict[str, Reading] = {}
        self.wall: Callable[[], float] = time.time

    @property
    def current_call(self) -> Optional[Tuple[str, float]]:
        """Return the NVML call in progress and its start in ``time.monotonic()``, or None.

        It is None between calls. Any thread may read it.
        """
        return self._calls.current

    @property
    def processes_gap(self) -> Optional[Unknown]:
        """Say what the last list of :meth:`processes` lacks.

        It may lack a graphics or MPS list that failed, or processes without a pid.
        """
        return self._processes.gap

    def static(self) -> Tuple[GpuDef, Dict[str, Unknown]]:
        """Return the device's definition, and why a field of it is None.

        If the UUID cannot be read it is "unknown:INDEX" with a reason under ``uuid``, and should be
        read again later.
        """
        readings = self._read(STATIC)
        unknown = {field: value for field, value in readings.items() if isinstance(value, Unknown)}
        known: Dict[str, Any] = {
            field: value for field, value in readings.items() if field not in unknown
        }
        uuid = known.pop("uuid", f"unknown:{self.index}")
        return GpuDef(uuid=uuid, index=self.index, **known), unknown

    def fast(self) -> Dict[str, Reading]:
        """Read every column of ``FAST_COLUMNS``.

        This takes at most 200 µs on real hardware, plus the GPM sample (95–241 µs).
        """
        readings = self._read(FAST)
        handle = self._get_handle()
        if isinstance(handle, Unknown):
            readings.update((column, handle) for column in GPM_COLUMNS)
        else:
            readings.update(self._gpm.read(handle, self._clock()))
        return readings

    def slow(self, seldom: bool = True) -> Dict[str, Reading]:
        """Read every column of ``SLOW_COLUMNS``, which takes some 10 ms at worst.

        Without ``seldom``, the columns of ``SELDOM`` keep their last values, unless the device has
        become unreachable.
        """
        readings = self._read(SLOW)
        if (
            seldom
            or not self._seldom
            or all(isinstance(value, Unknown) for value in readings.values())
        ):
            self._seldom = self._read(SELDOM)
        readings.update(self._seldom)
        handle = self._get_handle()
        if isinstance(handle, Unknown):
            readings.update((column, handle) for column in GPM_SLOW_COLUMNS)
        else:
            readings.update(self._gpm_many.read(handle, self._clock()))
        return readings

    def inventory(self) -> Dict[str, Reading]:
        """The later fields of GpuDef but those of :meth:`paths`."""
        readings = self._read(nvml_inventory.INVENTORY)
        handle = self._get_handle()
        known = not isinstance(handle, Unknown)
        readings["mig_instances"] = (
            nvml_inventory.mig_instances(self._n, self._calls, handle) if known else handle
        )
        return readings

    def paths(self, count: int) -> Tuple[Dict[str, Reading], Dict[str, Unknown]]:
        """Read the fields of GpuDef about NVLink and the paths to other devices.

        There is one path to each of the ``count`` devices; where one is unknown, its reason is
        returned. It must be called in another thread than the other methods, because a peer that
        hangs must not hold up this device.
        """
        calls, get = self.path_calls, "nvmlDeviceGetHandleByIndex_v2"
        handle = calls.attempt(get, lambda: self._n.nvmlDeviceGetHandleByIndex(self.index))
        if isinstance(handle, Unknown):
            return dict.fromkeys(nvml_inventory.PATH_FIELDS, handle), {}
        return nvml_inventory.paths(self._n, calls, self.index, handle, count)

    def past(self) -> Dict[str, List[Any]]:
        """Read what the driver sampled on this device before gpuscope started; some 6 ms.

        See :func:`.nvml_samples.recent`. It is called in another thread than the other methods,
        because nobody waits for it.
        """
        calls, get = self.past_calls, "nvmlDeviceGetHandleByIndex_v2"
        handle = calls.attempt(get, lambda: self._n.nvmlDeviceGetHandleByIndex(self.index))
        if isinstance(handle, Unknown):
            return {}
        return nvml_samples.recent(self._n.function, calls, handle, self.wall, self._clock)

    def health(self) -> Dict[str, Reading]:
        """Return persistence mode, power limit and what waits for a reset: see ``HEALTH``."""
        return self._read(HEALTH)

    def topology(self, peers: Sequence[int]) -> nvml_topology.Topology:
        """Read the NVLinks, the fabric, and the paths from this device to the devices ``peers``.

        It takes three calls for each peer and some twenty more, so it must not be called in a loop.
        """
        handle = self._get_handle()
        if isinstance(handle, Unknown):
            return nvml_topology.unreachable(handle, self.index, peers)
        return nvml_topology.read(self._n, self._calls, self.index, handle, peers)

    def processes(self) -> Union[List[Tuple[int, Reading]], Unknown]:
        """Return ``(pid, used bytes or a reason)`` for each process, or why there is no list.

        The pids are those of the host, which may mean nothing inside a container. See
        ``processes_gap``.
        """
        handle = self._get_handle()
        return handle if isinstance(handle, Unknown) else self._processes.read(handle)

    def process_load(self) -> Union[Dict[int, float], Unknown]:
        """Return SM percent by pid since the last time, or why it is unknown; takes 2 to 3 ms.

        Only processes that ran kernels are included. The pids are like those of :meth:`processes`.
        """
        handle = self._get_handle()
        return handle if isinstance(handle, Unknown) else self.load.read(handle)

    def idle_seconds(self) -> Reading:
        """Return the least time for which no kernel has run, 0.0 if one runs now; takes 2 ms."""
        handle = self._get_handle()
        if isinstance(handle, Unknown):
            return handle
        return nvml_samples.idle_seconds(self._n.function, self._calls, handle, self.wall)

    def close(self) -> None:
        """Gives the driver's buffers back; only when no call is in flight any more."""
        self._gpm.close()
        self._gpm_many.close()

    def _read(self, specs: Tuple[Spec, ...]) -> Dict[str, Reading]:
        readings: Dict[str, Reading] = {}
        handle = self._get_handle()
        for spec in specs:
            if isinstance(handle, Unknown):
                readings.update((column, handle) for column in spec.columns)
                continue
            ways = [(name, lambda ask=ask: ask(self._n, handle)) for name, ask in spec.ways]
            values = self._calls.first(ways, spec.columns[0])
            if isinstance(values, Unknown):
                readings.update((column, values) for column in spec.columns)
            else:
                readings.update(zip(spec.columns, values))
        return readings

    def _get_handle(self) -> Any:
        if self._handle is None:
            handle = self._calls.attempt(
                "nvmlDeviceGetHandleByIndex_v2",
                lambda: self._n.nvmlDeviceGetHandleByIndex(self.index),
            )
            if isinstance(handle, Unknown):
                return handle
            self._handle = handle
        return self._handle


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
