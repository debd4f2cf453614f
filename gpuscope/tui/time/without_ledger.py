"""The tab about time where the wall clock is not divided: it shows everything else that is known.

That is the step time of each rank and its history, the parts of a step as the probe times them, and
the load of the GPUs and of the host over the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ...model.odd_parts import parts_of
from ...model.pace import PARTS_STEPS, counts_of, pace_of
from ...model.ranks import name_of
from ...model.step_time import MIXED, split_of, words_of
from ...store.view import DeviceView, HostView, TrainerView
from ...text.styled import Line, Piece
from ...text.units import DASH, brief_duration_text, duration_text, percent_text, window_text
from ..charts.load_lanes import HOST_LANES, LOADS, gpu_lanes, host_lanes, process_lanes
from ..charts.load_strips import MOST_ROWS, Lane, LoadStrips
from ..shared.windows import LONG_WINDOWS
from ..shell.session import Session
from ..widgets.bars import Meter
from ..widgets.pane import set_title
from ..widgets.table import Cell, Column, TableRow
from .text import LEDGER

STRIP_FRAME = 4
"""Of the strips besides their lanes: the frame, and the axis with its labels."""
LEAST_STRIP_ROWS = 5
FEW_GPUS, MOST_PARTS = 4, 2
"""Each of more GPUs has so many lanes at most: more of them are a wall."""
SHORT_PARTS = {
    "input": "INPUT",
    "h2d": "COPY",
    "compute": "COMPUTE",
    "optimizer": "OPTIM",
    "communication": "COMM",
    "other": "OTHER",
}
MIXED_TITLE = "COMPUTE+OTHER"
"""Of the column ``compute`` where nothing marks its begin in a step: :data:`MIXED` in short."""
PRIORITY = ("input", "communication", "compute", "optimizer", "h2d", "other")
"""Which parts stay where not all have room: the first ones say which rank keeps others waiting."""
PART_MEANINGS = {
    "input": "The training thread waits for the next batch of the DataLoader.",
    "h2d": "Batches are copied to the GPU, and nothing else runs there meanwhile.",
    "compute": "The forward and the backward pass{on}.",
    "optimizer": "The optimizer's step{on}.",
    "communication": "Communication that overlaps with no computation: the rank waits for others.",
    "other": "Everything else in a step: logging, metrics, your own code.",
}


MIXED_MEANING = (
    "All but the other parts: the forward and the backward pass{on}, and whatever the script does "
    "between two steps, such as a validation. Only the samples of its thread tell them apart."
)
"""What ``compute`` means where nothing marks its begin in a step."""


class Charted(NamedTuple):
    """The strips of load with their title."""

    lanes: Sequence[Lane]
    title: str


def strip_rows(lanes: int) -> int:
    """Return the rows of a panel in which a line is free between any two of so many high lanes."""
    return lanes * MOST_ROWS + lanes - 1 + STRIP_FRAME


def fitted_strip_rows(room: int, lanes: int, devices: int) -> int:
    """Return the most rows of ``room`` that so many lanes fill, with the frame of their panel.

    A line is free between any two lanes, or between the groups of lanes of one line.
    """
    each = lanes - len(HOST_LANES) > devices  # a GPU with several lanes is a group
    groups = devices if each else min(devices, 1)
    filled = [lanes + groups, lanes + lanes - 1, MOST_ROWS * lanes + lanes - 1]
    fits = [rows + STRIP_FRAME for rows in filled if rows + STRIP_FRAME <= room]
    return max(fits, default=room)


# ── the ranks ──


def rank_columns(rows: Sequence[TableRow]) -> list[Column]:
    """Return the columns that say something of any rank."""
    columns = [
        Column("rank", "RANK", 8, flex=1, most=16),
        Column("gpu", "GPU", 4, align="right", priority=9),
        Column("count", "STEP", 7, align="right", priority=8),
        Column("step", "MEDIAN", 8, align="right"),
        Column("p95", "P95", 8, align="right", priority=4),
        *(
            Column(name, title, 9, align="right", priority=PRIORITY.index(name) + 2)
            for name, title in SHORT_PARTS.items()
        ),
        Column("util", "UTIL", 5, align="right", priority=8),
        Column("meter", "", 6, flex=2, most=40, priority=11),
        Column("sm", "SM", 5, align="right", priority=9),
        Column("tensor", "TENS", 5, align="right", priority=9),
        Column("dram", "DRAM", 5, align="right", priority=10),
    ]
    if not any(row.cells.get("other") for row in rows):  # then it is in this one
        width = len(MIXED_TITLE)
        columns = [
            c._replace(title=MIXED_TITLE, width=width) if c.key == "compute" else c for c in columns
        ]
    kept = ("rank", "step")
    return [c for c in columns if c.key in kept or any(row.cells.get(c.key) for row in rows)]


NO_ODD_PARTS: Mapping[str, frozenset[str]] = MappingProxyType({})


def rank_rows(
    host: HostView,
    ranks: Sequence[TrainerView],
    marks: Mapping[str, Piece],
    odd: Mapping[str, frozenset[str]] = NO_ODD_PARTS,
) -> list[TableRow]:
    """Return a line for each rank: its steps, their parts and the load of its GPU.

    ``marks`` has the sign of those that stand out, by their key, with its token; they come first.
    ``odd`` has the parts of a step that take far longer there than on the others. In one that has
    stopped they are of the time before, and no reason for its mark.
    """
    by_id = {device.id: device for device in host.devices}
    counts = counts_of(ranks)
    out = []
    for trainer in sorted(ranks, key=lambda one: (one.key not in odd, one.key not in marks)):
        sign, token = marks.get(trainer.key, (" ", "text"))
        device = next((by_id[a.gpu] for a in trainer.allocators if a.gpu in by_id), None)
        number, usual = counts.get(trainer.key), trainer.number("step_seconds")
        slow = trainer.number("step_seconds_p95")
        past = "muted" if pace_of([trainer]).stopped else "text"
        cells: dict[str, Cell] = {
            "rank": [(f"{sign} ", token), (name_of(trainer), token)],
            "step": [(brief_duration_text(usual), past)] if usual else [(DASH, "faint")],
        }
        cells |= {"count": [(f"{number:,.0f}", "muted")]} if number is not None else {}
        cells |= {"p95": [(brief_duration_text(slow), "muted")]} if slow else {}
        standing_out = odd.get(trainer.key, frozenset())
        cells |= {
            name: [(f"{sign} ", token), (brief_duration_text(max(seconds, 0.0)), token)]
            if name in standing_out and past == "text"
            else [(brief_duration_text(max(seconds, 0.0)), past)]
            for name, seconds in parts_of(trainer).items()
        }
        cells |= _device_cells(device) if device is not None else {}
        out.append(TableRow(trainer.key, cells))
    return out


def _device_cells(device: DeviceView) -> dict[str, Cell]:
    cells: dict[str, Cell] = {"gpu": [(str(device.definition.index), "muted")]}
    columns = zip(("util", "sm", "tensor", "dram"), LOADS, strict=True)
    for name, (_, column) in columns:
        share = device.number(column)
        if share is not None:
            cells[name] = [(percent_text(share / 100, whole=True), "muted")]
    load = device.number(LOADS[0][1])
    return cells | ({"meter": Meter(load, "load4")} if load is not None else {})


# ── the load ──


def next_window(session: Session, host: HostView, now: float, by: int) -> tuple[float, float]:
    """Return the window of the charts after this one, or before it, and the longest there is.

    The longest shows all the history there is.
    """
    known = session.history(host.id, "cpu_percent").seconds
    span = (host.sampled_seconds or 0.0) - known[0] if known else 0.0
    longest = next((one for one in LONG_WINDOWS if one >= span), LONG_WINDOWS[-1])
    allowed = [one for one in LONG_WINDOWS if one <= longest]
    beyond = [one for one in allowed if (one > now if by > 0 else one < now)]
    return ((min if by > 0 else max)(beyond) if beyond else now), longest


def lanes_of(devices: Sequence[DeviceView], ranks: Sequence[TrainerView]) -> int:
    """Return how many lanes there are to draw of these GPUs or ranks, and of the host."""
    if not devices:
        return len(HOST_LANES) + sum(rank.process is not None for rank in ranks)
    columns = [column for _, column in LOADS]
    known = [c for c in columns if any(d.number(c) is not None for d in devices)]
    parts = min(max(len(known), 1), MOST_PARTS if len(devices) > FEW_GPUS else len(LOADS))
    return len(devices) * parts + len(HOST_LANES)


def loads(
    session: Session,
    host: HostView,
    devices: Sequence[DeviceView],
    ranks: Sequence[TrainerView],
    window: float,
    rows: int,
    over: str,
) -> Charted:
    """Return the lanes of these GPUs and of the host that fit into ``rows``.

    Where not all parts of the load of each GPU fit, the first ones are left: how busy it is.
    Without a GPU there are lanes for the processes of the ``ranks``. ``over`` says since when they
    are known, where that is later than their trainer's steps.
    """
    room = max(rows - STRIP_FRAME, 1)
    each = (room - len(HOST_LANES)) // max(len(devices), 1) - 1  # a line before each
    parts = max(min(each, len(LOADS)), 1)
    lanes = gpu_lanes(session.history, host, devices[:room], window, parts)
    lanes += host_lanes(session.history, host, window, bool(lanes))[: room - len(lanes)]
    if not devices:
        lanes += process_lanes(session.history, host, ranks, window)[: room - len(lanes)]
    whose = "its" if ranks else "the"
    what = (
        f"Load of {whose} GPUs and of the host"
        if devices
        else "Load of the host's cores and memory"
    )
    return Charted(lanes, f"{what} {over}" if over else f"{what}, {window_text(window)}")


def draw_loads(
    strips: LoadStrips, charted: Charted, window: float, now: float | None, clock: float | None
) -> None:
    """Draw these lanes."""
    set_title(strips, charted.title)
    strips.show(charted.lanes, window, now, clock)


# ── in words ──


def basis_text(trainer: TrainerView) -> str:
    """Return of which steps the parts are: ``mean of the last 32 steps of rank 0``."""
    of = f" of {name_of(trainer)}" if trainer.definition.rank is not None else ""
    return f"Step breakdown, mean of the last {PARTS_STEPS}{of}"


def part_detail(name: str, ranks: Sequence[TrainerView]) -> tuple[str, list[Line]]:
    """Return the name of a part of a step, what it is, and what it takes on each rank."""
    words = words_of({part for rank in ranks for part in split_of(rank)})[name]
    return f"{words[0].upper()}{words[1:]}", list(_part_lines(name, words == MIXED, ranks))


def _part_lines(name: str, mixed: bool, ranks: Sequence[TrainerView]) -> Iterable[Line]:
    on = " on the GPU" if any(rank.definition.cuda for rank in ranks) else ""
    yield [((MIXED_MEANING if mixed else PART_MEANINGS[name]).format(on=on), "text")]
    yield []
    for rank in ranks:
        parts = split_of(rank)
        whole = sum(max(0.0, seconds) for seconds in parts.values())
        if name in parts and whole:
            seconds = max(0.0, parts[name])
            text = f"{duration_text(seconds)} of {duration_text(whole)}"
            share = percent_text(seconds / whole)
            yield [(f"{name_of(rank):12}", "muted"), (f"{text}, {share}", "text")]
    yield []
    yield [(f"The mean of the last {PARTS_STEPS} measured steps.", "muted")]
    yield [("", "muted"), (LEDGER, "muted")]
