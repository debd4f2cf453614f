"""Says what a search for the fastest settings has found: its table, its figures, its lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...lab.intervals import ratio_text
from ...lab.tune.findings import BASELINE, NEEDED, STATUS, TOO_SHORT
from ...lab.tune.judge import brief_text
from ...lab.tune.result import text_of
from ...text import styled
from ...text.numbers import number
from ...text.styled import Line, Piece
from ...text.units import brief_duration_text, duration_text, percent_text, window_text
from ...text.width import cells as text_cells
from ..cells import fit
from ..shell.keymap import key_of
from ..theme import Glyphs
from ..widgets.bars import Meter
from ..widgets.table import Cell, Column, TableRow
from .compare import value_text

if TYPE_CHECKING:
    from ..runs.tuning import Tuning

COLUMNS = (
    Column("label", "CONFIGURATION", 18, flex=4, most=44),
    Column("pace", "SAMPLES/S", 9, align="right"),
    Column("bar", "", 10, flex=1, most=30, priority=6),
    Column("speed", "SPEED-UP", 9, flex=6, most=22, priority=2),
    Column("reserved", "RESERVED", 9, align="right", priority=3),
    Column("warm_up", "WARM-UP", 8, align="right", priority=4),
    Column("loss", "LOSS", 7, align="right", priority=5),
    Column("result", "RESULT", 13, flex=3),
)
DASH: list[Piece] = [("–", "faint")]
LABEL_CELLS = 34
"""So many cells the configuration has, as far as it needs them."""
EMPTY: tuple[Cell | None, ...] = (None, "", [], DASH)
"""Cells that say nothing."""
TOKENS = {
    "baseline": "text",
    "kept": "ok",
    "does_not_fit": "warn",
    "failed": "bad",
    "loss": "warn",
    "not_tried": "faint",
    "not_proved": "warn",
}
"""The tokens of the status of a candidate, where it is not muted."""
FAST = ("baseline", "kept")
"""The status of candidates that were the best at some time: their bars stand out."""


def columns_for(rows: Sequence[TableRow]) -> list[Column]:
    """Return the columns in which some row says something."""
    label, *others = COLUMNS
    longest = max((styled.cells(row.cells["label"]) for row in rows), default=0)  # type: ignore[arg-type]
    label = label._replace(width=max(label.width, min(longest, LABEL_CELLS)))
    return [
        column
        for column in (label, *others)
        if not rows or any(row.cells.get(column.key) not in EMPTY for row in rows)
    ]


def search_line(tuning: Tuning) -> Line:
    """Return in one line how far a search is, or how it ended."""
    if not tuning.over:
        return [
            ("▸ ", "ok"),
            ("searching for the fastest settings: ", "title"),
            (f"{spent_text(tuning)}, {len(tuning.candidates)} tried  ", "muted"),
            (key_of("lab_tune"), "accent"),
            (": look", "muted"),
        ]
    said, token = ended_text(tuning)
    return [("search: ", "muted"), (said, token)]


def ended_text(tuning: Tuning) -> Piece:
    """Return the result of a search that has ended, or why there is none."""
    if tuning.found:
        return str(tuning.document.get("sentence") or ""), "title"
    if tuning.code == 2:
        return "stopped; the same search continues from here", "warn"
    return " ".join(tuning.failure) or "ended without a result", "bad"


def spent_text(tuning: Tuning) -> str:
    """Return how much of its budget a search has spent; of one that has ended only what it took."""
    spent, budget = duration_text(tuning.spent_seconds), window_text(tuning.budget_seconds)
    return f"ended after {spent}" if tuning.over else f"{tuning.state}, {spent} of {budget}"


def summary_lines(tuning: Tuning, cells: int) -> Iterable[Line]:
    """Return what is in progress, or the result with what belongs to it."""
    if not tuning.over:
        trial = tuning.trial
        if not trial:
            yield [("looking at torch and the GPU", "muted")]
        else:
            yield [
                (f"run {trial.get('run')}  ", "muted"),
                (str(trial.get("label") or ""), "text"),
                (f"  step {trial.get('step')}  ({trial.get('purpose')})", "muted"),
            ]
        best = tuning.document.get("best")
        if tuning.best is not None and isinstance(best, dict):
            pace = value_text(number(best.get("samples_per_second")), "samples/s")
            yield [
                ("best so far  ", "muted"),
                (str(best.get("label")), "ok"),
                (f"  {pace} samples/s; proved at the end", "muted"),
            ]
        return
    said, token = ended_text(tuning)
    yield from styled.wrap([(said, token)], cells)
    if tuning.found:
        for line in _figures(tuning.document):
            yield from styled.wrap(line, cells)
        yield from styled.hang_lines(_what_next(tuning), cells)


def _what_next(tuning: Tuning) -> Iterable[Line]:
    """Say what the result lacks, and which keys go on from here."""
    document, enough = tuning.document, tuning.enough_seconds
    if document.get("changed") and document.get("left_out"):
        yield [("left out  ", "muted"), (str(document["left_out"]), "text")]
    line: Line = [("next      ", "muted")]
    if tuning.best is not None:
        line += [(key_of("take", "TuneScreen"), "accent"), (" set the Lab's settings so, ", "text")]
        line += [(key_of("copy", "TuneScreen"), "accent"), (" copy the lines", "text")]
        line += [(", ", "text")] if enough is not None else []
    if enough is not None:
        again = f" search again for {window_text(enough)}"
        line += [(key_of("new", "TuneScreen"), "accent"), (again, "text")]
    if len(line) == 1:
        other = " search with other settings as the baseline: set them in the Lab"
        line += [(key_of("new", "TuneScreen"), "accent"), (other, "text")]
    yield line


def _figures(document: Mapping[str, Any]) -> Iterable[Line]:
    line: Line = []
    before, after = (document.get(side) or {} for side in ("baseline", "best"))
    for name, key, unit in (
        ("samples/s", "samples_per_second", "samples/s"),
        ("reserved", "peak_reserved_bytes", "bytes"),
        ("warm-up", "warmup_seconds", "s"),
    ):
        old, new = number(before.get(key)), number(after.get(key))
        if old is not None and new is not None and document.get("changed"):
            line += [("   ", "text")] * bool(line)
            line += [(f"{name} ", "muted"), (value_text(old, unit), "text")]
            line += [(" → ", "faint"), (value_text(new, unit), "title")]
    if line:
        yield line
    steps = document.get("pays_back_after_steps")
    if isinstance(steps, int):
        yield [("compiling ", "muted"), (f"pays off after {steps:,} steps", "text")]


def gain_lines(document: Mapping[str, Any]) -> Iterable[Line]:
    """Return what each switch of the winner brings, one below the other."""
    rows = []
    for row in document.get("switches") or ():
        brings, reason, name = row.get("brings"), str(row.get("reason")), str(row.get("name"))
        unknown = reason if reason in NEEDED else f"unknown: {reason}"
        text = speed_text(brings) if isinstance(brings, dict) else unknown
        before, after = (text_of(name, row.get(side)) for side in ("before", "after"))
        rows.append((name, f"{before} → {after}", text))
    names, changes = (max((text_cells(row[at]) for row in rows), default=0) for at in (0, 1))
    for name, change, text in rows:
        yield [
            (fit(name, names + 2), "accent"),
            (fit(change, changes + 2), "text"),
            (text, "title"),
        ]


def speed_text(speed: Mapping[str, Any]) -> str:
    """Return how many times as fast a candidate is, with the interval."""
    return ratio_text(*(number(speed.get(name)) for name in ("ratio", "low", "high")))


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """How many times as fast, without the interval where the column is narrow."""

    full: str
    brief: str

    @classmethod
    def of(cls, speed: Mapping[str, Any]) -> SpeedUp:
        ratio, low, high = (number(speed.get(name)) for name in ("ratio", "low", "high"))
        full = brief_text(ratio, low, high)
        return cls(full, full.partition(" [")[0])

    def draw(self, width: int, glyphs: Glyphs) -> Line:
        return [(self.full if text_cells(self.full) <= width else self.brief, "text")]


def rows_of(candidates: Sequence[Mapping[str, Any]], best: str) -> list[TableRow]:
    """Return a row for each candidate; ``best`` is the label of the best so far."""
    rows, kept = [], BASELINE
    paces = [number(row.get("samples_per_second")) or 0.0 for row in candidates]
    for place, row in enumerate(candidates):
        rows.append(_row(place, row, best, kept, max(paces)))
        if row.get("status") == "kept":
            kept = str(row.get("label"))
    return rows


def step_text(label: str, kept: str) -> str:
    """Return by which switches a configuration differs from the best before it.

    ``amp=bf16 batch=16`` after ``amp=bf16`` is ``+ batch=16``: the whole names of later candidates
    are alike where a narrow column cuts them.
    """
    if BASELINE in (label, kept):
        return label
    before = kept.split()
    words = label.split()
    names = {word.partition("=")[0] for word in words}
    added = [word for word in words if word not in before]
    gone = [name for name in (word.partition("=")[0] for word in before) if name not in names]
    parts = ["+", *added] if added else []
    return " ".join(parts + (["without", *gone] if gone else [])) or label


def _row(place: int, row: Mapping[str, Any], best: str, kept: str, fastest: float) -> TableRow:
    word, token = _status(row, str(row.get("label")) == best)
    label, speed, reason = str(row.get("label")), row.get("speed"), str(row.get("reason") or "")
    if reason == TOO_SHORT:
        reason = ""  # the result says it once
    if row.get("status") == "does_not_fit" and "memory" in reason:
        reason = ""  # "does not fit" says that; the words of the error are the candidate's detail
    excess, pace = number(row.get("loss_excess")), number(row.get("samples_per_second"))
    known, warm_up = row.get("status") in FAST, number(row.get("warmup_seconds"))
    return TableRow(
        str(place),
        {
            "label": [(step_text(label, kept), "title" if label == best else "text")],
            "pace": _value(pace, "samples/s"),
            "bar": Meter(100 * pace / fastest, "ok" if known else "muted") if pace else "",
            "speed": SpeedUp.of(speed) if isinstance(speed, dict) else "",
            "reserved": _value(row.get("peak_reserved_bytes"), "bytes"),
            "warm_up": DASH if warm_up is None else [(brief_duration_text(warm_up), "text")],
            "loss": [] if excess is None else [(f"{excess * 100:+.1f} %", "muted")],
            "result": [(word, token), (f": {reason}" if reason else "", "muted")],
        },
    )


def detail_lines(row: Mapping[str, Any]) -> Iterable[Line]:
    """Return all that is known of one candidate."""
    word, token = _status(row)
    yield [(str(row.get("label")), "title")]
    yield [("result     ", "muted"), (word, token)]
    if row.get("reason"):
        yield [("why        ", "muted"), (str(row["reason"]), "text")]
    if isinstance(row.get("speed"), dict):
        yield [
            ("speed      ", "muted"),
            (f"{speed_text(row['speed'])} as fast as {row.get('against')}", "text"),
        ]
        yield [("from       ", "muted"), (str(row["speed"].get("basis")), "muted")]
    for name, key, unit in (
        ("samples/s", "samples_per_second", "samples/s"),
        ("warm-up", "warmup_seconds", "s"),
        ("reserved", "peak_reserved_bytes", "bytes"),
        ("predicted", "predicted_bytes", "bytes"),
    ):
        value = number(row.get(key))
        if value is not None:
            yield [(f"{name:<11}", "muted"), (value_text(value, unit), "text")]
    excess = number(row.get("loss_excess"))
    if excess is not None:
        side = "higher" if excess > 0 else "lower"
        text = f"{percent_text(abs(excess))} {side} than the baseline's after the same samples"
        yield [("loss       ", "muted"), (text, "text")]
    runs = row.get("runs")
    if isinstance(runs, list) and runs:
        yield [("runs       ", "muted"), (", ".join(f"#{one}" for one in runs), "text")]


def _value(value: object, unit: str) -> list[Piece]:
    known = number(value)
    return DASH if known is None else [(value_text(known, unit), "text")]


def _status(row: Mapping[str, Any], best: bool = False) -> Piece:
    status = str(row.get("status"))
    word = "the best" if best and status == "kept" else STATUS.get(status, "")
    return word, TOKENS.get(status, "muted")


# ── all candidates side by side ──

COLUMN_CELLS, GAP, MOST_COLUMNS = 56, 3, 3
"""The least cells of a column, those between two, and how many columns there are at most."""


def candidates_lines(candidates: Sequence[Mapping[str, Any]], width: int, rows: int) -> list[Line]:
    """Return what is known of each candidate, in columns of at most ``rows`` lines.

    Where that is too much, only those are there of which it is known why they were not kept; none
    where these have no room either.
    """
    columns = max(min((width + GAP) // (COLUMN_CELLS + GAP), MOST_COLUMNS), 1)
    cells = (width - GAP * (columns - 1)) // columns
    for shown in (candidates, [one for one in candidates if one.get("reason")]):
        blocks = [styled.hang_lines(list(detail_lines(one)), cells) for one in shown]
        if blocks and (found := in_columns(blocks, cells, columns, rows)):
            return found
    return []


def in_columns(blocks: Sequence[Sequence[Line]], cells: int, columns: int, rows: int) -> list[Line]:
    """Return blocks of lines in columns of equal width, from top to bottom, none without room."""
    total = sum(len(block) + 1 for block in blocks) - 1
    for height in range(max(-(-total // columns), 1), rows + 1):
        filled: list[list[Line]] = [[]]
        for block in blocks:
            if filled[-1] and len(filled[-1]) + 1 + len(block) > height:
                filled.append([])
            filled[-1] += [[], *block] if filled[-1] else block
        if len(filled) <= columns and max(map(len, filled)) <= height:
            return _beside(filled, cells)
    return []


def _beside(columns: Sequence[Sequence[Line]], cells: int) -> list[Line]:
    """Return the lines of columns that stand beside one another."""
    out: list[Line] = []
    for at in range(max(map(len, columns))):
        line: Line = []
        for place, column in enumerate(columns):
            blank = place * (cells + GAP) - styled.cells(line)
            line += [(" " * blank, "text"), *(column[at] if at < len(column) else [])]
        out.append([piece for piece in line if piece[0]])
    return out
