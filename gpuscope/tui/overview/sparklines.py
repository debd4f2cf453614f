"""This module draws the history of one entity as a sparkline for each reading worth one."""

from __future__ import annotations

from collections.abc import Iterator

from ...model.device_trainings import hung_since
from ...store.view import DeviceView, Entity, History, HistoryOf, HostView, ProcView, TrainerView
from ...text.styled import Line
from ...text.units import bytes_text, duration_text, percent_text, window_text
from ..cells import fit
from ..charts.bins import Bins
from ..charts.load_strips import binned
from ..charts.spark import LOAD_TOP, load_line, own_top, spark
from ..shell.keymap import key_of
from ..shell.session import Session
from ..theme import Glyphs

SPARK_SECONDS, SPARK_CELLS = 60.0, 20
NAME_CELLS, RANGE_CELLS = 28, 24
COLUMNS: dict[type[Entity], tuple[tuple[str, str], ...]] = {
    DeviceView: (
        ("utilisation", "utilization_percent"),
        ("tensor pipe", "tensor_active_percent"),
        ("memory used", "used_bytes"),
        ("power", "power_watts"),
        ("temperature", "temperature_celsius"),
    ),
    ProcView: (("CPU, of one core", "cpu_percent"), ("RSS", "rss_bytes")),
    TrainerView: (("step", "step_seconds"), ("loss", "loss")),
}
USE_COLUMNS = (("memory", "used_bytes"), ("SM share", "sm_percent"))


def course_lines(
    session: Session, entity: Entity, width: int, window: float, glyphs: Glyphs
) -> Iterator[Line]:
    """Yield the histories of the last ``window`` seconds, at most ``width`` cells wide.

    There are none where nothing is known over time.
    """
    wanted = [(name, entity, column) for name, column in COLUMNS.get(type(entity), ())]
    if isinstance(entity, ProcView):
        gpus = {
            d.id: f"GPU {d.definition.index}"
            for d in (session.host.devices if session.host else ())
        }
        for use in entity.uses:
            if use.gone is None:
                wanted += [
                    (f"{gpus.get(use.gpu, 'GPU')} {name}", use, column)
                    for name, column in USE_COLUMNS
                ]
    if isinstance(entity, TrainerView):
        wanted += [
            (f"allocated, cuda:{a.definition.ordinal}", a, "allocated_bytes")
            for a in entity.allocators
        ]
    lines = []
    for name, owner, column in wanted:
        history = session.history(owner.id, column, window)
        known = [value for value in history.values if value is not None]
        if known:
            cells = max(width - NAME_CELLS - RANGE_CELLS, 8)
            share = column.endswith("_percent") and max(known) <= 100
            top = 100.0 if share else own_top(known)
            now = session.host.sampled_seconds if session.host else None
            drawn = spark(columns(history, window, cells, now), cells, top, glyphs)
            span = f"  {_text(column, min(known))} … {_text(column, max(known))}"
            lines.append([(fit(name, NAME_CELLS), "muted"), (drawn, "series1"), (span, "text")])
    if lines:
        longer, shorter = key_of("zoom(1)", "DetailScreen"), key_of("zoom(-1)", "DetailScreen")
        yield []
        yield [
            (f"The last {window_text(window)}", "title"),
            (f"   {longer}: longer   {shorter}: shorter", "faint"),
        ]
        yield from lines


def columns(
    history: History, window: float, count: int, now: float | None = None
) -> list[float | None]:
    """Return the mean of what was known in each column of the window, from the first known on.

    There are at most ``count``, of which the last contains ``now``, by default the newest reading.
    """
    end = history.seconds[-1] if now is None else now
    values = binned(history, Bins.ending(end, window, count), end)
    first = next((at for at, value in enumerate(values) if value is not None), len(values))
    return values[first:]


def _text(column: str, value: float) -> str:
    if column.endswith("_bytes"):
        return bytes_text(value)
    if column.endswith("_percent"):
        return percent_text(value / 100)
    if column.endswith("_seconds"):
        return duration_text(value)
    unit = {"power_watts": " W", "temperature_celsius": " °C"}.get(column, "")
    return f"{value:.4g}{unit}" if unit == "" else f"{value:.0f}{unit}"


class LoadSparks:
    """The load of each device over the last minute, in a few cells.

    A cell is drawn when its time is over: between two of them nothing has to be painted.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, Line]] = {}

    def of(self, host: HostView, device: DeviceView, history: HistoryOf, glyphs: Glyphs) -> Line:
        """Return the course of a device's load up to now.

        Since its job hangs it is hatched.
        """
        now = host.sampled_seconds
        if now is None:
            return []
        each = SPARK_SECONDS / SPARK_CELLS
        bins = Bins.ending(now - each, SPARK_SECONDS, SPARK_CELLS)
        since = hung_since(host, device)
        well = SPARK_CELLS if since is None else min(max(bins.index(since), 0), SPARK_CELLS)
        key = (bins, glyphs.up, well)
        known = self._known.get(device.id)
        if known is None or known[0] != key:
            past = history(device.id, "utilization_percent", SPARK_SECONDS + 2 * each)
            values = binned(past, bins, now)
            drawn = load_line(values, SPARK_CELLS, LOAD_TOP, well, glyphs)
            known = self._known[device.id] = (key, drawn)
        return known[1]
