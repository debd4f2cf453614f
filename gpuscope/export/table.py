"""Define every exported metric: name, kind, labels and help text.

Names follow Prometheus: base units, and ``_total`` for counters. The label is ``training_job`` and
not ``job``, because Prometheus uses ``job`` itself and would rename ours. ``rank``, ``pod`` and
``pid`` are empty where they do not apply; ``pid`` is set only where job and rank do not identify a
trainer.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST = ("host",)
DEVICE = ("host", "gpu", "uuid")
TRAINER = ("host", "training_job", "rank", "pid", "pod")
ALLOCATOR = (*TRAINER, "gpu", "uuid")

PERCENT, MHZ = 0.01, 1e6


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
    scale: float = 1.0
    counter: bool = False


def _gauges(
    prefix: str, labels: tuple[str, ...], rows: tuple[tuple[str, str, float, str], ...]
) -> tuple[Metric, ...]:
    return tuple(
        Metric(prefix + name, labels, text, column, scale) for name, column, scale, text in rows
    )


AGENT_UP = Metric(
    "gpuscope_agent_up",
    HOST,
    "Whether the collector answers: 1, else 0 and there is no other series.",
)
DRIVER_UP = Metric("gpuscope_driver_up", HOST, "Whether the NVIDIA driver answers (NVML).")
HOST_INFO = Metric(
    "gpuscope_host_info", (*HOST, "driver", "cuda", "kernel"), "Versions on this host; always 1."
)
LEFT_OUT = Metric(
    "gpuscope_export_left_out",
    (*HOST, "kind"),
    "Devices, trainers and allocators without series: over the cap, or with identical labels.",
)
HOST_READINGS = _gauges(
    "gpuscope_agent_",
    HOST,
    (
        (
            "cpu_ratio",
            "agent_cpu_percent",
            PERCENT,
            "CPU use of the collector, as a share of one core.",
        ),
        ("resident_memory_bytes", "agent_rss_bytes", 1, "Resident memory of the collector."),
    ),
)

DEVICE_INFO = Metric("gpuscope_gpu_info", (*DEVICE, "name"), "The device's name; always 1.")
DEVICE_UP = Metric(
    "gpuscope_gpu_up", DEVICE, "Whether the device answers; 0 when it is lost or hangs."
)
DEVICE_STATE = Metric(
    "gpuscope_gpu_state",
    (*DEVICE, "kind", "state"),
    "The state of the device, as screens show it: kind is ok, idle, shared, warn or bad; always 1.",
)
DEVICE_TOTAL = Metric("gpuscope_gpu_memory_total_bytes", DEVICE, "Memory of the device.")
DEVICE_READINGS = (
    *_gauges(
        "gpuscope_gpu_",
        DEVICE,
        (
            ("memory_used_bytes", "used_bytes", 1, "Memory in use by processes."),
            ("memory_free_bytes", "free_bytes", 1, "Free memory."),
            (
                "memory_driver_reserved_bytes",
                "driver_reserved_bytes",
                1,
                "Memory that the driver reserves for itself.",
            ),
            (
                "utilization_ratio",
                "utilization_percent",
                PERCENT,
                "Share of time in which at least one kernel ran.",
            ),
            (
                "memory_utilization_ratio",
                "memory_utilization_percent",
                PERCENT,
                "Share of time memory was accessed.",
            ),
            (
                "sm_active_ratio",
                "sm_active_percent",
                PERCENT,
                "Share of multiprocessors with a warp (GPM).",
            ),
            (
                "sm_occupancy_ratio",
                "sm_occupancy_percent",
                PERCENT,
                "Resident warps, as a share of the maximum (GPM).",
            ),
            (
                "tensor_active_ratio",
                "tensor_active_percent",
                PERCENT,
                "Share of cycles tensor cores were busy (GPM).",
            ),
            ("power_watts", "power_watts", 1, "Power draw."),
            ("power_limit_watts", "power_limit_watts", 1, "Power limit."),
            ("temperature_celsius", "temperature_celsius", 1, "Temperature of the chip."),
            ("sm_clock_hertz", "sm_clock_mhz", MHZ, "Clock of the multiprocessors."),
            ("memory_clock_hertz", "memory_clock_mhz", MHZ, "Clock of the memory."),
            (
                "clock_event_reasons",
                "clock_event_reasons",
                1,
                "Clock event reasons: NVML's bit mask.",
            ),
            ("fan_ratio", "fan_percent", PERCENT, "Fan speed, as a share of its maximum."),
            ("pcie_generation", "pcie_generation", 1, "Current PCIe link generation."),
            ("pcie_lanes", "pcie_width", 1, "Current PCIe link lanes."),
        ),
    ),
    Metric(
        "gpuscope_gpu_ecc_uncorrected_errors_total",
        DEVICE,
        "Uncorrected memory errors since the driver was loaded.",
        "ecc_uncorrected_count",
        counter=True,
    ),
)

PROBE_UP = Metric("gpuscope_probe_up", TRAINER, "Whether the probe in the trainer answers.")
TRAINER_INFO = Metric(
    "gpuscope_train_info",
    (*TRAINER, "script", "world_size", "torch", "origin"),
    "The trainer, and how the probe got in; always 1.",
)
STALLED = Metric(
    "gpuscope_train_stalled",
    TRAINER,
    "Whether its step is overdue and its main thread hangs.",
)
STALLS = Metric(
    "gpuscope_train_stalls_total",
    TRAINER,
    "Stalls reported by the probe since this exporter saw it.",
    counter=True,
)
STEP_PART = Metric(
    "gpuscope_train_step_part_seconds",
    (*TRAINER, "part"),
    "Where a step's time goes: mean over the measured steps. The parts add up to "
    "gpuscope_train_measured_step_seconds.",
)
MEASURED_STEP = Metric(
    "gpuscope_train_measured_step_seconds",
    TRAINER,
    "Mean time of the recent steps with a measured split.",
)
TRAINER_READINGS = (
    Metric(
        "gpuscope_train_steps_total",
        TRAINER,
        "Optimizer steps seen by the probe.",
        "step",
        counter=True,
    ),
    Metric(
        "gpuscope_train_skipped_steps_total",
        TRAINER,
        "Steps that GradScaler skipped.",
        "skipped_steps",
        counter=True,
    ),
    Metric(
        "gpuscope_train_collectives_total",
        TRAINER,
        "Collectives launched by this rank.",
        "collectives",
        counter=True,
    ),
    *_gauges(
        "gpuscope_train_",
        TRAINER,
        (
            ("last_step_age_seconds", "step_age_seconds", 1, "Time since the last step ended."),
            ("step_seconds", "step_seconds", 1, "Median of the recent steps."),
            ("step_p95_seconds", "step_seconds_p95", 1, "95th percentile of the recent steps."),
            ("step_mean_seconds", "step_seconds_mean", 1, "Mean of the same steps."),
            (
                "loader_wait_seconds",
                "loader_wait_seconds",
                1,
                "Waiting for the DataLoader: mean per recent step.",
            ),
            ("loss", "loss", 1, "Loss, if a progress bar shows one."),
            ("eta_seconds", "eta_seconds", 1, "Time left, from the trainer's own progress bar."),
        ),
    ),
    *_gauges(
        "gpuscope_probe_",
        TRAINER,
        (
            (
                "cpu_ratio",
                "probe_cpu_percent",
                PERCENT,
                "CPU use of the probe's thread, as a share of one core.",
            ),
            (
                "step_cost_seconds",
                "probe_step_seconds",
                1,
                "The probe's own time inside a step, mean.",
            ),
        ),
    ),
)
PROCESS_READINGS = _gauges(
    "gpuscope_train_process_",
    TRAINER,
    (
        (
            "cpu_ratio",
            "cpu_percent",
            PERCENT,
            "CPU use of the trainer's process, as a share of one core.",
        ),
        ("resident_memory_bytes", "rss_bytes", 1, "Resident memory of the trainer's process."),
    ),
)
CACHED = Metric("gpuscope_torch_cached_bytes", ALLOCATOR, "Reserved, but not allocated.")
RESERVED_PART = Metric(
    "gpuscope_torch_reserved_part_bytes",
    (*ALLOCATOR, "part"),
    "Parts of the reserved memory; they add up to it.",
)
ALLOCATOR_READINGS = (
    *_gauges(
        "gpuscope_torch_",
        ALLOCATOR,
        tuple(
            (column, column, 1, text)
            for column, text in (
                ("allocated_bytes", "Memory of live tensors."),
                ("reserved_bytes", "Memory that the allocator has reserved."),
                ("active_bytes", "Allocated, or freed and still in use by a stream."),
                (
                    "inactive_split_bytes",
                    "Idle pieces of segments that are partly in use: fragmentation.",
                ),
                ("requested_bytes", "Requested bytes, before rounding."),
                ("private_pool_bytes", "Reserved by private pools (CUDA graphs)."),
                ("peak_allocated_bytes", "Peak allocated, as torch counts."),
                ("peak_reserved_bytes", "Peak reserved, as torch counts."),
                ("parameter_bytes", "Parameters."),
                ("gradient_bytes", "Gradients."),
                ("optimizer_state_bytes", "Optimizer state."),
                ("other_model_bytes", "Parameters and buffers of models that no optimizer trains."),
                ("workspace_bytes", "cuBLAS workspaces, estimated."),
                (
                    "step_allocated_bytes",
                    "Allocated right after optimizer.step(); shows growth.",
                ),
            )
        ),
    ),
    *_gauges(
        "gpuscope_torch_",
        ALLOCATOR,
        (
            ("allocations", "allocation_count", 1, "Live allocations."),
            ("segments", "segment_count", 1, "Live segments."),
        ),
    ),
    Metric("gpuscope_torch_ooms_total", ALLOCATOR, "Out-of-memory errors.", "ooms", counter=True),
    Metric(
        "gpuscope_torch_cudamalloc_retries_total",
        ALLOCATOR,
        "Times cudaMalloc failed and was retried after emptying the cache.",
        "alloc_retries",
        counter=True,
    ),
)

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        AGENT_UP,
        DRIVER_UP,
        HOST_INFO,
        LEFT_OUT,
        *HOST_READINGS,
        DEVICE_INFO,
        DEVICE_UP,
        DEVICE_STATE,
        DEVICE_TOTAL,
        *DEVICE_READINGS,
        PROBE_UP,
        TRAINER_INFO,
        STALLED,
        STALLS,
        STEP_PART,
        MEASURED_STEP,
        *TRAINER_READINGS,
        *PROCESS_READINGS,
        CACHED,
        RESERVED_PART,
        *ALLOCATOR_READINGS,
    )
}
"""All metrics by name, in the order in which they are exported."""
