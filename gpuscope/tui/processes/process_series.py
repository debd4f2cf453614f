"""This module reads the histories of one process that are drawn as charts."""

from __future__ import annotations

from collections.abc import Iterator

from ...store.view import HistoryOf, HostView, ProcView
from ...text.units import GIB
from ..charts.line import Series
from ..widgets.charted_screen import TOKENS
from .text import living_uses, trainer_in

MEMORY, SM, CPU, RSS = "GPU memory GiB", "SM %", "CPU % of one core", "RSS GiB"
LOAD, STEP, LOSS = "GPU-Util %", "Step ms", "Loss"
POWER, TENSOR, ALLOCATED = "GPU power W", "Tensor cores %", "Allocated by torch GiB"
ACTIVE = "SMs with work %"
CHARTS = (MEMORY, SM, CPU, RSS)
"""What every process has; its GPUs tell their load, and a trainer its steps and its loss."""
_COLUMNS = {
    MEMORY: ("used_bytes", 1 / GIB),
    SM: ("sm_percent", 1.0),
    CPU: ("cpu_percent", 1.0),
    RSS: ("rss_bytes", 1 / GIB),
    LOAD: ("utilization_percent", 1.0),
    STEP: ("step_seconds", 1000.0),
    LOSS: ("loss", 1.0),
    POWER: ("power_watts", 1.0),
    TENSOR: ("tensor_active_percent", 1.0),
    ALLOCATED: ("allocated_bytes", 1 / GIB),
    ACTIVE: ("sm_active_percent", 1.0),
}
_OF_GPU = (LOAD, POWER, TENSOR, ACTIVE)
"""Readings of a whole GPU, whoever uses it."""


def top_of(what: str) -> float | None:
    """Return where the axis of a chart ends, None where its values decide."""
    return 100.0 if what in (SM, LOAD, TENSOR, ACTIVE) else None


def series_of(
    host: HostView, process: ProcView, what: str, window: float, history: HistoryOf
) -> Iterator[Series]:
    """Yield the courses of one chart: one for each GPU, or one for the process."""
    indices = {device.id: device.definition.index for device in host.devices}
    column, scale = _COLUMNS[what]
    if what in (MEMORY, SM, *_OF_GPU):
        entities = [
            (use.gpu if what in _OF_GPU else use.id, f"GPU {indices.get(use.gpu, '?')}")
            for use in living_uses(process)
        ]
    elif what == ALLOCATED:
        trainer = trainer_in(host, process)
        entities = [
            (one.id, f"GPU {indices.get(one.gpu, '?')}" if one.gpu is not None else "torch")
            for one in (trainer.allocators if trainer is not None else ())
        ]
    elif what in (STEP, LOSS):
        entities = [(trainer.id, what)] if (trainer := trainer_in(host, process)) else []
    else:
        entities = [(process.id, "CPU" if what == CPU else "RSS")]
    for token, (entity, label) in zip(TOKENS, entities, strict=False):
        past = history(entity, column, window)
        values = [None if value is None else value * scale for value in past.values]
        if any(value is not None for value in values):
            yield Series(label, token, past.seconds, values)


def least_of(what: str) -> float | None:
    """Return where the axis of a chart begins, None where its values decide."""
    return None if what == LOSS else 0.0
