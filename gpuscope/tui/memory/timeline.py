"""This chart shows the memory of one subject over time.

It has the layers, the peak, the steps of the trainer, and what happened to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ...store.view import AllocView, DeviceView, Entity, History, HostView, Mark, TrainerView
from ...text.process_name import short_script
from ..charts.chart_series import device_layers, process_layers
from ..charts.marks import Tick
from ..charts.stack_columns import Layer
from ..charts.stacked import Peak
from ..shared.windows import shortest_window
from ..shell.session import Session

WINDOWS = (60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0)
"""What can be looked at, in seconds."""
LEAST_BEFORE_SECONDS = 2.0
"""A chart that begins as much earlier than its training shows bytes of another."""
COLUMNS = 120
"""A chart of a long window is drawn again when it has moved by one of so many columns: before that
it is the same.
"""
OOM_TICKS = {"withdrawn": ("spared", "warn"), "unconfirmed": ("oom", "warn")}
"""By what became of it; else it is ``bad``."""


COLUMN_OF = {True: "used_bytes", False: "parameter_bytes"}
"""What is known of a GPU, and of a trainer on the CPU, for as long as there is anything."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """All that the chart shows of the last ``window_seconds``."""

    layers: Sequence[Layer]
    seconds: Sequence[float]
    window_seconds: float
    capacity: float | None
    ticks: tuple[Tick, ...]
    steps: History
    peak: Peak | None


def timeline(
    session: Session,
    host: HostView,
    device: DeviceView | None,
    trainer: TrainerView | None,
    allocator: AllocView | None,
    window: float,
) -> Timeline:
    """The timeline of a device, or where there is none of a trainer's memory on the CPU.

    The shortest ``window`` is shorter as long as less is known.
    """
    top = None
    if (entity := device or allocator) is not None:
        window = shown_seconds(session, host, entity, COLUMN_OF[device is not None], window)
    if device is not None:
        layers, seconds = device_layers(session.history, host, device, window)
        capacity = device.definition.total_bytes
        top = allocator.number("peak_allocated_bytes") if allocator else None
    else:
        process = trainer.process if trainer is not None else None
        layers, seconds = process_layers(session.history, process, allocator, window)
        capacity = None
    steps = session.history(trainer.id, "step", window) if trainer else History()
    ids = {one.id for one in (trainer, allocator) if one is not None}
    if device is not None:
        ids |= {a.id for a in device.allocators}
    own = session.history(allocator.id, "allocated_bytes", window) if allocator else History()
    since = own.seconds[0] if own.seconds else -inf
    return Timeline(
        layers,
        seconds,
        window,
        float(capacity) if capacity else None,
        (*beginning(own, seconds, trainer), *ticks(host.marks, ids)),
        steps,
        Peak(top, "peak since the start", since) if top else None,
    )


def shown_seconds(
    session: Session, host: HostView, entity: Entity, column: str, window: float
) -> float:
    """Return the seconds that a chart of an entity shows: a minute is shorter while less is known.

    ``column`` is one that is known for as long as anything is.
    """
    if window != WINDOWS[0]:
        return window
    known = session.history(entity.id, column, window).seconds
    first = known[0] if known else -inf
    return shortest_window((host.sampled_seconds or 0.0) - first, window)


def beginning(
    own: History, seconds: Sequence[float], trainer: TrainerView | None
) -> tuple[Tick, ...]:
    """Return where a training begins, if the chart has bytes from before it: of somebody else."""
    if trainer is None or not own.seconds or not seconds:
        return ()
    if own.seconds[0] - seconds[0] < LEAST_BEFORE_SECONDS:
        return ()
    name = short_script(trainer.definition.script)
    return (Tick(own.seconds[0], "begin", "accent", f"{name} begins"),)


def ticks(marks: Sequence[Mark], ids: set[int]) -> tuple[Tick, ...]:
    """Return the marks of these entities, in order of time.

    An OOM that is judged later keeps its place: one that the training survived becomes another
    glyph.
    """
    out: list[Tick] = []
    seen: dict[tuple[int, object], int] = {}
    for mark in marks:
        if mark.id not in ids:
            continue
        if mark.kind == "oom":
            state, which = (
                str(mark.data.get("state", "seen")),
                (mark.id, mark.data.get("requested_bytes")),
            )
            tick = Tick(mark.seconds, *OOM_TICKS.get(state, ("oom", "bad")))
            if state != "seen" and which in seen:
                place = seen.pop(which)
                out[place] = tick._replace(seconds=out[place].seconds)
                continue
            seen[which] = len(out)
            out.append(tick)
        elif mark.kind == "retry":
            out.append(Tick(mark.seconds, "retry", "warn"))
        elif mark.kind == "stall":
            out.append(Tick(mark.seconds, "stall", "bad"))
        elif mark.kind == "resumed":
            out.append(Tick(mark.seconds, "phase", "ok", "goes on"))
        elif mark.kind == "phase":
            out.append(Tick(mark.seconds, "phase", "accent", str(mark.data.get("phase", ""))[:8]))
    return tuple(out)


def column_of(now: float | None, window: float) -> float | None:
    """Changes when a chart over ``window`` seconds should be drawn again."""
    return float(int((now or 0.0) / (window / COLUMNS))) if window > WINDOWS[0] else now


def longest_window(history: History, duration: float | None = None) -> float:
    """Return the widest window that still shows more than the one before it.

    It depends on what is kept here, or in a replay on its whole ``duration``.
    """
    span = history.seconds[-1] - history.seconds[0] if len(history) > 1 else 0.0
    span = max(span, duration or 0.0)
    return next((window for window in WINDOWS if window >= span), WINDOWS[-1])


def next_window(now: float, longest: float, by: int) -> float:
    """Return the window after (``by`` 1) or before (-1) this one, round and round."""
    allowed = [window for window in WINDOWS if window <= longest]
    at = allowed.index(now) if now in allowed else 0
    return allowed[(at + by) % len(allowed)]
