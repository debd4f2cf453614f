"""Compares A with B in lines.

What differs comes first, then what was measured, each ratio with what is known of its spread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...lab.intervals import noise_text
from ...text import styled
from ...text.styled import Line, Piece
from ...text.units import DASH, brief_duration_text, bytes_text, percent_text
from ...text.width import cells as text_cells
from ..cells import fit
from ..shell.keymap import key_of
from ..theme import Glyphs
from ..widgets.table import Column, gaps_of, lay_out

if TYPE_CHECKING:
    from ...lab.compare import Comparison
    from ...lab.comparison_row import ComparisonRow


SHORT = {
    "samples_per_second": "samples/s",
    "step_seconds": "step time",
    "step_p95_seconds": "step p95",
    "sample_seconds": "per sample",
    "warmup_seconds": "warm-up",
    "input_seconds": "input wait",
    "peak_allocated_bytes": "allocated",
    "peak_reserved_bytes": "reserved",
    "tensor_active_percent": "tensor",
    "validation_loss": "val. loss",
    "loss": "loss at N",
    "efficiency": "efficiency",
}
"""Names for ten cells; one that is not here has its own title."""
ORDER = (
    "samples_per_second", "step_seconds", "loss", "efficiency", "peak_allocated_bytes",
    "peak_reserved_bytes", "tensor_active_percent", "sample_seconds", "warmup_seconds",
    "input_seconds", "validation_loss", "step_p95_seconds",
)  # fmt: skip
"""Where there is little room the last ones go first; what neither side knows goes before all."""
ADVICE = "gpuscope lab sweep"
"""In a note that tells what to type for repeats: here a key does that."""
WIDE_CELLS = 68
WIDE = (
    Column("what", "", 14, flex=2, most=28),
    Column("a", "A", 9, align="right"),
    Column("b", "B", 9, align="right"),
    Column("ratio", "B/A", 7, align="right"),
    Column("interval", "95 % INTERVAL", 13),
    Column("verdict", "", 11),
    Column("basis", "FROM", 20, flex=3, most=26, priority=5),
)
NARROW = (
    Column("what", "", 10, flex=1, most=14),
    Column("a", "A", 8, align="right"),
    Column("b", "B", 8, align="right"),
    Column("ratio", "  B/A", 13),
)


def value_text(value: float | None, unit: str) -> str:
    """Return a measured value with its unit, "–" where it is unknown."""
    if value is None:
        return "–"
    if unit == "s":
        return brief_duration_text(value)
    if unit == "bytes":
        return bytes_text(value)
    if unit == "%":
        return percent_text(value / 100)
    if unit == "samples/s":
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return f"{value:.4g}"


def ratio_text(ratio: float | None) -> str:
    """Return a ratio as ``"1.93×"``, which means that B is that many times A."""
    if ratio is None:
        return "–"
    if 0.095 <= ratio < 99.95:
        return f"{ratio:.2f}×"
    return (
        f"{ratio:,.0f}×" if ratio > 1 else f"{ratio:.3f}×" if ratio >= 0.0005 else f"{ratio:.0e}×"
    )


def interval_text(row: ComparisonRow) -> str:
    """Return an interval as ``"1.88 – 1.98"``, or words where nothing tells the spread."""
    if row.low is None or row.high is None:
        return "–" if row.ratio is not None else ""
    if row.wide:
        return noise_text(row.low, row.high)
    if row.low < 0.095:
        return f"{row.low:.2g} – {row.high:.2g}"
    digits = 3 if row.high - row.low < 0.02 else 2 if row.high < 10 else 1 if row.high < 100 else 0
    return f"{row.low:.{digits}f} – {row.high:.{digits}f}"


def spread_text(row: ComparisonRow) -> str:
    """Return the further end of the interval, such as ``"±3 %"``.

    It is for where there is no room for both ends; it is "wide" where the repeats differ too
    much, and a dash where the spread is unknown.
    """
    if row.ratio is None:
        return ""
    if row.low is None or row.high is None:
        return DASH
    far = max(row.high / row.ratio - 1, 1 - row.low / row.ratio) * 100
    return "wide" if row.wide or far >= 99.5 else f"±{percent_text(far / 100, whole=True)}"


def verdict(row: ComparisonRow) -> Piece:
    """Return (word, token) for whether B is better, where the interval decides that."""
    word = row.verdict
    return word, {"": "muted", "better": "ok", "worse": "warn"}.get(word, "idle")


def changes_lines(comparison: Comparison, cells: int, rows: int) -> list[Line]:
    """Return the switches in which they differ, marked, in at most ``rows`` lines.

    An example is ``≠ amp off → bf16 batch 8 → 16``.
    """
    toggles = [change for change in comparison.changes if change.toggle]
    if not toggles:
        known = all(side and side[0].config is not None for side in (comparison.a, comparison.b))
        text = "no setting differs" if known else "the settings of one are unknown"
        return [[("≠ ", "faint"), (text, "muted")]]
    lines: list[Line] = [[("≠ ", "accent")]]
    used = 2
    for number, change in enumerate(toggles):
        pieces = [
            (f"{change.name.replace('_', ' ')} ", "muted"),
            (change.a, "text"),
            (" → ", "faint"),
            (change.b, "title"),
        ]
        gap = "   " if used > 2 else ""
        size = len(gap) + sum(text_cells(text) for text, _ in pieces)
        full = len(lines) == rows
        more = f"   +{len(toggles) - number}"
        if used + size + (len(more) if full and number + 1 < len(toggles) else 0) > cells and gap:
            if full:
                lines[-1].append((more, "muted"))
                return lines
            lines.append([("  ", "text")])
            size -= len(gap)
            used, gap = 2, ""
        lines[-1] += [(gap, "text"), *pieces]
        used += size
    return lines


def table_lines(comparison: Comparison, cells: int, glyphs: Glyphs) -> Iterable[Line]:
    """Return a heading and a line for each measured thing."""
    columns = WIDE if cells >= WIDE_CELLS else NARROW
    placed = lay_out(columns, cells, gap=1)
    gaps = gaps_of([column for column, _ in placed], gap=1)
    line: Line = []
    for (column, size), gap in zip(placed, gaps, strict=True):
        token = {"a": "bold series1", "b": "bold series4"}.get(column.key, "muted")
        line.append((" " * gap + fit(column.title, size, column.align), token))
    yield line
    for row in in_order(comparison):
        yield _row_line(row, placed, columns is WIDE, glyphs)


def in_order(comparison: Comparison) -> list[ComparisonRow]:
    """Return the rows to show, the most telling first.

    A step per sample says nothing new where steps are as large.
    """
    step = comparison.row("step_seconds")
    same = step.ratio if step is not None else None
    rows = [
        row
        for row in comparison.rows
        if row.key != "sample_seconds" or row.ratio is None or row.ratio != same
    ]

    def place(row: ComparisonRow) -> tuple[bool, int]:
        return row.a is None and row.b is None, ORDER.index(row.key) if row.key in ORDER else len(
            ORDER
        )

    return sorted(rows, key=place)


def _name(row: ComparisonRow, cells: int) -> str:
    """Return the title of a row, or what of it has room.

    The loss keeps where it was compared, because the list of runs has another one, the last.
    """
    names = [row.title]
    if row.key == "loss":
        names.append(row.title.rpartition(" ")[0].replace("loss after", "loss at"))
    return next((n for n in names if text_cells(n) <= cells), SHORT.get(row.key, row.title))


def _row_line(
    row: ComparisonRow, placed: list[tuple[Column, int]], wide: bool, glyphs: Glyphs
) -> Line:
    word, token = verdict(row)
    sizes = {column.key: size for column, size in placed}
    mark = {
        "better": glyphs.ok,
        "worse": glyphs.bad,
        "undecided": glyphs.idle,
        "same": glyphs.idle,
    }.get(word, "")
    interval = interval_text(row)
    if wide and not row.wide and text_cells(interval) > sizes["interval"]:
        interval = spread_text(row)  # an interval is told whole, or as how far it reaches
    shown = {
        "what": (_name(row, sizes["what"]), "muted"),
        "a": (value_text(row.a, row.unit), "text" if row.a is not None else "faint"),
        "b": (value_text(row.b, row.unit), "text" if row.b is not None else "faint"),
        "ratio": (
            ratio_text(row.ratio),
            "title" if row.decided else "text" if row.ratio is not None else "faint",
        ),
        "interval": (interval, "text" if row.low is not None else "faint"),
        "verdict": (f"{mark} {word}" if word and wide else mark, token),
        "basis": (row.basis or row.reason, "faint"),
    }
    out: Line = []
    gaps = gaps_of([column for column, _ in placed], gap=1)
    for (column, size), blanks in zip(placed, gaps, strict=True):
        text, spec = shown[column.key]
        gap = " " * blanks
        if wide and row.wide and column.key == "interval":
            out.append((gap + text, "faint"))  # so it may go on where the verdict would stand
            continue
        if wide and row.wide and column.key == "verdict":
            size += blanks + sizes["interval"] - text_cells(interval)
            text, gap = "", ""
        if wide or column.key != "ratio":
            out.append((gap + fit(text, size, column.align), spec))
            continue
        spread = spread_text(row)
        out += [
            (gap + fit(text, 6, "right"), spec),
            (f" {fit(spread, 4)} ", "muted" if spread.startswith("±") else "faint"),
        ]
        out.append((mark, token))
    return out


def closing_lines(comparison: Comparison) -> Iterable[Line]:
    """Break-even of compiling where that is a question, then what weakens the comparison."""
    compiled = [
        bool(side and side[0].config and side[0].config.compile != "off")
        for side in (comparison.a, comparison.b)
    ]
    if compiled[0] != compiled[1]:
        if comparison.break_even_step is not None:
            yield [
                ("break-even ", "muted"),
                (f"after step {comparison.break_even_step:,}", "title"),
                (": the compiled run has made up for its warm-up", "muted"),
            ]
        else:
            yield [
                ("no break-even: ", "text"),
                (comparison.break_even_reason, "muted"),
            ]
    repeats = next((row.basis for row in comparison.rows if "repeats" in row.basis), "")
    if repeats:
        yield [("95 % ", "muted"), (f"over {repeats}", "text")]
    for text in comparison.notes:
        if text in comparison.cut_short:
            continue  # that stands at the top
        if comparison.apart and text.endswith(comparison.apart):
            continue  # the title says it
        if ADVICE in text:
            yield [
                (f"{key_of('lab_repeat')} ", "accent"),
                (
                    "repeats A and B interleaved: the interval then covers the noise between runs",
                    "faint",
                ),
            ]
        else:
            yield [(text, "faint")]


def comparison_lines(comparison: Comparison, cells: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """Return the comparison in at most ``rows`` lines of ``cells`` cells.

    What closes it goes before what was measured, the last ones first. A run that ended early is
    told at the top: its figures are of fewer steps.
    """
    early: list[Line] = [[("◆ ", "warn"), (text, "warn")] for text in comparison.cut_short]
    head = changes_lines(comparison, cells, 2 if rows >= 8 else 1)
    head += [
        part
        for line in early
        for part in styled.first_rows(styled.hang_lines([line], cells), 2, cells)
    ]
    table = list(table_lines(comparison, cells, glyphs))
    lines = [*head, *table]
    for line in closing_lines(comparison):
        sentence = styled.wrap(line, cells)
        if len(lines) + len(sentence) > rows:
            break
        lines += sentence
    return lines[:rows]
