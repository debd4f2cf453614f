"""Lanes for the load of GPUs and of their host, for the strips of several screens."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.device_state import mute
from ...model.device_trainings import hung_since
from ...model.first_step import job_begins
from ...model.ranks import name_of
from ...store.view import DeviceView, History, HistoryOf, HostView, TrainerView
from .chart_series import thin
from .load_strips import Lane

LOADS = (
    ("GPU-Util", "utilization_percent"),
    ("SM", "sm_active_percent"),
    ("tensor", "tensor_active_percent"),
    ("DRAM", "dram_active_percent"),
)
"""The loads that a lane can show of a GPU; the first one is shown of every GPU."""
TENSOR = LOADS[2]


def gpu_lanes(
    history: HistoryOf, host: HostView, devices: Sequence[DeviceView], window: float, parts: int
) -> list[Lane]:
    """Return a lane for each GPU, and below it those of its first ``parts`` loads that are known.

    Of two the second is that of the tensor cores, which says more beside the first.

    The parts of an only GPU have names of their own, as on its screen.

    From the moment on since which its job hangs the load is no progress. Their means are of the
    time of the job.
    """
    tensor = any(device.number(TENSOR[1]) is not None for device in devices)
    columns = (LOADS[0], TENSOR) if parts == 2 and tensor else LOADS[: max(parts, 1)]
    lanes = []
    for device in devices:
        name, wasted = f"GPU {device.definition.index}", hung_since(host, device)
        silent, begins = mute(device), job_begins(host, device, history, window)
        alarm = silent.word if silent is not None else ""
        for label, column in columns:
            past = thin(history(device.id, column, window))
            first = column == LOADS[0][1]
            if first or any(value is not None for value in past.values):
                if len(devices) > 1:
                    label = name if first else f"  {label}"
                lanes.append(Lane(label, past, first and parts > 1, wasted, alarm, begins))
    return lanes


def process_lanes(
    history: HistoryOf, host: HostView, ranks: Sequence[TrainerView], window: float
) -> list[Lane]:
    """Return a lane for the process of each rank: its share of all cores of the host."""
    cores, lanes = host.definition.cpu_count, []
    for rank in ranks if cores else ():
        if cores and rank.process is not None:
            past = thin(history(rank.process, "cpu_percent", window))
            values = tuple(None if value is None else value / cores for value in past.values)
            if any(value is not None for value in values):
                lanes.append(Lane(name_of(rank), History(past.seconds, values)))
    return lanes


HOST_LANES = ("CPU", "memory")
"""The lanes of a host: all its cores, and its memory as far as it is not available."""


def host_lanes(
    history: HistoryOf, host: HostView, window: float, first: bool = False
) -> list[Lane]:
    """Return the lanes of the host that are known; ``first`` begins a group of them."""
    total = host.definition.memory_total_bytes
    free = thin(history(host.id, "memory_available_bytes", window))
    used = [100 * (1 - value / total) if value is not None and total else None
            for value in free.values]  # fmt: skip
    pasts = (
        thin(history(host.id, "cpu_percent", window)),
        History(free.seconds, tuple(used)),
    )
    lanes: list[Lane] = []
    for label, past in zip(HOST_LANES, pasts, strict=True):
        if any(value is not None for value in past.values):
            lanes.append(Lane(label, past, first and not lanes))
    return lanes
