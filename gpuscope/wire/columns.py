"""The columns of samples, by table.

A row in a sample is [id, value of column 0, value of column 1, …]. `hello.cols` says which columns
a sender has, in its order; a reader looks them up by name. Units are in the names: *_bytes,
*_seconds, *_percent (0..100), *_watts …

Stdlib only, Python 3.8 syntax: also read inside trainers.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, Sequence, Tuple

TABLES = ("h", "g", "p", "u", "t", "a")
"""h host, g device, p process (host side), u use of a device by a process, t trainer, a allocator
of a trainer.
"""

HOST_COLUMNS = (
    "cpu_percent",  # of all cores together, 0..100
    "load_1m",
    "memory_available_bytes",
    "swap_used_bytes",
    "shm_used_bytes",  # /dev/shm
    "cgroup_memory_used_bytes",
    "agent_cpu_percent",  # of one core
    "agent_rss_bytes",
)
DEVICE_COLUMNS = (
    "used_bytes",  # NVML v2: without what the driver reserves
    "free_bytes",
    "driver_reserved_bytes",
    "utilization_percent",  # NVML "GPU-Util": share of time with any kernel running
    "memory_utilization_percent",
    "sm_active_percent",  # GPM
    "sm_occupancy_percent",  # GPM
    "tensor_active_percent",  # GPM: tensor pipe busy, any type
    "power_watts",
    "power_limit_watts",
    "temperature_celsius",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "clock_event_reasons",  # bit mask, see collect.nvml.CLOCK_EVENT_REASONS
    "performance_state",
    "fan_percent",
    "ecc_uncorrected_count",  # volatile
    "pcie_generation",
    "pcie_width",
    # From here on seldom read, and left out at the end of a row while nothing has changed: see
    # KEPT.
    "memory_temperature_celsius",
    "slowdown_margin_celsius",  # degrees that are left before the clock is held down
    "energy_joules",  # since the driver was loaded
    "dram_active_percent",  # GPM, as those up to nvlink_rx: mean since the reading before
    "integer_active_percent",
    "fp64_active_percent",
    "fp32_active_percent",
    "fp16_active_percent",
    "pcie_tx_bytes_per_second",  # from the GPU
    "pcie_rx_bytes_per_second",
    "nvlink_tx_bytes_per_second",  # of all links together
    "nvlink_rx_bytes_per_second",
    "ecc_corrected_count",  # volatile: since the driver was loaded
    "ecc_corrected_lifetime_count",
    "ecc_uncorrected_lifetime_count",
    "remapped_correctable_count",  # rows of memory replaced by spare ones
    "remapped_uncorrectable_count",
    "remap_pending",  # 1: waits for a reset of the GPU
    "remap_failed",  # 1: no spare row was left
    "retired_pages_count",
    "retired_pages_pending",  # 1: waits for a reset of the GPU
    "pcie_replay_count",
    "xid_count",  # critical errors that the driver reported since the agent was started
    # the number of the last one, unknown before there is one (older agents: 0); see collect.xid
    "last_xid",
    # since when no kernel runs, as far as is known, on the host's monotonic clock; 0: one does
    "idle_since_seconds",
)
KEPT: Dict[str, int] = {"g": DEVICE_COLUMNS.index("pcie_width") + 1}
"""By table: so many columns are in every row. Those behind them may be left out at the end of a
row: they are as in the row before. The first row of an entity after its first definition, or after
a key frame, has all.
"""
PROCESS_COLUMNS = (
    "cpu_percent",  # of one core
    "rss_bytes",  # resident set
    # below 1 % of a core for at least so long, counted from when the agent began to look
    "idle_seconds",
    # What the end of its own log says, where that is a file of this user's process: its writer's
    # word, not measured.
    "log_step",
    "log_total",
    "log_loss",
    "log_age_seconds",  # since its last line
    "log_epoch",  # where log_step and log_total count within an epoch: which
)
USE_COLUMNS = (
    "used_bytes",
    "sm_percent",  # of the last 5 s its kernels ran there, by the driver's samples; asked every 5 s
)
TRAINER_COLUMNS = (
    # optimizer steps seen by the probe; where it sees none, what the definition's step_source says
    "step",
    "step_seconds",  # median over the recent steps
    "step_seconds_p95",
    "step_seconds_mean",  # over the same steps: what loader_wait_seconds is a part of
    "step_age_seconds",  # since the last step ended
    "loader_wait_seconds",  # waiting for the input pipeline, mean per step over the recent steps
    "skipped_steps",  # by the grad scaler, on inf or nan
    "loss",  # where the framework's own state or a progress bar has one
    # of the framework's own count, else of the outermost progress bar; in its own unit
    "progress_done",
    "progress_total",
    "eta_seconds",
    "probe_cpu_percent",  # the probe's own thread, of one core
    "probe_step_seconds",  # the probe's own time inside a step, mean
    # Where a step's time goes, mean per step over the recent measured steps, without those that
    # have an evaluation in them. They add up to the mean of these steps
    # (model.step_time.measured_step); step_seconds is a median of others, and no sum of them. What
    # cannot be told apart is null and contained in compute_seconds. On CUDA taken between events of
    # the training thread's stream, without synchronising; on the CPU between moments of that
    # thread.
    "input_seconds",  # the device (or the CPU that trains) waits for the loader
    "h2d_seconds",  # host-to-device copies of what the loader gave
    "compute_seconds",  # forward and backward
    "optimizer_seconds",
    "communication_seconds",  # collectives that nothing overlaps
    "other_seconds",
    "step_seconds_hour_ago",  # median step of the minute one hour ago
    "collectives",  # launched by this rank so far, over all its process groups
    # text: where the main thread stands while its step is overdue, "file:line function"
    "stall_at",
    "phase",  # text: train | eval, from model.training where the model is known
    "progress_of",  # text: run | epoch, whose end progress_total and eta_seconds are
)
TEXT_COLUMNS = frozenset(("stall_at", "phase", "progress_of", "other_models"))
"""Columns whose readings are words. All others are numbers; a word there is refused."""
ALLOCATOR_COLUMNS = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
    "private_pool_bytes",  # reserved by private pools (CUDA graphs)
    "peak_allocated_bytes",  # as torch counts them; never reset by us
    "peak_reserved_bytes",
    "alloc_retries",  # cudaMalloc failed, cache flushed, tried again
    "ooms",
    "allocation_count",  # live allocations
    "segment_count",  # live segments
    "parameter_bytes",
    "gradient_bytes",
    "optimizer_state_bytes",
    "statistics_seconds",  # what the last statistics call took
    # From a walk over the segments, taken seldom; unknown where none was possible.
    "private_pool_idle_bytes",  # of private_pool_bytes: in no live or pending block
    "private_pool_inactive_split_bytes",  # of these idle bytes: in segments that are partly in use
    # an estimate: live blocks of exactly a cuBLAS workspace's size that no counted tensor owns
    "workspace_bytes",
    # At one fixed point of the step, right after optimizer.step(): what growth is judged by.
    "step_allocated_bytes",
    "step_allocated_step",  # the step after which it was read
    # Models that no optimizer trains: a teacher, a reference model, an average of the weights.
    "other_model_bytes",  # their parameters and buffers
    "other_models",  # text: each with its class and bytes, the largest first; see named_sizes
)
COLUMNS: Dict[str, Tuple[str, ...]] = {
    "h": HOST_COLUMNS,
    "g": DEVICE_COLUMNS,
    "p": PROCESS_COLUMNS,
    "u": USE_COLUMNS,
    "t": TRAINER_COLUMNS,
    "a": ALLOCATOR_COLUMNS,
}


def named_sizes(sizes: Sequence[Tuple[str, int]]) -> str:
    """Write names with their bytes as one word of a sample.

    It looks like ``teacher (ResNet) 14470144 B, ema (Shadow) 7235072 B``.
    """
    return ", ".join(f"{name} {size} B" for name, size in sizes)


def told_sizes(text: str, tell: Callable[[int], str]) -> str:
    """Write the bytes in what :func:`named_sizes` made as ``tell`` says.

    "…" stands for what a limit cut off its end. Other text, as older probes send it, stays.
    """
    pieces = re.split(r" (\d{1,18}) B(?=, |$)", text)
    if len(pieces) == 1:
        return text
    told = "".join(
        f" {tell(int(piece))}" if index % 2 else piece for index, piece in enumerate(pieces[:-1])
    )
    return f"{told}, …" if pieces[-1] else told
