"""Define every exported metric: name, kind, labels and help text.

Those that are a column of the store are rows of ``readings.csv``. Names follow Prometheus: base
units, and ``_total`` for counters. The label is ``training_job`` and not ``job``, because
Prometheus uses ``job`` itself and would rename ours. ``rank``, ``pod`` and ``pid`` are empty where
they do not apply; ``pid`` is set only where job and rank do not identify a trainer.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

HOST = ("host",)
DEVICE = ("host", "gpu", "uuid")
TRAINER = ("host", "training_job", "rank", "pid", "pod")
ALLOCATOR = (*TRAINER, "gpu", "uuid")

_SCALES = {"_percent": 0.01, "_mhz": 1e6}
"""By how a column ends: the factor to Prometheus's unit, of the others 1."""
METRICS: dict[str, Metric] = {}
"""All metrics by name, in the order in which they are exported."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A Prometheus metric and where its value comes from.

    ``column`` is the column of the store whose reading times ``scale`` is the value; "" for a
    metric that is computed elsewhere.
    """

    name: str
    labels: tuple[str, ...]
    help: str
    column: str = ""

    @property
    def scale(self) -> float:
        return next((by for end, by in _SCALES.items() if self.column.endswith(end)), 1.0)

    @property
    def counter(self) -> bool:
        return self.name.endswith("_total")


def _metric(name: str, labels: tuple[str, ...], text: str, column: str = "") -> Metric:
    made = METRICS[name] = Metric(name, labels, text, column)
    return made


def _readings(of: str, labels: tuple[str, ...]) -> tuple[Metric, ...]:
    rows = csv.DictReader(
        files(__package__).joinpath("readings.csv").read_text(encoding="utf-8").splitlines()
    )
    return tuple(
        _metric(row["metric"], labels, row["help"], row["column"])
        for row in rows
        if row["of"] == of
    )


AGENT_UP = _metric(
    "gpuscope_agent_up",
    HOST,
    "Whether the collector answers: 1, else 0 and there is no other series.",
)
DRIVER_UP = _metric("gpuscope_driver_up", HOST, "Whether the NVIDIA driver answers (NVML).")
HOST_INFO = _metric(
    "gpuscope_host_info", (*HOST, "driver", "cuda", "kernel"), "Versions on this host; always 1."
)
LEFT_OUT = _metric(
    "gpuscope_export_left_out",
    (*HOST, "kind"),
    "Devices, trainers and allocators without series: over the cap, or with identical labels.",
)
HOST_READINGS = _readings("host", HOST)

DEVICE_INFO = _metric("gpuscope_gpu_info", (*DEVICE, "name"), "The device's name; always 1.")
DEVICE_UP = _metric(
    "gpuscope_gpu_up", DEVICE, "Whether the device answers; 0 when it is lost or hangs."
)
DEVICE_STATE = _metric(
    "gpuscope_gpu_state",
    (*DEVICE, "kind", "state"),
    "The state of the device, as screens show it: kind is ok, idle, shared, warn or bad; always 1.",
)
DEVICE_TOTAL = _metric("gpuscope_gpu_memory_total_bytes", DEVICE, "Memory of the device.")
DEVICE_READINGS = _readings("device", DEVICE)

PROBE_UP = _metric("gpuscope_probe_up", TRAINER, "Whether the probe in the trainer answers.")
TRAINER_INFO = _metric(
    "gpuscope_train_info",
    (*TRAINER, "script", "world_size", "torch", "origin"),
    "The trainer, and how the probe got in; always 1.",
)
STALLED = _metric(
    "gpuscope_train_stalled",
    TRAINER,
    "Whether its step is overdue and its main thread hangs.",
)
LOSS_LOST = _metric(
    "gpuscope_train_loss_not_finite",
    TRAINER,
    "Whether its loss stays NaN or infinite; gpuscope_train_loss is then absent.",
)
STALLS = _metric(
    "gpuscope_train_stalls_total",
    TRAINER,
    "Stalls reported by the probe since this exporter saw it.",
)
STEP_PART = _metric(
    "gpuscope_train_step_part_seconds",
    (*TRAINER, "part"),
    "Where a step's time goes: mean over the measured steps. The parts add up to "
    "gpuscope_train_measured_step_seconds; without a part other, the script's own code is in "
    "compute.",
)
MEASURED_STEP = _metric(
    "gpuscope_train_measured_step_seconds",
    TRAINER,
    "Mean time of the recent steps with a measured split.",
)
TRAINER_READINGS = _readings("trainer", TRAINER)
PROCESS_READINGS = _readings("process", TRAINER)
CACHED = _metric("gpuscope_torch_cached_bytes", ALLOCATOR, "Reserved, but not allocated.")
RESERVED_PART = _metric(
    "gpuscope_torch_reserved_part_bytes",
    (*ALLOCATOR, "part"),
    "Parts of the reserved memory; they add up to it.",
)
ALLOCATOR_READINGS = _readings("allocator", ALLOCATOR)
