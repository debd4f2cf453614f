"""Write tables and notes for a cell's output: as HTML, and as text for a terminal.

The HTML is self-contained: styles are inline, and there is no script and no link. Text has the
colour of the page, and the colours of bars stand out on white and on black, so one output suits a
light and a dark notebook. The value of each bar is also written next to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from ..report.content import BarRow, Table, Waterfall
from ..text import width as cells
from ..text.units import percent_text

COLOURS = {
    "allocated": "#2f7fc1",
    "cached": "#b07412",
    "outside": "#8a63c7",
    "unread": "#7a828c",
    "other": "#7a828c",
    "driver": "#c2566b",
    "problem": "#d1495b",
    "warning": "#b07412",
    "info": "#7a828c",
}
"""Colours of bars and borders, with a contrast of 3 or more on white and on dark notebook pages."""
BAR_CELLS = 24
_FONT = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;color:inherit"
_CELL = "text-align:{};padding:1px 10px 1px {}px;border:0;vertical-align:middle;font-weight:{}"
_ROW = "background:transparent;border:0"
_QUIET = "margin:2px 0;opacity:.8"


@dataclass(frozen=True, slots=True)
class Output:
    """What a cell shows, in both forms."""

    html: str
    text: str

    def with_notes(self, notes: Iterable[str]) -> Output:
        """Return the output with sentences below it."""
        kept = [note for note in notes if note]
        return Output(
            region(self.html + "".join(map(note_html, kept))),
            "\n".join([self.text, *kept]).lstrip("\n"),
        )


def region(html: str) -> str:
    """Return a part of the page that a screen reader can name."""
    return f'<div role="region" aria-label="gpuscope" style="{_FONT}">{html}</div>'


def note_html(text: str) -> str:
    """Return a note, less prominent than the text above it."""
    return f'<p style="{_QUIET}">{escape(text)}</p>'


def as_html(tables: Iterable[Waterfall | Table]) -> str:
    """Return tables, each with its caption and notes."""
    return "".join(
        (_waterfall_html(one) if isinstance(one, Waterfall) else _figures_html(one))
        + "".join(map(note_html, one.notes))
        for one in tables
    )


def wrapped(text: str, width: int) -> str:
    """Return text with its sentences broken to ``width``; what is indented stays as it is."""
    return "\n".join(
        part
        for line in text.splitlines()
        for part in ([line] if line.startswith(" ") else cells.wrap(line, width) or [""])
    )


def as_text(tables: Iterable[Waterfall | Table]) -> str:
    return "\n".join(
        "\n".join(
            [
                one.title,
                *(_bar_lines(one) if isinstance(one, Waterfall) else _figure_lines(one)),
                *one.notes,
            ]
        )
        + "\n"
        for one in tables
    )


# ── HTML ──


def _table(title: str, rows: Iterable[str]) -> str:
    caption = (
        '<caption style="text-align:left;caption-side:top;font-weight:600;color:inherit;'
        f'padding:4px 0">{escape(title)}</caption>'
    )
    return (
        '<table style="border-collapse:collapse;border:0;margin:0 0 4px 0;color:inherit;'
        f'font-size:13px">{caption}<tbody>{"".join(rows)}</tbody></table>'
    )


def _cell(text: str, align: str = "right", indent: int = 0, strong: bool = False) -> str:
    style = _CELL.format(align, indent, 600 if strong else 400)
    return f'<td style="{style}">{escape(text)}</td>'


def _head(text: str, scope: str, indent: int = 0, strong: bool = False) -> str:
    align = "left" if scope == "row" else "right"
    style = _CELL.format(align, indent, 600 if strong else 400)
    return f'<th scope="{scope}" style="{style}">{escape(text)}</th>'


def _waterfall_html(table: Waterfall) -> str:
    rows = [_bar_html(bar, False) for bar in table.bars]
    rows += [_bar_html(table.total, True)] if table.total is not None else []
    return _table(table.title, rows)


def _bar_html(bar: BarRow, whole: bool) -> str:
    share = "" if bar.share is None else percent_text(bar.share, whole=True)
    drawn = ""
    if bar.token and bar.share:
        size = 100 * min(bar.share, 1.0)
        drawn = (
            f'<div style="width:{size:.1f}%;min-width:1px;height:10px;'
            f'background:{COLOURS.get(bar.token, COLOURS["other"])}"></div>'
        )
    track = f'<td aria-hidden="true" style="border:0;padding:1px 0;width:220px">{drawn}</td>'
    edge = ";border-top:1px solid #8a8a8a" if whole else ""
    cells_of = _head(bar.label, "row", 18 if bar.inside else 0, whole)
    cells_of += _cell(bar.value, strong=whole) + _cell(share) + track
    return f'<tr style="{_ROW}{edge}">{cells_of}</tr>'


def _figures_html(table: Table) -> str:
    rows = [f'<tr style="{_ROW}">{"".join(_head(one, "col") for one in table.head)}</tr>']
    for first, *others in table.rows:
        found = _head(first, "row") + "".join(map(_cell, others))
        rows.append(f'<tr style="{_ROW}">{found}</tr>')
    return _table(table.title, rows if table.rows else ())


# ── text ──


def _bar_lines(table: Waterfall) -> list[str]:
    bars = [*table.bars, *([table.total] if table.total is not None else [])]
    labels = [("  " if bar.inside else "") + bar.label for bar in bars]
    room, value = (
        max((cells.cells(one) for one in found), default=0)
        for found in (labels, [bar.value for bar in bars])
    )
    lines = []
    for bar, label in zip(bars, labels, strict=True):
        share = "" if bar.share is None else percent_text(bar.share, whole=True)
        drawn = "█" * round(BAR_CELLS * min(bar.share or 0.0, 1.0)) if bar.token else ""
        figure = cells.pad(bar.value, value, "right")
        lines.append(f"  {cells.pad(label, room)}  {figure}  {share:>5}  {drawn}".rstrip())
    return lines


def _figure_lines(table: Table) -> list[str]:
    rows = [table.head, *table.rows] if table.rows else []
    sizes = [max(cells.cells(row[at]) for row in rows) for at in range(len(table.head))]
    return [
        "  "
        + "  ".join(
            cells.pad(one, sizes[at], "right" if at else "left") for at, one in enumerate(row)
        ).rstrip()
        for row in rows
    ]
