"""This module makes the rows of the table of devices.

A row has the load, the share of the tensor cores, memory by layer, temperature, power, clock,
and the state with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...model.device_state import HANGS, NEARLY_FULL, NO_PROGRESS, DeviceState, judge, owners
from ...model.memory_layers import living
from ...store.view import DeviceView, HistoryOf, HostView, no_history
from ...text import styled
from ...text.styled import Line, Piece
from ...text.units import amount_text, percent_text, short_age_text
from ..background.view_state import SORTS
from ..device.load_text import in_few_words
from ..shared.device_bar import LAYER_NAMES, memory_bar, named_layers
from ..shared.device_state_text import glyph_of, in_short, in_shortest, token_of
from ..theme import Glyphs, Tokens
from ..widgets.bars import Meter
from ..widgets.status import short_model
from ..widgets.table import Cell, Column, TableRow, gaps_of
from .sparklines import SPARK_CELLS

COLUMNS = (
    Column("index", "#", 3, align="right"),
    Column("model", "MODEL", 6, flex=1, most=16, priority=9),
    Column("load", "UTIL", 5, align="right"),
    Column("meter", "", 6, flex=1, most=14, priority=7),
    Column("spark", "LAST 60 s", SPARK_CELLS, priority=10),
    Column("tensor", "TENS", 5, align="right", priority=5),
    Column("vram", "VRAM", 9, flex=4, most=60, priority=4),
    Column("used", "USED/TOTAL GiB", 14, align="right"),
    Column("temperature", "TEMP", 5, align="right", priority=6),
    Column("power", "POWER", 8, align="right", priority=3),
    Column("clock", "CLOCK", 5, align="right", priority=8),
    Column("state", "STATE", 10, flex=5, whole=True),
)
WIDE_COLUMNS = (
    Column("index", "#", 3, align="right"),
    Column("model", "MODEL", 6, flex=1, most=14, priority=9),
    Column("load", "UTIL", 5, align="right"),
    Column("spark", "LAST 60 s", SPARK_CELLS, priority=7),
    Column("sm", "SM", 5, align="right", priority=5),
    Column("tensor", "TENS", 5, align="right", priority=4),
    Column("dram", "DRAM", 5, align="right", priority=5),
    Column("vram", "VRAM", 9, flex=4, most=60, priority=2),
    Column("used", "USED/TOTAL GiB", 14, align="right"),
    Column("temperature", "TEMP", 5, align="right", priority=3),
    Column("power_bar", "POWER", 8, priority=10),
    Column("power", "", 8, align="right", priority=1),
    Column("pcie", "PCIE GiB/s", 12, align="right", priority=11),
    Column("nvlink", "NVLINK GiB/s", 12, align="right", priority=11),
    Column("clock", "CLOCK", 5, align="right", priority=8),
    Column("state", "STATE", 10, flex=5, whole=True),
)
"""For a wide terminal. PCIe and NVLink are what goes out / what comes in."""
SPARSE = (
    "load", "meter", "spark", "tensor", "sm", "dram", "temperature", "power_bar", "power", "pcie",
    "nvlink", "clock",
)  # fmt: skip
"""Columns that are left out where no device has anything to say in them."""
SORT_COLUMNS = {
    "index": "index",
    "used": "used",
    "utilization": "load",
    "power": "power",
    "temperature": "temperature",
}


WORDS_CELLS = 108
"""From this width on, a table has room for a few words behind the state."""


def columns(
    sort: str, rows: Sequence[TableRow] = (), room: int = 0, wide: bool = False
) -> list[Column]:
    """Return the columns for ``rows`` in ``room`` cells, the sorted one marked.

    A column in which no row says anything gives its cells away. The state gets what its longest
    text needs, as far as the other columns have their least.
    """
    marked = SORT_COLUMNS[sort]
    out: list[Column] = []
    for column in WIDE_COLUMNS if wide else COLUMNS:
        empty = column.key in SPARSE and column.key != marked
        if rows and empty and all(says_nothing(row.cells.get(column.key)) for row in rows):
            continue
        title = column.title
        if column.key == marked and sort != "index":
            title = "USED▾/TOT. GiB" if column.key == "used" else title[: column.width - 1] + "▾"
        if column.key == "state":
            kept = [one for one in out if not one.priority or one.key in KEPT]
            least = sum(one.width for one in kept) + sum(gaps_of([*kept, column], 1))
            longest = max((_width_of(row.cells.get("state")) for row in rows), default=0)
            for key, brief in BRIEF.items():
                at = next((i for i, one in enumerate(out) if one.key == key), None)
                if at is not None and longest > room - least - 2:
                    least -= out[at].width - brief.width
                    sorted_by = marked == key and sort != "index"
                    named = brief.sorted_title if sorted_by else brief.title
                    out[at] = out[at]._replace(width=brief.width, title=named)
            wanted = -(-longest // STATE_STEP) * STATE_STEP
            column = column._replace(width=max(column.width, min(wanted, room - least - 2)))
        out.append(column if title == column.title else column._replace(title=title))
    return out


class Brief(NamedTuple):
    """How wide a column is, and its titles, where its figures stand without their limit."""

    width: int
    title: str
    sorted_title: str


BRIEF = {
    "power": Brief(5, "POWER", "POWE▾"),
    "used": Brief(9, "USED GiB", "USED▾ GiB"),
    "vram": Brief(5, "VRAM", "VRAM"),
}
"""Columns that give cells away to a long state, in this order: a limit seldom changes, and a bar
can be short.
"""
STATE_STEP = 4
"""The state's column grows by so many cells, so that the bars beside it seldom move."""
KEPT = ("tensor", "vram", "temperature", "power")
"""Columns that a long reason of a state does not drive away."""


@dataclass(frozen=True, slots=True)
class OfLimit:
    """A cell that says how much of which limit, and leaves the limit out where it is narrow."""

    full: tuple[Piece, ...]
    brief: tuple[Piece, ...]

    def draw(self, width: int, glyphs: Glyphs) -> Line:
        return list(self.full if styled.cells(self.full) <= width else self.brief)


def says_nothing(cell: Cell | None) -> bool:
    """Return whether a cell is a dash, or not there."""
    if cell is None or isinstance(cell, Meter):
        return cell is None or cell.percent is None
    return cell in ("", [], [("–", "faint")])


def _width_of(cell: Cell | None) -> int:
    return styled.cells(cell) if isinstance(cell, list) else 0


def sort_devices(host: HostView, sort: str, text: str = "") -> list[DeviceView]:
    """Return the devices that contain ``text`` in the order that ``sort`` names.

    The largest value comes first, but for the order by index; devices whose value is unknown
    come last.
    """
    devices = [
        d for d in host.devices if not text or text.casefold() in _haystack(host, d).casefold()
    ]
    if sort not in SORTS or sort == "index":
        return sorted(devices, key=lambda d: d.definition.index)
    column = {
        "used": "used_bytes",
        "utilization": "utilization_percent",
        "power": "power_watts",
    }.get(sort, "temperature_celsius")

    def rank(device: DeviceView) -> tuple[bool, float, int]:
        value = device.number(column)
        return value is None, -(value or 0.0), device.definition.index

    return sorted(devices, key=rank)


def worst_device(host: HostView, history: HistoryOf, than: str | None = None) -> str | None:
    """Return the key of the device that is worst off, None where none is.

    With ``than`` it is None, too, where that device is as badly off.

    Behind those that no program can rely on come the one where a job is stuck, the one whose memory
    runs out first, what else warns, and last those that only wait for a rank elsewhere.
    """

    def badness(device: DeviceView) -> int:
        state = judge(host, device, history)
        if state.kind == "bad":
            return 5
        if state.urgent:
            return 4
        if state.word == "filling":
            return 3
        return 0 if state.kind != "warn" else 1 if state.word in HANGS else 2

    grades = {device.key: badness(device) for device in host.devices}
    worst = max(grades, key=lambda key: grades[key], default=None)
    least = grades.get(than, 0) if than is not None else 0
    return worst if worst is not None and grades[worst] > least else None


def _haystack(host: HostView, device: DeviceView) -> str:
    verdict = judge(host, device)
    using = {u.process for u in device.uses if u.gone is None}
    names = [
        f"{p.definition.pid} {p.definition.user} {p.definition.command}"
        for p in host.processes
        if p.id in using
    ]
    d = device.definition
    return " ".join([f"gpu {d.index}", d.name or "", d.uuid, verdict.word, verdict.reason, *names])


def device_row(
    host: HostView,
    device: DeviceView,
    tokens: Tokens,
    words: bool = True,
    history: HistoryOf = no_history,
    wide: bool = False,
    spark: Line | None = None,
) -> TableRow:
    """Return the row of one device.

    When the device does not answer, the reason takes the place of figures that would be old.
    With ``words`` the row also says what the load of a healthy device means. A ``wide`` table has
    more columns, and ``spark``, the course of the load, unless a chart shows that.
    """
    verdict = judge(host, device, history)
    cells: dict[str, Cell] = {
        "index": [(str(device.definition.index), "title")],
        "model": short_model(device.definition.name),
        "state": [
            *state_cell(verdict, tokens, words),
            *(_healthy_note(host, device, verdict) if words else ()),
        ],
    }
    if words and verdict.word == "ok" and (fault := in_few_words(device)) in FAULTS:
        cells["state"] = [(f"{tokens.glyphs.idle} {fault}", "idle")]  # not beside a green "ok"
    cells |= _load(device, verdict) | _memory(host, device) | _rest(device)
    if wide:
        cells |= _wide(device)
    if spark is not None:
        cells["spark"] = spark
        del cells["meter"]
    return TableRow(device.key, cells, "muted")


FAULTS = ("tensor idle", "mostly idle SMs")
"""What a load can mean that costs time, though no rule warns of it."""


def state_cell(verdict: DeviceState, tokens: Tokens, words: bool = True) -> Line:
    """Glyph, word, and the reason as far as there is room; without ``words`` only its heart."""
    pieces = [(f"{glyph_of(verdict, tokens.glyphs)} {verdict.word}", token_of(verdict))]
    shorten = in_short if words else in_shortest
    return [*pieces, (f" {shorten(verdict.reason)}", "muted")] if verdict.reason else pieces


def _healthy_note(host: HostView, device: DeviceView, verdict: DeviceState) -> Line:
    """Return what there is to say of a healthy device.

    That is what its load means, or since when it has none and who holds it nevertheless.
    """
    since, now = device.number("idle_since_seconds"), host.sampled_seconds
    if verdict.reason:
        return []
    if verdict.kind == "idle":
        known = since and now is not None and now - since >= 1
        parts = [f"≥{short_age_text(now - since)}"] if known and since and now is not None else []
        trains = any(living(device))  # with a probe in it: the jobs say more
        held = " and ".join(owners(host, device).values()) if not trains else ""
        parts += [f"held by {held}"] if held else []
        return [(f" {' · '.join(parts)}", "muted")] if parts else []
    words = in_few_words(device) if verdict.word == "ok" else ""
    return [(f" {words}", "muted")] if words else []


def _load(device: DeviceView, verdict: DeviceState) -> dict[str, Cell]:
    load, tensor = device.number("utilization_percent"), device.number("tensor_active_percent")
    idle = load is not None and load < 1
    wasted = verdict.word in HANGS
    starved = verdict.word in NO_PROGRESS
    token = "muted" if wasted else "warn" if starved else "idle" if idle else "ok"
    multiplies = "warn" if verdict.word == "tensor idle" else "text"
    return {
        "load": [(percent_text(load / 100, whole=True), token)]
        if load is not None
        else [("–", "faint")],
        "meter": Meter(load, token, idling=wasted),
        "tensor": [(percent_text(tensor / 100, whole=True), multiplies)]
        if tensor is not None
        else [("–", "faint")],
    }


def _memory(host: HostView, device: DeviceView) -> dict[str, Cell]:
    used, total = device.number("used_bytes"), device.definition.total_bytes
    tight = bool(total and used is not None and used > NEARLY_FULL * total)
    held = (
        amount_text(used) if used is not None else "–",
        "faint" if used is None else "warn" if tight else "text",
    )
    return {
        "vram": memory_bar(host, device),
        "used": OfLimit((held, (f"/{amount_text(total)}" if total else "/–", "muted")), (held,)),
    }


def _rest(device: DeviceView) -> dict[str, Cell]:
    heat, power, limit = (
        device.number(c) for c in ("temperature_celsius", "power_watts", "power_limit_watts")
    )
    clock = device.number("sm_clock_mhz")
    faint: Line = [("–", "faint")]
    return {
        "temperature": [(f"{heat:.0f}°C", "text")] if heat is not None else faint,
        "power": OfLimit(
            (watts := (f"{power:.0f}", "text"), (f"/{limit:.0f}W" if limit else "W", "muted")),
            (watts, ("W", "muted")),
        )
        if power is not None
        else faint,
        "clock": [(f"{clock:.0f}M", "muted")] if clock is not None else faint,
    }


def _wide(device: DeviceView) -> dict[str, Cell]:
    """Return the cells that only a wide table has."""
    faint: Line = [("–", "faint")]
    cells: dict[str, Cell] = {}
    for name in ("sm", "dram"):
        share = device.number(f"{name}_active_percent")
        cells[name] = (
            [(percent_text(share / 100, whole=True), "text")] if share is not None else faint
        )
    for name in ("pcie", "nvlink"):
        out, back = (device.number(f"{name}_{way}_bytes_per_second") for way in ("tx", "rx"))
        known = out is not None and back is not None
        text = f"{amount_text(out or 0.0)}/{amount_text(back or 0.0)}"
        cells[name] = [(text, "muted")] if known else faint
    power, limit = device.number("power_watts"), device.number("power_limit_watts")
    cells["power_bar"] = Meter(
        100 * power / limit if power is not None and limit else None, "muted"
    )
    return cells


def legend(host: HostView, tokens: Tokens) -> Line:
    """Return what the layers of the bars mean."""
    out: Line = []
    named = named_layers(host)
    for label, token in LAYER_NAMES:
        if token in named:
            out += [(tokens.glyphs.fill(token), token), (f" {label} ", "muted")]
    return out
