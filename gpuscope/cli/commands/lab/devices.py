"""Ask the driver about a lab run: its GPUs, who uses them, and how busy their tensor pipes are.

The agent's workers ask within this process, with time limits: a driver that hangs delays a run by
``LOOK_SECONDS`` and never ends it. Without a driver nothing is asked.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ....agent.nvml_workers import NvmlWorker
from ....lab import device_selection, metrics
from ....lab.config import LabConfig
from ....lab.rules import RunFacts
from ....model import cuda_devices
from ....model import occupants as jobs_on
from ....model.occupants import Occupant
from ....store.view import DeviceView, HostView
from ....text import width
from ....wire.frames import Unknown
from ... import local_look
from ...args import Taker, flag

VISIBLE_VARIABLE = cuda_devices.VISIBLE
LOOK_SECONDS = 5.0
SAMPLE_HZ = 2.0
POWER_MEAN_SECONDS = 1.0
"""The driver reports the mean power of the last second: earlier readings hold some of the warm-up.
"""
COMMAND_CHARS = 60


def add_share(where: Taker) -> None:
    """Add the option of the verbs that train: on GPUs that are not free, too."""
    flag(where, "--share-gpus", "train even on GPUs that other jobs use (the TUI asks)")


def look() -> HostView:
    """Return this host's devices and who uses them.

    This takes as long as the driver does, but ``LOOK_SECONDS`` at most.
    """
    return local_look.look(LOOK_SECONDS, want_trainers=False).host


def devices_of_run(config: LabConfig, seen: Sequence[DeviceView]) -> list[DeviceView]:
    """Return the visible devices that a run with these toggles takes."""
    return [] if config.device == "cpu" else device_selection.devices_for_run(config, seen)


def occupants(device: DeviceView, host: HostView) -> list[Occupant]:
    """The jobs on a device, with commands short enough for a line of text."""
    return [
        replace(one, command=width.cut(one.command, COMMAND_CHARS))
        for one in jobs_on.occupants(host, device)
    ]


def facts(
    config: LabConfig, host: HostView | None, environ: Mapping[str, str] = os.environ
) -> RunFacts | None:
    """Return what is known without torch, for the rules; None if not even the kind of device is."""
    cores = device_selection.cores()
    if config.device == "cpu":
        return RunFacts("cpu", cores=cores)
    seen = cuda_devices.visible_in_order(host.devices, environ) if host is not None else None
    if not seen:
        return None
    free = [device.readings.get("free_bytes") for device in seen]
    known = [int(value) for value in free if isinstance(value, (int, float))]
    return RunFacts(
        "cuda",
        gpus=len(seen),
        gpu_name=seen[0].definition.name,
        capability=device_selection.capability(seen[0].definition.compute_capability),
        free_bytes=known if len(known) == len(seen) else None,
        cores=cores,
    )


def occupants_of_run(
    config: LabConfig, host: HostView, environ: Mapping[str, str] = os.environ
) -> list[Occupant]:
    """The jobs on the GPUs that a run with these toggles takes."""
    seen = cuda_devices.visible_in_order(host.devices, environ) or []
    return [
        occupant for device in devices_of_run(config, seen) for occupant in occupants(device, host)
    ]


def refusal(
    config: LabConfig, host: HostView, environ: Mapping[str, str] = os.environ, options: str = ""
) -> metrics.RunFailure | None:
    """Say why a run would disturb somebody, or return None.

    The text names who uses the GPUs that the run would take, and the command that takes free ones.
    The result is None if the run disturbs nobody or if no users can be seen. ``options`` are
    appended to the commands in the text.
    """
    seen = cuda_devices.visible_in_order(host.devices, environ)
    if not seen:
        return None
    wanted, others = devices_of_run(config, seen), occupants_of_run(config, host, environ)
    if not others:
        return None
    free = [
        one for one in seen if one.definition.uuid.startswith("GPU-") and not occupants(one, host)
    ]
    force = f"{config.command()}{options} --share-gpus"
    again = f"gpuscope ps    shows who;    {force}    trains on it anyway"
    if free:
        chosen = free[: len(wanted)]
        alike = len({device.definition.name for device in host.devices}) == 1
        names = [str(one.definition.index) if alike else one.definition.uuid for one in chosen]
        fewer = (
            {"nproc": len(chosen)}
            if config.nproc is not None and len(chosen) < config.nproc
            else {}
        )
        again = f"{VISIBLE_VARIABLE}={','.join(names)} {config.command(**fewer)}{options}"
    indices = sorted({occupant.index for occupant in others})
    which = (
        f"GPU {indices[0]} is" if len(indices) == 1 else f"GPUs {', '.join(map(str, indices))} are"
    )
    why = "; ".join(map(str, others[:4])) + (
        f"; and {len(others) - 4} more" if len(others) > 4 else ""
    )
    return metrics.RunFailure(
        f"{which} in use by another job.",
        f"{why}. Both would be slower, and may run out of memory.",
        again,
    )


def power_unknown(
    config: LabConfig,
    host: HostView,
    others: Sequence[Occupant],
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Return why the power of a run on these devices cannot be told; "" where it can be read."""
    if others:
        return f"The driver reports that of the whole GPU, and {others[0]}."
    taken = devices_of_run(config, cuda_devices.visible_in_order(host.devices, environ) or [])
    if not taken:
        return host.nvml.text if host.nvml else "Which GPU the training takes is not known."
    for device in taken:
        if not device.definition.uuid.startswith("GPU-"):
            return "The driver reports that of the whole GPU, and this is a MIG slice."
        power = device.reading("power_watts")
        if isinstance(power, Unknown):
            return f"GPU {device.definition.index}: {power.text}."
    return ""


# ── the tensor pipes ──────────────────────────────────────────────────────────────────────────────


class TensorShare:
    """Sample how busy the tensor pipes of a run's GPUs are during its steady state.

    It is a :class:`~gpuscope.lab.run_series.Watcher`, and samples in separate threads. Nothing here
    raises, and for a run without CUDA no thread is started. ``shared`` are jobs that were on the
    GPUs before, whose work the counters cannot tell from ours.
    """

    def __init__(self, shared: Sequence[Occupant] = (), make_nvml: Callable[[], Any] | None = None):
        self._shared = list(shared)
        self._make = make_nvml
        self._worker: NvmlWorker | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._uuids: set[str] = set()
        self._sums: dict[str, tuple[float, int]] = {}
        self._watts: dict[str, tuple[float, int]] = {}
        self._why = "the run had no steady steps"
        self._code = "not_measured"

    def record(self, record: metrics.Record) -> None:
        if isinstance(record, metrics.Started):
            self._begin(record)
        elif (
            isinstance(record, metrics.Step)
            and not record.warming_up
            and self._worker
            and not self._thread
        ):
            self._thread = threading.Thread(target=self._sample, name="lab-tensor", daemon=True)
            self._thread.start()
        elif isinstance(record, (metrics.RunEnded, metrics.RunFailure)):
            self._stop.set()

    def finish(self, document: dict[str, Any]) -> dict[str, Any]:
        """End the threads, and return the document with the share of tensor cores."""
        return with_tensor_share(document, self.end())

    def end(self) -> tuple[float | None, str, str]:
        """End the threads and return the percentage, or None with the code and the reason."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)
        if self._worker is not None:
            self._worker.stop()
        if self._uuids and set(self._sums) == self._uuids:
            return (
                sum(total / count for total, count in self._sums.values()) / len(self._sums),
                "",
                "",
            )
        return None, self._code, self._why

    @property
    def power_watts(self) -> float | None:
        """The mean power of all the run's GPUs together in its steady steps; None if not read."""
        if not self._uuids or set(self._watts) != self._uuids:
            return None
        return sum(total / count for total, count in self._watts.values())

    def _begin(self, started: metrics.Started) -> None:
        uuids = [device.get("uuid") for device in started.devices if isinstance(device, dict)]
        if started.device != "cuda":
            self._code, self._why = (
                "not_supported",
                "a CPU has no tensor cores",
            )
        elif self._shared:
            self._why = f"the counters cover the whole GPU, and {self._shared[0]}"
        elif not uuids or not all(
            isinstance(uuid, str) and uuid.startswith("GPU-") for uuid in uuids
        ):
            self._code, self._why = (
                "not_supported",
                "torch does not report the run's GPUs, or it uses a MIG slice",
            )
        else:
            self._uuids = {str(uuid).lower() for uuid in uuids}
            self._worker = NvmlWorker(SAMPLE_HZ, lambda: None, self._make)
            self._worker.start()

    def _sample(self) -> None:
        """Record every new reading from now on.

        The first reading of each GPU also covers the warm-up, so it is dropped.
        """
        assert self._worker is not None
        began = time.monotonic()
        readings: dict[str, float] = {}
        settled: set[str] = set()
        while not self._stop.wait(0.5 / SAMPLE_HZ):
            if self._worker.unavailable is not None and self._worker.settled:
                self._code, self._why = self._worker.unavailable.code, self._worker.unavailable.text
            for device in self._worker.devices:
                uuid = device.identity.uuid.lower() if device.identity else ""
                fast = device.fast
                if uuid not in self._uuids or fast is None or fast[0] <= readings.get(uuid, began):
                    continue
                first = uuid not in readings
                readings[uuid] = fast[0]
                watts = fast[1].get("power_watts")
                if uuid not in settled and fast[0] >= began + POWER_MEAN_SECONDS:
                    settled.add(uuid)
                    self._watts.pop(uuid, None)  # a shorter run has only these
                if isinstance(watts, (int, float)):
                    total, count = self._watts.get(uuid, (0.0, 0))
                    self._watts[uuid] = (total + watts, count + 1)
                value = fast[1].get("tensor_active_percent")
                if isinstance(value, Unknown):
                    self._code, self._why = value.code, value.text
                elif isinstance(value, (int, float)) and not first:
                    total, count = self._sums.get(uuid, (0.0, 0))
                    self._sums[uuid] = (total + value, count + 1)
        if not self._sums and self._code == "not_measured":
            self._why = "the steady steps took less than the second that the driver needs to count"


def with_tensor_share(
    document: dict[str, Any], share: tuple[float | None, str, str]
) -> dict[str, Any]:
    """Return the document with the share of tensor cores that the driver reported."""
    percent, code, why = share
    rows = [
        row for row in document.get("unknown", []) if row.get("path") != "tensor_active_percent"
    ]
    if percent is None:
        rows.append({"path": "tensor_active_percent", "code": code, "reason": why})
    return {**document, "tensor_active_percent": percent, "unknown": rows}
