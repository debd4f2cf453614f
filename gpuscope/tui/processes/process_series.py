"""This module reads the histories of one process that are drawn as charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...model.valid_history import while_it_steps
from ...store.view import HistoryOf, HostView, ProcView
from ...text.units import GIB
from ..charts.line import Series
from ..shared.host_trends import ONE_CORE
from ..shared.process_trends import living_uses, trainer_in
from ..theme import SERIES

MEMORY, SM, CPU, RSS = "GPU memory GiB", "utilisation %", "CPU % of one core", "RSS GiB"
LOAD, STEP, LOSS = "GPU-Util %", "Median step ms", "Loss"
POWER, TENSOR, ALLOCATED = "GPU power W", "Tensor cores %", "Allocated by torch GiB"
ACTIVE = "SMs with work %"
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


def charts_of(host: HostView, process: ProcView) -> tuple[str, ...]:
    """Return the charts of a process, three to a row, those first that tell most of it."""
    uses, trainer = living_uses(process), trainer_in(host, process)
    load = SM if any(use.number("sm_percent") is not None for use in uses) else LOAD
    loss = trainer is not None and trainer.number("loss") is not None
    if not uses:
        return (STEP, LOSS if loss else CPU, RSS) if trainer is not None else (CPU, RSS)
    if trainer is None:
        return (MEMORY, load, CPU, RSS, POWER, TENSOR)
    third = (ALLOCATED, TENSOR, POWER if loss else ACTIVE)
    return (MEMORY, load, STEP, RSS, CPU, LOSS if loss else POWER, *third)


def top_of(what: str, found: Sequence[Series]) -> float | None:
    """Return where the axis of a chart ends, None where its values decide.

    That of a CPU load is one core, as long as it is no more.
    """
    if what == CPU and not any((v or 0.0) > ONE_CORE for one in found for v in one.values):
        return ONE_CORE
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
    for token, (entity, label) in zip(SERIES, entities, strict=False):
        past = history(entity, column, window)
        if what in (STEP, LOSS):  # a trainer that stands draws nothing on
            past = while_it_steps(past, history(entity, "step", window), trainer_in(host, process))
        values = [None if value is None else value * scale for value in past.values]
        if any(value is not None for value in values):
            yield Series(label, token, past.seconds, values)


def least_of(what: str) -> float | None:
    """Return where the axis of a chart begins, None where its values decide."""
    return None if what == LOSS else 0.0
