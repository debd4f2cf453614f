"""Make the samples of one scrape from a view of the store.

A value that is unknown has no sample; it is never 0. A process or device that has ended has no
series.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..model.allocator_split import COLUMNS, POOL_COLUMNS, Counters, split
from ..model.device_state import judge, silence
from ..model.lost_loss import loss_of
from ..model.stalls import is_stalled
from ..model.step_time import SPLIT, measured_step
from ..store.view import AllocView, DeviceView, Entity, HostView, Mark, TrainerView, View, by_id
from . import table
from .table import Metric

MAX_LABEL_CHARS = 128
SILENT_SECONDS = 15.0
"""Seconds without a new reading after which a trainer or device exports no more old values."""


@dataclass(frozen=True)
class SeriesLimits:
    """The largest numbers of series per host, and of allocators per trainer."""

    devices: int = 64
    trainers: int = 256
    allocators: int = 16


class Memory:
    """Counts what must not be lost between two views: the stalls of each trainer."""

    def __init__(self) -> None:
        self.stalls: dict[int, int] = defaultdict(int)
        self._last: dict[str, Mark] = {}

    def look(self, host: HostView) -> None:
        """Count the stalls that came since the last look.

        It must be called for every view, at least once a minute, or stalls are missed.
        """
        last = self._last.get(host.key)
        for mark in reversed(host.marks):
            if mark is last:
                break
            if mark.kind == "stall":
                self.stalls[mark.id] += 1
        if host.marks:
            self._last[host.key] = host.marks[-1]


@dataclass
class Page:
    """Samples by metric name: {labels: value}."""

    samples: dict[str, dict[tuple[str, ...], float]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def add(self, metric: Metric, labels: Iterable[object], value: object) -> None:
        """Add a sample if the value is a number, so that an unknown reading has no series."""
        if isinstance(value, bool):
            value = int(value)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            return
        key = tuple(_label(label) for label in labels)
        self.samples[metric.name][key] = value * metric.scale

    def readings(self, metrics: Iterable[Metric], labels: Iterable[object], entity: Entity) -> None:
        """Add the samples of all metrics that are columns of ``entity``."""
        labels = tuple(labels)
        for metric in metrics:
            self.add(metric, labels, entity.readings.get(metric.column))


def draw(view: View, memory: Memory, limits: SeriesLimits) -> Page:
    page = Page()
    for host in view.hosts:
        name = host.name
        live = host.link.state == "live"
        page.add(table.AGENT_UP, (name,), live)
        if not live:
            continue  # its last values may no longer be true
        _host(page, host)
        left_out = {"devices": 0, "trainers": 0, "allocators": 0}
        devices = [device for device in host.devices if device.gone is None]
        left_out["devices"] = len(devices[limits.devices :])
        for device in devices[: limits.devices]:
            _device(page, host, device)
        _trainers(page, host, left_out, limits)
        for kind, count in left_out.items():
            page.add(table.LEFT_OUT, (name, kind), count)
        _stalls(page, host, memory)
    return page


def _host(page: Page, host: HostView) -> None:
    page.add(table.DRIVER_UP, (host.name,), host.nvml is None)
    facts = host.definition
    versions = (facts.driver_version, facts.cuda_driver_version, facts.kernel)
    page.add(table.HOST_INFO, (host.name, *versions), 1)
    page.readings(table.HOST_READINGS, (host.name,), host)


def _device(page: Page, host: HostView, device: DeviceView) -> None:
    facts = device.definition
    labels = (host.name, facts.index, facts.uuid)
    page.add(table.DEVICE_INFO, (*labels, facts.name), 1)
    silent = silence(device.readings)
    answers = silent is None or silent.kind != "bad"
    if device.sampled_seconds is not None:
        page.add(table.DEVICE_UP, labels, answers and not _silent(host, device))
        state = judge(host, device)
        page.add(table.DEVICE_STATE, (*labels, state.kind, state.word), 1)
    page.add(table.DEVICE_TOTAL, labels, facts.total_bytes)
    if not _silent(host, device):
        page.readings(table.DEVICE_READINGS, labels, device)


def _trainers(page: Page, host: HostView, left_out: dict[str, int], limits: SeriesLimits) -> None:
    processes = {process.id: process for process in host.processes}
    used: set[tuple[str, ...]] = set()
    living = (t for job in host.jobs for t in job.trainers if t.gone is None)
    for trainer in living:
        labels = trainer_labels(host, trainer)
        if len(used) >= limits.trainers or labels in used:
            left_out["trainers"] += 1
            continue
        used.add(labels)
        silent = _silent(host, trainer)
        page.add(table.PROBE_UP, labels, not silent)
        facts = trainer.definition
        script = (facts.script or "").rsplit("/", 1)[-1]
        page.add(
            table.TRAINER_INFO,
            (*labels, script, facts.world_size, facts.torch_version, facts.origin),
            1,
        )
        process = processes.get(trainer.process) if trainer.process is not None else None
        if process is not None and process.gone is None:
            page.readings(table.PROCESS_READINGS, labels, process)
        if silent:
            continue
        page.readings(table.TRAINER_READINGS, labels, trainer)
        if trainer.number("step_age_seconds") is not None:
            page.add(table.STALLED, labels, is_stalled(trainer))
        lost = loss_of(host, trainer) is not None
        if lost or trainer.number("loss") is not None:
            page.add(table.LOSS_LOST, labels, lost)
        page.add(table.MEASURED_STEP, labels, measured_step([trainer]))
        for part in SPLIT:
            page.add(table.STEP_PART, (*labels, part), trainer.number(f"{part}_seconds"))
        on_gpu = [a for a in trainer.allocators if a.definition.ordinal >= 0 and a.gone is None]
        left_out["allocators"] += len(on_gpu[limits.allocators :])
        for allocator in on_gpu[: limits.allocators]:
            _allocator(page, host, labels, allocator)


def _allocator(page: Page, host: HostView, of: tuple[str, ...], allocator: AllocView) -> None:
    if _silent(host, allocator):
        return
    device = by_id(host.devices, allocator.gpu)
    # No driver says which card it is, so the series has torch's own device number and is marked so.
    gpu = f"cuda:{allocator.definition.ordinal}" if device is None else device.definition.index
    labels = (*of, gpu, allocator.definition.uuid)
    page.readings(table.ALLOCATOR_READINGS, labels, allocator)
    counts = [allocator.number(column) for column in COLUMNS]
    reserved, allocated = counts[0], counts[1]
    if reserved is not None and allocated is not None:
        page.add(table.CACHED, labels, max(0.0, reserved - allocated))
    known = [int(count) for count in counts if count is not None]
    if len(known) < len(counts):
        return
    whole = split(
        Counters(*known, *(int(allocator.number(column) or 0) for column in POOL_COLUMNS))
    )
    for part, size in (
        ("live", whole.live),
        ("rounding", whole.rounding),
        ("awaiting_free", whole.awaiting),
        ("inactive_split", whole.inactive_split),
        ("releasable", whole.releasable),
        ("private_pool_idle", whole.pool_idle),
    ):
        page.add(table.RESERVED_PART, (*labels, part), size)


def _stalls(page: Page, host: HostView, memory: Memory) -> None:
    """Add the stalls of the trainers that have series."""
    shown = page.samples[table.PROBE_UP.name]
    for trainer in host.trainers:
        if trainer.gone is not None:
            memory.stalls.pop(trainer.id, None)
            continue
        labels = trainer_labels(host, trainer)
        if labels in shown:
            page.add(table.STALLS, labels, memory.stalls.get(trainer.id, 0))


def trainer_labels(host: HostView, trainer: TrainerView) -> tuple[str, ...]:
    """Return the values of the labels in :data:`table.TRAINER`.

    A trainer outside of a job is named by its script, and its pid tells it from others.
    """
    facts = trainer.definition
    job = facts.job or (facts.script or "").rsplit("/", 1)[-1]
    known = bool(facts.job) and facts.rank is not None
    return tuple(map(_label, (host.name, job, facts.rank, "" if known else facts.pid, facts.pod)))


def _silent(host: HostView, entity: Entity) -> bool:
    if entity.sampled_seconds is None:
        return True
    return (
        host.sampled_seconds is not None
        and host.sampled_seconds - entity.sampled_seconds > SILENT_SECONDS
    )


def _label(value: object) -> str:
    return "" if value is None else str(value)[:MAX_LABEL_CHARS]
