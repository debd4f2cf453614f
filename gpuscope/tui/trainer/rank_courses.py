"""The cells of a wide table of ranks that show the last minutes, and the memory of each GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...model.device_trainings import hung_since
from ...model.valid_history import while_it_steps
from ...text.styled import Line, merged
from ..charts.bins import Bins
from ..charts.chart_series import thin
from ..charts.load_strips import binned
from ..charts.spark import LOAD_TOP, is_steady, load_line, own_top, spark
from ..shared.device_bar import memory_bar
from ..theme import Glyphs
from ..widgets.table import Cell, TableRow

if TYPE_CHECKING:
    from ...store.view import HistoryOf, HostView, TrainerView

COURSE_CELLS = 20


class RankCourses:
    """What the table shows of the last minutes: kept until the next of its columns is complete."""

    def __init__(self) -> None:
        self._key: object = None
        self._known: dict[str, dict[str, Cell]] = {}

    def added_to(
        self,
        rows: Sequence[TableRow],
        host: HostView,
        history: HistoryOf,
        window: float,
        glyphs: Glyphs,
    ) -> list[TableRow]:
        """Return the rows with the courses of their ranks and the memory of their GPUs."""
        shown = {row.key for row in rows}
        ranks = [t for t in host.trainers if t.key in shown]
        now = host.sampled_seconds
        if now is None or not ranks:
            return list(rows)
        each = window / COURSE_CELLS
        bins = Bins.ending(now - each, window, COURSE_CELLS)
        key = bins, glyphs.up, shown
        if key != self._key:
            self._key, self._known = key, _courses(host, ranks, history, bins, glyphs)
        devices = {device.id: device for device in host.devices}
        bars = {
            t.key: memory_bar(host, devices[one.gpu])
            for t in ranks
            for one in t.allocators
            if one.gpu in devices
        }
        return [
            row._replace(
                cells={
                    **row.cells,
                    **self._known.get(row.key, {}),
                    **({"room": bars[row.key]} if row.key in bars else {}),
                }
            )
            for row in rows
        ]


def _courses(
    host: HostView,
    ranks: Iterable[TrainerView],
    history: HistoryOf,
    bins: Bins,
    glyphs: Glyphs,
) -> dict[str, dict[str, Cell]]:
    """Return the course of the step time and of the load for each rank.

    All step times have one scale, on which the slowest rank is the highest. Those that hardly
    change, and are alike, are a line without a height.
    """
    asked, end = bins.width * (bins.count + 2), bins.end
    out: dict[str, dict[str, Cell]] = {}
    paces: dict[str, list[float | None]] = {}
    for rank in ranks:
        seconds = history(rank.id, "step_seconds", asked)
        steps = history(rank.id, "step", asked)
        pace = thin(while_it_steps(seconds, steps, rank))
        paces[rank.key] = binned(pace, bins, end, hold_last=False)
        out[rank.key] = {}
        gpus = {one.gpu for one in rank.allocators}
        device = next((d for d in host.devices if d.id in gpus), None)
        if device is not None:
            past = history(device.id, "utilization_percent", asked)
            values = binned(thin(past), bins, end)
            since = hung_since(host, device)
            wasted = bins.count if since is None else bins.index(since)
            if any(value is not None for value in values):
                out[rank.key]["busy"] = load_line(values, bins.count, LOAD_TOP, wasted, glyphs)
    every = [value for values in paces.values() for value in values]
    flat, top = is_steady(every), own_top(every)
    for key, values in paces.items():
        if any(value is not None for value in values):
            out[key]["course"] = _pace_line(values, top, flat, glyphs)
    return out


def _pace_line(values: Sequence[float | None], top: float, flat: bool, glyphs: Glyphs) -> Line:
    """Return step times as a line of columns; where no step ended there is a dotted line."""
    first = next((at for at, value in enumerate(values) if value is not None), 0)
    drawn = spark(values[first:], len(values), top, glyphs)
    if flat:
        drawn = "".join(char if char in (" ", glyphs.unknown) else glyphs.groove for char in drawn)
    return merged(
        [
            (char, "faint" if value is None else "series1")
            for char, value in zip(drawn, values, strict=True)
        ]
    )
