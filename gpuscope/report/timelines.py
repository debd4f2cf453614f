"""Make timelines of the histories of devices, trainers and the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from ..model.device_state import mute
from ..model.ranks import name_of
from ..model.valid_history import while_it_answers, while_it_steps
from ..store.view import DeviceView, Entity, History, HistoryOf, HostView, TrainerView
from ..text.clock import clock_text
from ..text.units import bytes_text, duration_text, percent_text
from .content import Curve, Strip, Timeline, TimeMark, Tone

MAX_BUCKETS = 600
MAX_POINTS = 60_000
"""Points of all curves of a page, which bounds its size: with more curves each has fewer."""
LEAST_BUCKETS = 40
MAX_STRIPS = 16
MAX_JOBS = 6
"""Jobs with charts of their own."""
HEADROOM = 0.05
"""The share by which a scale ends above the highest value."""
HOLD_SECONDS = 15.0
"""How long a reading stays valid without a newer one, as on the screens."""
MARKED: Mapping[str, Tone] = {
    "oom": "bad",
    "retry": "warn",
    "stall": "bad",
    "resumed": "ok",
    "phase": "",
}
Form = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Span:
    """The time that a timeline shows, in seconds of the host's monotonic clock.

    ``wall`` is the wall-clock time at ``begin``, None where it is not known. ``buckets`` is in how
    many parts the time is cut.
    """

    begin: float
    end: float
    wall: float | None
    buckets: int

    @property
    def seconds(self) -> float:
        return max(self.end - self.begin, 0.0)

    @property
    def local(self) -> float | None:
        """Return the beginning as seconds of the local calendar, as charts want it."""
        return None if self.wall is None else self.wall + offset_of(self.wall)

    def text_at(self, seconds: float) -> str:
        """Return a moment on the wall clock, or as the time since the beginning."""
        if self.wall is None:
            return f"{duration_text(max(seconds - self.begin, 0.0))} after the beginning"
        return clock_text(self.wall + seconds - self.begin)


def offset_of(wall: float) -> float:
    """Return the seconds that local time was ahead of UTC at a wall-clock time."""
    try:
        return float(time.localtime(wall).tm_gmtoff)
    except (OverflowError, ValueError, OSError):
        return 0.0


def zone_text(wall: float) -> str:
    """Return the zone of the times of a page: ``UTC+01:00``."""
    minutes = round(offset_of(wall) / 60)
    sign = "-" if minutes < 0 else "+"
    return f"UTC{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}" if minutes else "UTC"


def curve(history: History, span: Span, token: str, name: str = "") -> Curve | None:
    """Return the lowest and highest values of each part of the time; None without any value."""
    count, width = span.buckets, span.seconds / span.buckets
    if not history or width <= 0:
        return None
    low: list[float | None] = [None] * count
    high: list[float | None] = [None] * count
    hold = max(HOLD_SECONDS, 2 * width)
    last, seen = None, -inf
    found = False
    for moment, value in zip(history.seconds, history.values, strict=True):
        at = int((moment - span.begin) / width)
        if moment > span.end + width or at < 0:
            last, seen = value, moment
            continue
        at = min(at, count - 1)
        if last is not None and moment - seen <= hold:
            for between in range(max(int((seen - span.begin) / width) + 1, 0), at):
                if low[between] is None:
                    low[between] = high[between] = last
        last, seen = value, moment
        if value is None or not isfinite(value):
            continue
        found = True
        before, above = low[at], high[at]
        low[at] = value if before is None else min(before, value)
        high[at] = value if above is None else max(above, value)
    return Curve(token, low, high, name) if found else None


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is drawn; ``form`` writes its values."""

    name: str
    token: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A quantity over time: a strip for each entity, with a curve for each column.

    ``top`` returns the upper end of an entity's scale; None means the highest value of all.
    """

    title: str
    source: str
    columns: tuple[Column, ...]
    form: Form
    top: Callable[[Entity], float | None] | None = None
    bottom: float | None = 0.0


def _percent(value: float) -> str:
    return percent_text(value / 100, whole=True)


def _watts(value: float) -> str:
    return f"{value:.0f} W"


def _hundred(_: Entity) -> float:
    return 100.0


def _memory_of(device: Entity) -> float | None:
    assert isinstance(device, DeviceView)
    return device.definition.total_bytes


OF_DEVICES = (
    Chart(
        "Load of the GPUs", "NVML",
        (
            Column("utilization_percent", "series1", "a kernel runs"),
            Column("tensor_active_percent", "series2", "tensor cores"),
        ),
        _percent, _hundred,
    ),
    Chart(
        "Memory of the GPUs", "NVML", (Column("used_bytes", "allocated"),), bytes_text, _memory_of
    ),
    Chart(
        "Power of the GPUs", "NVML", (Column("power_watts", "series3"),), _watts,
        lambda device: device.number("power_limit_watts"),
    ),
)  # fmt: skip
OF_TRAINERS = (
    Chart("Time of a step", "probe", (Column("step_seconds", "series1"),), duration_text),
    Chart("Loss", "probe", (Column("loss", "series4"),), lambda value: f"{value:.4g}", None, None),
)
OF_ALLOCATORS = Chart(
    "Memory of torch", "torch's allocator through the probe",
    (
        Column("reserved_bytes", "cached", "reserved"),
        Column("allocated_bytes", "allocated", "allocated"),
    ),
    bytes_text,
)  # fmt: skip
OF_HOST = Chart("CPU of the host", "/proc", (Column("cpu_percent", "series6"),), _percent, _hundred)


def buckets_for(host: HostView, history: HistoryOf, hosts: int = 1) -> int:
    """Return into how many parts the time of a host is cut on a page with this many hosts.

    They are no more than the samples, and fewer the more curves there are.
    """
    devices = min(len(host.devices), MAX_STRIPS) * sum(len(one.columns) for one in OF_DEVICES)
    jobs = [len(job.trainers) for job in host.jobs if job.trainers][:MAX_JOBS]
    ranks = sum(min(count, MAX_STRIPS) for count in jobs)
    trainers = ranks * (len(OF_TRAINERS) + len(OF_ALLOCATORS.columns))
    entities: list[tuple[Entity, str]] = [(host, "load_1m")]
    entities += [(one, "used_bytes") for one in host.devices[:1]]
    entities += [(one, "step") for one in host.trainers]
    samples = max(len(history(one.id, column, None)) for one, column in entities)
    most = min(MAX_BUCKETS, MAX_POINTS // hosts // max(devices + trainers, 1))
    return max(min(most, samples), LEAST_BUCKETS)


def timeline(
    chart: Chart,
    entities: Sequence[tuple[str, Entity, Sequence[Entity]]],
    history: HistoryOf,
    span: Span,
    marks: Sequence[TimeMark] = (),
) -> Timeline | None:
    """Return a chart of these entities, None where none of them has a value.

    Each comes with its name and the others that say how long its readings are valid: the trainer
    whose steps they are of, or the device.
    """
    drawn: list[tuple[str, Entity, list[Curve]]] = []
    for name, entity, others in entities[:MAX_STRIPS]:
        curves = []
        for column in chart.columns:
            found = history(entity.id, column.name, None)
            for other in others:
                found = _while_valid(found, other, history)
            made = curve(found, span, column.token, column.legend)
            if made is not None:
                curves.append(made)
        if curves:
            drawn.append((name, entity, curves))
    if not drawn:
        return None
    known = [
        value
        for _, _, curves in drawn
        for one in curves
        for value in (*one.low, *one.high)
        if value is not None
    ]
    lowest = chart.bottom if chart.bottom is not None else min(known)
    most = max(known)
    highest = most + HEADROOM * (most - lowest) if most > lowest else lowest + 1.0
    strips = []
    for name, entity, curves in drawn:
        top = chart.top(entity) if chart.top is not None else None
        top = top if top is not None and top > lowest else highest
        last = next((v for v in reversed(curves[0].high) if v is not None), None)
        value = "" if last is None else chart.form(last)
        strips.append(
            Strip(name, curves, lowest, top, (chart.form(lowest), chart.form(top)), value)
        )
    notes = []
    if len(entities) > MAX_STRIPS:
        notes.append(f"{MAX_STRIPS} of {len(entities)} are shown.")
    return Timeline(
        chart.title, strips, span.seconds, span.local, marks, notes, source=chart.source,
        when=_resolution(span),
    )  # fmt: skip


def _while_valid(found: History, other: Entity, history: HistoryOf) -> History:
    """Return a history without the stale values of a stalled trainer or a lost device."""
    if not isinstance(other, DeviceView):
        trainer = other if isinstance(other, TrainerView) else None
        return while_it_steps(found, history(other.id, "step", None), trainer)
    if mute(other) is None:
        return found
    return while_it_answers(found, history(other.id, "used_bytes", None))


def _resolution(span: Span) -> str:
    """Say what a point of a curve is, and that the figure at the right is the last one."""
    each = duration_text(span.seconds / span.buckets)
    return f"lowest to highest of each {each}; at the right the last value"


def of_devices(
    host: HostView, history: HistoryOf, span: Span, marks: Sequence[TimeMark]
) -> Iterable[Timeline]:
    rows = [(f"GPU {one.definition.index}", one, ()) for one in host.devices]
    for chart in OF_DEVICES:
        made = timeline(chart, rows, history, span, marks)
        if made is not None:
            yield made


def of_trainers(
    host: HostView,
    trainers: Sequence[TrainerView],
    history: HistoryOf,
    span: Span,
    marks: Sequence[TimeMark],
) -> Iterable[Timeline]:
    """Yield the charts of the ranks of a job."""
    rows = [(name_of(one), one, (one,)) for one in trainers]
    found = [timeline(chart, rows, history, span, marks) for chart in OF_TRAINERS]
    allocators = [
        (
            f"{name_of(trainer)}, cuda:{allocator.definition.ordinal}",
            allocator,
            tuple(device for device in host.devices if device.id == allocator.gpu),
        )
        for trainer in trainers
        for allocator in trainer.allocators
        if allocator.definition.ordinal >= 0
    ]
    found.append(timeline(OF_ALLOCATORS, allocators, history, span, marks))
    yield from (one for one in found if one is not None)


def of_host(
    host: HostView, history: HistoryOf, span: Span, marks: Sequence[TimeMark]
) -> Timeline | None:
    """Return the chart of the host's CPU."""
    return timeline(OF_HOST, [("CPU", host, ())], history, span, marks)


def marks_of(host: HostView, trainers: Iterable[TrainerView], span: Span) -> list[TimeMark]:
    ids = {one.id for one in trainers}
    ids |= {allocator.id for one in host.trainers if one.id in ids for allocator in one.allocators}
    return [
        TimeMark(
            (one.seconds - span.begin) / span.seconds,
            f"{one.kind}: {one.text}",
            MARKED.get(one.kind, ""),
        )
        for one in host.marks
        if one.id in ids and span.seconds > 0 and span.begin <= one.seconds <= span.end
    ]
