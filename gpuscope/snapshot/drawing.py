"""Draw bars, maps and areas with characters: block elements or plain ASCII.

All functions are pure. A line is a list of (text, token) pieces; the tokens are those of the
screen's theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..text.styled import Line, merged
from .model import FULL_CELL, Segment, Series


@dataclass(frozen=True)
class Charset:
    """The characters that a drawing consists of.

    ``shades`` are for cells that are partly in use, from a little to nearly all. ``eighths`` are
    the heights of a column and ``parts`` the lengths of a bar's end, both from empty to full.
    """

    free: str
    shades: str
    full: str
    pending: str
    edge: str
    eighths: str
    parts: str
    arrow: str
    dash: str
    ellipsis: str
    oom: str
    snapshot: str
    other: str


BLOCKS = Charset("·", "░▒▓", "█", "◇", "│", " ▁▂▃▄▅▆▇█", " ▏▎▍▌▋▊▉█", "←", "–", "…", "✖", "○", "•")
ASCII = Charset(".", "-=+", "#", "o", "|", "    ####", " #", "<-", "-", "...", "X", "s", "*")


def glyphs_for(encoding: str | None) -> Charset:
    """Return block elements if the encoding has them, otherwise ASCII characters."""
    try:
        "".join(vars(BLOCKS).values()).encode(encoding or "ascii")
    except (UnicodeError, LookupError):
        return ASCII
    return BLOCKS


def bar(share: float, cells: int, glyphs: Charset = BLOCKS) -> str:
    """Return a bar that fills ``share`` (0 to 1) of ``cells`` cells, padded to their number.

    A share above 0 always shows at least a little.
    """
    steps = len(glyphs.parts) - 1
    filled = round(min(max(share, 0.0), 1.0) * cells * steps)
    if share > 0:
        filled = max(filled, 1)
    text = glyphs.parts[-1] * (filled // steps) + (
        glyphs.parts[filled % steps] if filled % steps else ""
    )
    return text.ljust(cells)


def resample(values: Sequence[float], cells: int, each: float | None = None) -> list[float]:
    """Return ``values``, each of equal weight, as means over ``cells`` cells.

    Means keep the total unchanged. A cell has ``each`` of the values, the last one what is left;
    without it all have the same.
    """
    count = len(values)
    step = count / cells if each is None and cells else each or 0.0
    out = []
    for cell in range(cells):
        begin, end = cell * step, count if cell == cells - 1 else (cell + 1) * step
        total, at = 0.0, begin
        while at < end - 1e-9:
            number = min(int(at + 1e-9), count - 1)
            stop = min(end, number + 1.0)
            total += values[number] * (stop - at)
            at = stop
        out.append(total / (end - begin) if count else 0.0)
    return out


def segment_cells(
    segment: Segment, cells: int, glyphs: Charset, scale: int = 0
) -> list[tuple[str, str]]:
    """Return a segment in ``cells`` characters, each of ``scale`` bytes but for the last one.

    Only a cell that is completely live is drawn full, and only a completely free one empty.
    """
    each = len(segment.live) * scale / segment.bytes if scale and segment.bytes else None
    live, pending = resample(segment.live, cells, each), resample(segment.pending, cells, each)
    return [_cell(here, waiting, glyphs) for here, waiting in zip(live, pending, strict=True)]


def _cell(live: float, pending: float, glyphs: Charset) -> tuple[str, str]:
    if pending > live:
        return glyphs.pending, "warn"
    if live <= 0:
        return glyphs.free, "cached"
    if live >= FULL_CELL - 0.01:  # a mean of full cells may be a little less than full
        return glyphs.full, "allocated"
    shade = min(int(live / FULL_CELL * len(glyphs.shades)), len(glyphs.shades) - 1)
    return glyphs.shades[shade], "allocated"


def flow_map(
    segments: Sequence[Segment], width: int, rows: int, glyphs: Charset
) -> tuple[list[Line], int]:
    """Draw all segments one after the other, at one scale; also return the bytes per cell.

    There are about ``rows`` lines of ``width`` cells, and as few bytes in a cell as that allows. A
    border separates segments of more than one cell.
    """
    total = sum(segment.bytes for segment in segments)
    if not total or width < 2:
        return [], 0
    room = max(width * rows - len(segments), width)
    scale = _cell_bytes(-(-total // room))
    pieces: list[tuple[str, str]] = []
    for number, segment in enumerate(segments):
        cells = max(1, -(-segment.bytes // scale))
        if number and cells > 1:
            pieces.append((glyphs.edge, "faint"))
        pieces += segment_cells(segment, cells, glyphs, scale)
    lines = [merged(pieces[at : at + width]) for at in range(0, len(pieces), width)]
    return lines, scale


def _cell_bytes(least: int) -> int:
    """Return at least so many bytes: 4 to 8 times a power of two, which reads well."""
    unit = 1 << max(0, least.bit_length() - 3)
    return -(-least // unit) * unit


def area(series: Series, columns: int, rows: int, top: int, glyphs: Charset) -> list[str]:
    """Return a series as an area of columns, highest line first.

    The height of each column is the highest value in it.
    """
    heights = [max(part) for part in _shares(series.high, columns)]
    steps = len(glyphs.eighths) - 1
    lines = []
    for row in range(rows - 1, -1, -1):
        text = ""
        for value in heights:
            filled = value / top * rows - row if top > 0 else 0.0
            step = min(max(int(filled * steps + 0.5), 0), steps)
            text += glyphs.eighths[1 if value > 0 and row == 0 and step == 0 else step]
        lines.append(text)
    return lines


def _shares(values: Sequence[int], columns: int) -> list[list[int]]:
    count = len(values)
    if not count:
        return []
    return [
        list(
            values[
                column * count // columns : max(
                    (column + 1) * count // columns, column * count // columns + 1
                )
            ]
        )
        for column in range(columns)
    ]


def column_of(index: int, ends: Sequence[int], columns: int) -> int:
    """Return the column of an area where entry ``index`` lies.

    ``ends`` has the last entry of each bucket.
    """
    from bisect import bisect_left

    bucket = min(bisect_left(ends, index), max(len(ends) - 1, 0))
    return min(bucket * columns // max(len(ends), 1), columns - 1)
