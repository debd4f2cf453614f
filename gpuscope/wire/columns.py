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
"""The tables of a sample: h host, g device, p process (as the host sees it), u use of a device by a
process, t trainer, a allocator of a trainer.
"""

HOST_COLUMNS = (
    "cpu_percent",  # of all cores together, 0 to 100
    "load_1m",
    "memory_available_bytes",
    "swap_used_bytes",
    "shm_used_bytes",  # /dev/shm
    "cgroup_memory_used_bytes",
    "agent_cpu_percent",  # of one core
    "agent_rss_bytes",
)
DEVICE_COLUMNS = (
    "used_bytes",  # NVML v2: without the memory that the driver reserves
    "free_bytes",
    "driver_reserved_bytes",
    "utilization_percent",  # NVML's "GPU-Util": share of time in which any kernel ran
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
    # The columns from here on are read seldom. They are left out at the end of a row while nothing
    # has changed: see KEPT.
    "memory_temperature_celsius",
    "slowdown_margin_celsius",  # degrees left before the driver lowers the clock
    "energy_joules",  # since the driver was loaded
    "dram_active_percent",  # GPM, like all columns up to nvlink_rx: mean since the previous reading
    "integer_active_percent",
    "fp64_active_percent",
    "fp32_active_percent",
    "fp16_active_percent",
    "pcie_tx_bytes_per_second",  # from the GPU
    "pcie_rx_bytes_per_second",
    "nvlink_tx_bytes_per_second",  # sum of all links
    "nvlink_rx_bytes_per_second",
    "ecc_corrected_count",  # volatile: since the driver was loaded
    "ecc_corrected_lifetime_count",
    "ecc_uncorrected_lifetime_count",
    "remapped_correctable_count",  # rows of memory replaced by spare ones
    "remapped_uncorrectable_count",
    "remap_pending",  # 1: a reset of the GPU is needed
    "remap_failed",  # 1: no spare row was left
    "retired_pages_count",
    "retired_pages_pending",  # 1: a reset of the GPU is needed
    "pcie_replay_count",
    "xid_count",  # critical errors that the driver has reported since the agent was started
    "last_xid",  # number of the last one, unknown if there was none; see collect.xid
    # since when no kernel has run, as far as is known, on the host's monotonic clock; 0: one runs
    "idle_since_seconds",
)
KEPT: Dict[str, int] = {"g": DEVICE_COLUMNS.index("pcie_width") + 1}
"""For each table, how many columns every row has. The columns behind them may be left out at the
end of a row, and then have the values of the previous row. The first row of an entity after its
first definition, or after a key frame, has all columns.
"""
PROCESS_COLUMNS = (
    "cpu_percent",  # of one core
    "rss_bytes",  # resident set
    # how long its load has been below 1 % of a core, at least; counted from the agent's start
    "idle_seconds",
    # What the last lines of the training's own log say, if that is a file of this process's user.
    # These are the log's claims and not measurements.
    "log_step",
    "log_total",
    "log_loss",
    "log_age_seconds",  # age of its last line
    "log_epoch",  # "epoch" if log_step and log_total count within an epoch
)
USE_COLUMNS = (
    "used_bytes",
    "sm_percent",  # share of the last 5 s in which its kernels ran; the driver's samples
)
TRAINER_COLUMNS = (
    # optimizer steps that the probe saw; if it sees none, the definition's step_source says what is
    # counted
    "step",
    "step_seconds",  # median over the recent steps
    "step_seconds_p95",
    "step_seconds_mean",  # mean over the same steps: loader_wait_seconds is a part of it
    "step_age_seconds",  # since the end of the last step
    "loader_wait_seconds",  # wait for the input pipeline, mean per step over the recent steps
    "skipped_steps",  # steps that the grad scaler skipped because of inf or nan
    "loss",  # if the framework's own state or a progress bar has a loss
    # from the framework's own counter, else from the outermost progress bar, in its own unit
    "progress_done",
    "progress_total",
    "eta_seconds",
    "probe_cpu_percent",  # CPU use of the probe's own thread, of one core
    "probe_step_seconds",  # the probe's own time inside a step, mean
    # Where the time of a step goes: mean per step over the recent measured steps, without steps
    # that contain an evaluation. The parts add up to the mean of these steps
    # (model.step_time.measured_step), not to step_seconds, which is a median over other steps. A
    # part that cannot be measured is null and contained in compute_seconds. On CUDA times are
    # measured between events on the training thread's stream, without synchronising; on the CPU
    # between clock readings of that thread.
    "input_seconds",  # the device (or the CPU that trains) waits for the loader
    "h2d_seconds",  # host-to-device copies of what the loader gave
    "compute_seconds",  # forward and backward; the script's own code too where "other" is null
    "optimizer_seconds",
    "communication_seconds",  # collectives that do not overlap with computation
    "other_seconds",
    "step_seconds_hour_ago",  # median step of the minute one hour ago
    "collectives",  # collectives that this rank has launched so far, over all process groups
    # text: where the main thread stands while its step is overdue, "file:line function"
    "stall_at",
    "phase",  # text: train | eval, from model.training if the model is known
    "progress_of",  # text: run | epoch, the thing whose end progress_total and eta_seconds refer to
    # A step without what it waits for other ranks, mean over the quickest third of the last 8 s.
    # Known where DistributedDataParallel trains on the CPU.
    "quick_own_seconds",
)
TEXT_COLUMNS = frozenset(("stall_at", "phase", "progress_of", "other_models"))
"""Columns whose readings are text. In all other columns a text is refused."""
ALLOCATOR_COLUMNS = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
    "private_pool_bytes",  # reserved by private pools (CUDA graphs)
    "peak_allocated_bytes",  # as torch counts them; we never reset these
    "peak_reserved_bytes",
    "alloc_retries",  # cudaMalloc failed, the cache was flushed, and the call was repeated
    "ooms",
    "allocation_count",  # live allocations
    "segment_count",  # live segments
    "parameter_bytes",
    "gradient_bytes",
    "optimizer_state_bytes",
    "statistics_seconds",  # duration of the last statistics call
    # From a walk over the segments, which is made seldom; unknown if none was possible.
    "private_pool_idle_bytes",  # part of private_pool_bytes that is in no live or pending block
    # these idle bytes, as far as they are in partly used segments
    "private_pool_inactive_split_bytes",
    # an estimate: live blocks of exactly a cuBLAS workspace's size that no counted tensor owns
    "workspace_bytes",
    # Read at one fixed point of the step, right after optimizer.step(); growth is judged by it.
    "step_allocated_bytes",
    "step_allocated_step",  # the step after which it was read
    # Models that no optimizer trains: for example a teacher, a reference model, or averaged
    # weights.
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
    """Write names with their sizes as one text value of a sample.

    It looks like ``teacher (ResNet) 14470144 B, ema (Shadow) 7235072 B``.
    """
    return ", ".join(f"{name} {size} B" for name, size in sizes)


def rewrite_sizes(text: str, tell: Callable[[int], str]) -> str:
    """Rewrite the sizes in a text of :func:`named_sizes` with the function ``tell``.

    A size that was cut off at the end becomes "…".
    """
    pieces = re.split(r" (\d{1,18}) B(?=, |$)", text)
    if len(pieces) == 1:
        return text
    rewritten = "".join(
        f" {tell(int(piece))}" if index % 2 else piece for index, piece in enumerate(pieces[:-1])
    )
    return f"{rewritten}, …" if pieces[-1] else rewritten
