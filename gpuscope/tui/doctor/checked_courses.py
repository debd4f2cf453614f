"""How the readings that the Doctor's rules judge went in the last minutes, one for each area."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from ...model.ranks import name_of
from ...model.step_time import input_columns, input_share
from ...model.valid_history import while_it_steps
from ...store.view import Entity, HostView, TrainerView
from ...text.ranges import interval_text
from ...text.styled import Line
from ...text.units import bytes_text, duration_text, window_text
from ..charts.bins import Bins
from ..charts.load_strips import binned
from ..charts.spark import own_top, spark
from ..theme import Glyphs
from .checked_figures import Sources, living, used_devices, whole_percent

LEAST_SECONDS, SECONDS = 10.0, 300.0
CELLS = 24
"""Of a course: its figures and its name stand behind it in full."""
_One = TypeVar("_One", bound=Entity)


class _Course(NamedTuple):
    """A reading with a name, its words, and the top of its scale where that is fixed."""

    name: str
    entity: Entity
    column: str
    text: Callable[[float], str]
    top: float | None = None


def course_lines(
    area: str, host: HostView, sources: Sources, glyphs: Glyphs, rows: int = 1
) -> list[Line]:
    """Return the course of what an area judges in so many rows, none where nothing is known."""
    found = _course(area, host, sources)
    now = host.sampled_seconds
    if found is None or now is None:
        return []
    past = sources.readings(found.entity.id, found.column, SECONDS)
    if isinstance(found.entity, TrainerView):  # a step that does not end is not the last one again
        steps = sources.readings(found.entity.id, "step", SECONDS)
        past = while_it_steps(past, steps, found.entity)
    known = [value for value in past.values if value is not None]
    if len(known) < 2:
        return []
    span = max(LEAST_SECONDS, min(SECONDS, now - past.seconds[0]))
    values = binned(past, Bins.ending(now - span / CELLS, span, CELLS), now)
    top = found.top if found.top is not None else own_top(known)
    low, high = found.text(min(known)), found.text(max(known))
    if low == high:  # the figure above says it
        return []
    number, _, unit = low.rpartition(" ")  # the unit once: the line has few cells to spare
    between = interval_text(number if unit and high.endswith(f" {unit}") else low, high)
    out: list[Line] = []
    for row in reversed(range(rows)):
        levels = [None if v is None else v / top * rows - row for v in values] if top else []
        part = [None if v is None else _level(v, row) for v in levels]
        drawn = spark(part, CELLS, 1.0, glyphs).replace(glyphs.unknown, " ")
        out.append([(drawn, "series1")])
    out[-1].append((f"  {between} ", "text"))
    out[-1].append((f"{found.name}, last {window_text(span)}", "muted"))
    return out


def _level(share: float, row: int) -> float | None:
    """Return how far a row is filled, None where it is empty.

    The lowest one has a line for 0 too: a blank there is a time of which nothing is known.
    """
    return min(share, 1.0) if share > 0 or row == 0 else None


def _course(area: str, host: HostView, sources: Sources) -> _Course | None:
    ranks, used = living(host), used_devices(host)
    devices = [d for d in host.devices if d.gone is None]
    if area == "step time" and (slowest := _most(ranks, "step_seconds")) is not None:
        return _Course(_of("step", slowest, ranks), slowest, "step_seconds", duration_text)
    waits = [t for t in ranks if input_share(t) is not None]
    if area == "input" and waits:
        most = max(waits, key=lambda t: input_share(t) or 0.0)
        return _Course(_of("wait", most, ranks), most, input_columns(most)[0], duration_text)
    if area == "GPU use" and used:
        least = min(used, key=lambda d: d.number("tensor_active_percent") or 0.0)
        name = f"tensor cores of GPU {least.definition.index}"
        return _Course(name, least, "tensor_active_percent", whole_percent, 100.0)
    if area == "memory" and used:
        known = [r for r in sources.rooms() if r.headroom_bytes is not None]
        gpu = min(known, key=lambda r: r.headroom_bytes or 0.0).allocator.gpu if known else None
        device = next((d for d in used if d.id == gpu), used[0])
        name, total = f"in use on GPU {device.definition.index}", device.definition.total_bytes
        return _Course(name, device, "used_bytes", bytes_text, total)
    if area == "GPUs" and (hottest := _most(devices, "temperature_celsius")) is not None:
        name = f"GPU {hottest.definition.index}"
        return _Course(name, hottest, "temperature_celsius", lambda degrees: f"{degrees:.0f} °C")
    return _Course("CPU", host, "cpu_percent", whole_percent, 100.0) if area == "host" else None


def _most(found: Sequence[_One], column: str) -> _One | None:
    known = [one for one in found if one.number(column) is not None]
    return max(known, key=lambda one: one.number(column) or 0.0, default=None)


def _of(what: str, one: TrainerView, ranks: Sequence[TrainerView]) -> str:
    return f"{what} of {name_of(one)}" if len(ranks) > 1 else what
