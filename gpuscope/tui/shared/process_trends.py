"""This module reads the histories of one process, which stand in a line each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...model.valid_history import while_it_steps
from ...store.view import History, HistoryOf, HostView, ProcView, TrainerView, UseView, by_id
from ...text.units import bytes_text, duration_text
from ..charts.trends import Trend
from .host_trends import (
    CPU,
    GPU,
    GPU_MEMORY,
    LOSS,
    MEMORY,
    POWER,
    STEPS,
    of_a_core_text,
    share_text,
    top_of_cores,
    watts_text,
)
from .job_rows import loss_text


class TrendReading(NamedTuple):
    """A column of an entity, what it is called, and how its values are written."""

    label: str
    column: str
    token: str
    say: Callable[[float], str]
    top: float | None = None


OF_TRAINER = (
    TrendReading("median step", "step_seconds", STEPS, duration_text),
    TrendReading("loss", "loss", LOSS, loss_text),
)
OF_USE = (
    TrendReading("GPU memory", "used_bytes", GPU_MEMORY, bytes_text),
    TrendReading("its SM share", "sm_percent", GPU, share_text, 100.0),
)
OF_GPU = (
    TrendReading("GPU-Util", "utilization_percent", GPU, share_text, 100.0),
    TrendReading("SM active", "sm_active_percent", GPU, share_text, 100.0),
    TrendReading("tensor cores", "tensor_active_percent", GPU, share_text, 100.0),
    TrendReading("GPU power", "power_watts", POWER, watts_text),
)
"""Readings of a whole GPU, whoever uses it."""
ALLOCATED = TrendReading("allocated by torch", "allocated_bytes", GPU_MEMORY, bytes_text)
CORES = TrendReading("CPU", "cpu_percent", CPU, of_a_core_text)
OF_PROCESS = (
    CORES,
    TrendReading("RSS", "rss_bytes", MEMORY, bytes_text),
)
MOST_GPUS = 4


def trainer_in(host: HostView, process: ProcView) -> TrainerView | None:
    trainer = by_id(host.trainers, process.trainer)
    return trainer if trainer is not None and trainer.gone is None else None


def living_uses(process: ProcView) -> Sequence[UseView]:
    """Its uses of devices that have not ended."""
    return [use for use in process.uses if use.gone is None]


def process_trends(
    host: HostView, process: ProcView, window: float, history: HistoryOf
) -> list[Trend]:
    """Return the histories of a process that are known, those first that tell most of it."""
    found = _read(host, process, window, history)
    return [one for one in found if any(value is not None for value in one.history.values)]


def _read(host: HostView, process: ProcView, window: float, history: HistoryOf) -> Iterator[Trend]:
    devices = {device.id: device for device in host.devices}
    trainer, uses = trainer_in(host, process), living_uses(process)[:MOST_GPUS]

    def trend(reading: TrendReading, entity: int, gpu: str = "", top: float | None = None) -> Trend:
        past: History = history(entity, reading.column, window)
        age = None
        if trainer is not None and entity == trainer.id:  # one that stands draws nothing on
            past = while_it_steps(past, history(entity, "step", window), trainer)
            age = trainer.number("step_age_seconds")
        floor = None if reading.column == "loss" else 0.0
        label = f"{reading.label}{gpu}"
        top = top_of_cores(past) if reading is CORES else top or reading.top
        return Trend(label, reading.token, past, reading.say, top, floor, age)

    if trainer is not None:
        yield from (trend(reading, trainer.id) for reading in OF_TRAINER)
    for use in uses:
        device = devices.get(use.gpu)
        gpu = f", GPU {device.definition.index}" if device and len(uses) > 1 else ""
        yield from (trend(reading, use.id, gpu) for reading in OF_USE)
        for one in trainer.allocators if trainer is not None else ():
            if one.gpu == use.gpu:
                yield trend(ALLOCATED, one.id, gpu)
        if device is not None:
            limit = device.number("power_limit_watts")
            for reading in OF_GPU:
                top = limit if reading.column == "power_watts" else None
                yield trend(reading, device.id, gpu, top)
    yield from (trend(reading, process.id) for reading in OF_PROCESS)
