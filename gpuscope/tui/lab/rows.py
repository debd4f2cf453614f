"""Makes the table of runs, of this session and of the ledger.

The newest run comes first, and repeats of one setting are one row.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...lab.compare import mean
from ...lab.config import LabConfig
from ...lab.intervals import is_wide, of_ratios
from ...text.numbers import number
from ...text.ranges import ranges_text
from ...text.styled import Line
from ...text.units import brief_duration_text, bytes_text, pace_text, percent_text, short_age_text
from ...text.width import cells as text_cells
from ..runs.choices import SWITCHES
from ..runs.run import RunView
from ..runs.runs import run_name, sides
from ..theme import Glyphs
from ..widgets.bars import Meter
from ..widgets.table import GUTTER, Cell, Column, TableRow, gaps_of

if TYPE_CHECKING:
    from ...lab.ledger import Entry

NOW = "now"
DEFAULTS = LabConfig()
PACE_CELLS = 13
"""The cells of a pace with its interval."""
BARS_CELLS = 130
"""A table of so many cells has bars beside figures: of the fastest, and of the most memory."""
BARS = {"fast": "ok", "held": "allocated"}
WIDE_COLUMNS = (
    Column("p95", "P95", 7, align="right", priority=7),
    Column("wait", "INPUT WAIT", 10, align="right", priority=11),
    Column("warmup", "WARM-UP", 7, align="right", priority=12),
)
"""What a wide table has besides: the 95th percentile of the steps, and where else time went."""
YIELDING = ("warmup", "wait", "p95", "loss")
"""Columns that make room for a setting that is told in full, one after the other. The comparison
and the curves have them too.
"""
QUIET = ("seed", "steps", "batch", "device")
"""Named last: they seldom are what a run is about, or a run has them filled in by itself."""


def columns(cells: int, rows: Sequence[TableRow]) -> list[Column]:
    """Return the columns for a table of ``cells`` cells.

    Those in which no row says anything are left out.
    """
    repeated = any(_cells_of(row.cells.get("pace")) > 9 for row in rows)
    everything = (
        Column("mark", "", 2),
        Column("run", "RUN", 5, flex=1, most=10),
        Column("age", "WHEN", 6, align="right", priority=8),
        Column("source", "FROM", 6, priority=9),
        Column("setting", "SETTING", 26 if cells >= 60 else 20 if cells >= 40 else 10, flex=6),
        Column("pace", "SAMPLES/S", PACE_CELLS if repeated else 9, align="right"),
        *((Column("fast", "", 12, flex=1, most=24),) if cells >= BARS_CELLS else ()),
        Column("step", "STEP TIME", 9, align="right", priority=2),
        *(WIDE_COLUMNS if cells >= BARS_CELLS else ()),
        Column("peak", "PEAK", 8, align="right", priority=3),
        *((Column("held", "", 12, flex=1, most=24),) if cells >= BARS_CELLS else ()),
        Column("loss", "LAST LOSS", 9, align="right", priority=4),
        Column("steps", "STEPS", 7, align="right", priority=6),
    )
    may_be = ("peak", "loss", *(column.key for column in WIDE_COLUMNS))
    silent = {name for name in may_be if all(row.cells.get(name, DASH) is DASH for row in rows)}
    silent |= {bar for bar in ("fast", "held") if sum(bar in row.cells for row in rows) < 2}
    shown = [column for column in everything if column.key not in silent]

    # a whole setting says more than when a run was made, from where, and of how many steps
    def left(columns: Sequence[Column]) -> int:
        """Return the cells that these columns leave to the setting."""
        kept = [c for c in columns if c.key not in ("age", "source", "steps")]
        taken = sum(c.width for c in kept if c.key != "setting")
        return cells - GUTTER - taken - sum(gaps_of(kept, 1))

    longest = max((_cells_of(row.cells.get("setting")) for row in rows), default=0)
    for name in YIELDING:
        if longest > left(shown):
            shown = [column for column in shown if column.key != name]
    return [
        c._replace(width=max(c.width, min(longest, left(shown)))) if c.key == "setting" else c
        for c in shown
    ]


def _cells_of(cell: Cell | None) -> int:
    return sum(text_cells(text) for text, _ in cell) if isinstance(cell, list) else 0


DASH: Line = [("–", "faint")]


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount that becomes a bar where all rows are known, and is nothing before."""

    value: float

    def draw(self, width: int, glyphs: Glyphs) -> Line:
        return [(" " * width, "text")]


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A row: the newest entry of it, and all the repeats it stands for."""

    key: str
    entry: Entry
    entries: tuple[Entry, ...]


def gather_repeats(entries: Sequence[Entry]) -> list[ShownRun]:
    """Return rows in the order of entries; the repeats of one setting of a group are one."""
    out, seen = [], set()
    for entry in entries:
        if entry.id in seen:
            continue
        alike = tuple(sides(entries, entry))
        seen |= {one.id for one in alike}
        out.append(ShownRun(str(entry.id), entry, alike))
    return out


def place_in_pair(shown: ShownRun, a: int | None, b: int | None) -> int:
    """Return where a row is listed: run A, then run B, then all others in their order."""
    ids = {entry.id for entry in shown.entries}
    return 0 if a in ids else 1 if b in ids else 2


def preset_of(config: LabConfig, document: dict[str, Any]) -> str:
    """Return what was trained: the preset that the family's name stood for."""
    found = document.get("preset")
    return found if isinstance(found, str) and found else config.model


def setting(entry: Entry, against: LabConfig | None, device: str = "") -> Line:
    """Return what of a setting is not the default, such as ``gpt-tiny · amp bf16``.

    What ``against`` has otherwise comes first, and in another colour. ``device`` is named
    behind the model.
    """
    config = entry.config
    if config is None:
        return [(entry.label or entry.name, "text"), ("  unknown settings", "faint")]
    return setting_of(config, preset_of(config, entry.document), against, entry.label, device)


def setting_of(
    config: LabConfig, preset: str, against: LabConfig | None, label: str = "", device: str = ""
) -> Line:
    """Return the same for switches alone."""
    other = against is not None and against.model != config.model
    out: Line = [
        (preset, "accent" if other else "text"),
        *([(f" {device}", "faint")] if device else []),
    ]
    names = [t for t in SWITCHES if t.name != "model" and t.name not in QUIET]
    names += [t for t in SWITCHES if t.name in QUIET and t.name not in ("steps", "device")]
    unlike = {
        t.name
        for t in names
        if against is not None and getattr(against, t.name) != getattr(config, t.name)
    }
    for toggle in sorted(names, key=lambda t: t.name not in unlike):
        value, differs = getattr(config, toggle.name), toggle.name in unlike
        if value != getattr(DEFAULTS, toggle.name) or differs:
            text = toggle.text(value)
            name = toggle.name.replace("_", " ")
            setting = name if value is True else f"{name} {text}"
            out += [(" · ", "faint"), (setting, "accent" if differs else "muted")]
    return [*out, *([(f" · {label}", "faint")] if label else [])]


def row_of(
    shown: ShownRun, a: int | None, b: int | None, against: LabConfig | None, many_devices: bool
) -> TableRow:
    """Return the row of a run, or of the repeats of one, with its marks.

    ``many_devices`` says that not all runs were on one kind of device.
    """
    ids = {entry.id for entry in shown.entries}
    marks = [("A", "bold series1")] if a in ids else []
    marks += [("B", "bold series4")] if b in ids else []
    entry, many = shown.entry, len(shown.entries)
    device = entry.device or "" if many_devices else ""
    documents = [one.document for one in shown.entries]
    name = run_name(entry.id) + (f" ×{many}" if many > 1 else "")
    cells: dict[str, Cell] = {
        "mark": marks,
        "run": [(name, "title" if marks else "text")],
        "age": [(short_age_text(time.time() - entry.at), "faint")],
        "source": [(entry.source if entry.source != "recording" else "record", "faint")],
        "setting": _setting_of_all(shown, against if a not in ids else None, device),
    }
    if entry.cut_short and not many > 1:
        cells["setting"] = [("▲ ", "warn"), *setting(entry, against, device)]
    _figures(
        cells,
        _mean([d.get("samples_per_second") for d in documents]),
        _mean([_in(d, "step_seconds", "median") for d in documents]),
        _most([d.get("peak_allocated_bytes") for d in documents]),
        _mean([d.get("loss_last") for d in documents]),
        sum(int(n) for d in documents if isinstance(n := d.get("steps"), int)),
        within=interval_words([d.get("samples_per_second") for d in documents]),
    )
    for key, values in (
        ("p95", [_in(d, "step_seconds", "p95") for d in documents]),
        ("wait", [d.get("input_seconds") for d in documents]),
        ("warmup", [d.get("warmup_seconds") for d in documents]),
    ):
        seconds = _mean(values)
        cells[key] = [(brief_duration_text(seconds), "muted")] if seconds is not None else DASH
    if entry.cut_short and many == 1 and entry.config is not None and entry.config.steps:
        cells["steps"] = [(f"{entry.document.get('steps')}/{entry.config.steps}", "warn")]
    return TableRow(shown.key, cells)


def _setting_of_all(shown: ShownRun, against: LabConfig | None, device: str) -> Line:
    """Return the setting of a row; repeats that differ in their seeds have all of them at the end.

    The seeds are not what they differ from ``against`` in.
    """
    entry = shown.entry
    seeds = {one.config.seed for one in shown.entries if one.config is not None}
    if entry.config is None or len(seeds) < 2:
        return setting(entry, against, device)
    plain = replace(entry, config=replace(entry.config, seed=DEFAULTS.seed))
    against = replace(against, seed=DEFAULTS.seed) if against is not None else None
    return [*setting(plain, against, device), (f" · seeds {ranges_text(seeds)}", "faint")]


SOON = {"starting": "starts", "running": "runs", "stopping": "stops", "stopped": "ended"}
"""States in the six cells of a column."""


def live_row(run: RunView, state: str, against: LabConfig | None, many_devices: bool) -> TableRow:
    """Return the run in progress, or one that was stopped before its first step."""
    last, rates = run.last, run.rates
    token = "muted" if last is not None and last.warming_up else "text"
    early = "stopped before its first step" if state == "stopped" else ""
    cells: dict[str, Cell] = {
        "mark": [("○", "faint")] if state == "stopped" else [("●", "ok")],
        "run": [("–", "faint")] if state == "stopped" else [("now", "ok")],
        "source": [("here", "faint")],
        "setting": setting_of(
            run.config, run.preset, against, early, run.device if many_devices else ""
        ),
    }
    if last is None:
        cells["age"] = [(SOON.get(state, state), "muted")]
    _figures(
        cells,
        rates.samples_per_second,
        rates.step_seconds,
        run.peak_bytes,
        run.loss,
        run.step,
        token,
    )
    if rates.stopped_seconds is not None:
        cells["pace"], cells["step"] = [("no step", "warn")], DASH
    return TableRow(NOW, cells)


def _figures(
    cells: dict[str, Cell],
    pace: float | None,
    step: float | None,
    peak: float | None,
    loss: float | None,
    steps: int,
    token: str = "text",
    within: str = "",
) -> None:
    spread: Line = [(f" {within}", "muted")] if within else []
    cells["pace"] = [(pace_text(pace), token), *spread] if pace else DASH
    cells["step"] = [(brief_duration_text(step), token)] if step else DASH
    cells["peak"] = [(bytes_text(peak), token)] if peak else DASH
    if pace:
        cells["fast"] = Amount(pace)
    if peak:
        cells["held"] = Amount(peak)
    cells["loss"] = (
        [(f"{loss:.4f}" if abs(loss) < 100 else f"{loss:.3g}", token)] if loss is not None else DASH
    )
    cells["steps"] = [(f"{steps:,}", "muted")]


def with_bars(rows: Sequence[TableRow]) -> list[TableRow]:
    """Return the rows with bars of their pace and their peak, as parts of the most of all rows."""
    out = list(rows)
    for name, token in BARS.items():
        found = [cell.value for row in rows if isinstance(cell := row.cells.get(name), Amount)]
        for at, row in enumerate(out):
            cell = row.cells.get(name)
            if isinstance(cell, Amount):
                share = Meter(100 * cell.value / max(found), token)
                out[at] = row._replace(cells={**row.cells, name: share})
    return out


def interval_words(values: Sequence[object]) -> str:
    """Return how far the 95 % interval of a mean reaches, such as ``±1.2 %``.

    It is "" for a single run, and where the interval is too wide to say anything.
    """
    known = [value for value in _numbers(values) if value > 0]
    if len(known) < 2:
        return ""
    middle, low, high = of_ratios(known)
    if low is None or high is None or is_wide(middle, low, high):
        return ""
    return f"±{percent_text((high - low) / 2 / middle)}"


def _in(document: dict[str, Any], key: str, name: str) -> object:
    found = document.get(key)
    return found.get(name) if isinstance(found, dict) else None


def _numbers(values: Sequence[object]) -> list[float]:
    return [found for value in values if (found := number(value)) is not None]


def _mean(values: Sequence[object]) -> float | None:
    return mean(_numbers(values))


def _most(values: Sequence[object]) -> float | None:
    return max(_numbers(values), default=None)
