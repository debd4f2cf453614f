"""This module draws bars of one line: stacked memory and a percentage.

A bar that stands alone is precise to an eighth of a cell where the glyphs allow. A slim one, for
rows that are neighbours, is a heavy line on a faint one, precise to half a cell. Unknown is drawn
as a dotted line (┄), never as empty: an empty bar means zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ...text.styled import Line, Piece, merged
from ...wire.frames import Unknown
from ..theme import UNICODE, UNREAD, Glyphs

Part = tuple["float | Unknown | None", str]
"""(amount, token). The amount is in the unit of the total; Unknown or None where it is not known.
"""


LEAST_SHARE = 1 / 8
"""A part smaller than this share of a bar does not give its colour to a bar of one cell."""

LEAST_CELL = 1 / 3
"""A part of at least this share of a cell is drawn, as one cell."""


def stacked_bar(
    parts: Sequence[Part],
    total: float | Unknown | None,
    width: int,
    glyphs: Glyphs = UNICODE,
    *,
    slim: bool = False,
    warn_beyond: float | None = None,
) -> Line:
    """Return ``parts`` side by side on a track that stands for ``total``.

    They are styled pieces of exactly ``width`` cells. A bar above zero is never drawn empty.
    When a part or the total is unknown, what is known is drawn and the rest is the unknown
    line. Parts beyond the total are clipped. ``slim`` bars are for neighbouring rows: lines
    with blanks between the rows. ``warn_beyond`` is a share of the total: the stretch of a slim
    bar that lies beyond it has the colour of a warning, and a texture of its own.
    """
    if width <= 0:
        return []
    limit = _amount(total)
    if limit is None or limit <= 0:
        return [(glyphs.unknown * width, "muted")]
    known = [
        (amount, token)
        for amount, token in ((_amount(a), t) for a, t in parts)
        if amount is not None
    ]
    whole = len(known) == len(parts)
    drawn = [(amount, token) for amount, token in known if amount > 0 and token != "free"]
    if slim and glyphs.eighths:
        rest = (glyphs.groove, "border") if whole else (glyphs.unknown, "muted")
        return merged(_slim_cells(drawn, limit, width, rest, glyphs, warn_beyond))
    rest = (glyphs.track, "free") if whole else (glyphs.unknown, "muted")
    edges: list[tuple[int, str]] = []  # right edge in eighths, token
    ends, summed = 0, 0.0
    for amount, token in drawn:
        summed += amount
        ends = min(max(round(min(summed / limit, 1.0) * width * 8), ends + 1), width * 8)
        edges.append((ends, token))
    cells = [_bar_cell(edges, cell * 8, rest, glyphs) for cell in range(width)]
    if slim:  # without parts of cells
        warn_at = _warn_at(summed / limit, width, warn_beyond)
        for cell in range(warn_at, width):
            cells[cell] = (glyphs.tight, "warn") if cells[cell] != rest else rest
    return merged(cells)


def _warn_at(share: float, width: int, warn_beyond: float | None) -> int:
    """Return the cell from which on a bar warns, ``width`` where it does not."""
    if warn_beyond is None or share <= warn_beyond:
        return width
    return min(int(warn_beyond * width), width - 1)


def _slim_cells(
    parts: Sequence[tuple[float, str]],
    limit: float,
    width: int,
    rest: Piece,
    glyphs: Glyphs,
    warn_beyond: float | None,
) -> Line:
    """Return the cells of a slim bar.

    A bar of one cell has the colour of its first part that counts.
    """
    summed = sum(amount for amount, _ in parts)
    full = min(summed / limit, 1.0)
    halves = max(round(full * width * 2), 1) if parts else 0
    if halves <= 2:
        tokens = [next((t for amount, t in parts if amount >= summed * LEAST_SHARE), "")]
    else:
        sizes = [amount / max(limit, summed) * width for amount, _ in parts]
        counts = _share_out(sizes, (halves + 1) // 2)
        tokens = [t for (_, t), count in zip(parts, counts, strict=True) for _ in range(count)]
    warn_at = _warn_at(full, width, warn_beyond)
    cells: Line = []
    for cell in range((halves + 1) // 2):
        token = tokens[cell]
        if cell >= warn_at:
            cells.append((glyphs.tight, "warn"))
        elif token in glyphs.patterns or token == UNREAD:
            cells.append((glyphs.fill(token), token))
        else:
            glyph = glyphs.half if cell * 2 + 1 == halves else glyphs.bar
            cells.append((glyph, token))
    if len(parts) == 1 and tokens[0] in glyphs.patterns and len(cells) <= warn_at:
        cells = _ended(cells, full * width * 8, glyphs)
    return cells + [rest] * (width - len(cells))


def _ended(cells: Line, eighths: float, glyphs: Glyphs) -> Line:
    """Return a bar of one pattern that ends to an eighth of a cell, where the pattern is solid.

    In any other one a part of a cell would be drawn solid, which is the pattern of another part.
    """
    token = cells[0][1]
    whole, rest = divmod(max(round(eighths), 1), 8)
    solid = glyphs.fill(token) == glyphs.across[-1]
    if rest == 0 or not solid:
        return cells
    return [(glyphs.across[-1], token)] * whole + [(glyphs.across[rest], token)]


def _share_out(sizes: Sequence[float], cells: int) -> list[int]:
    """Return how many of the cells each part has, by its size in cells.

    A part has as many as its own size says, wherever it begins, so that equal parts look equal in
    bars whose other parts differ, and one where it is a good part of a cell, so that it is seen
    in bars of any width. The largest part makes up for the rounding, by less than a cell.
    """
    counts = [1 if LEAST_CELL <= size < 1 else round(size) for size in sizes]
    most = max(range(len(sizes)), key=lambda at: sizes[at])
    counts[most] += cells - sum(counts)
    others = [at for at in range(len(sizes)) if at != most]
    while others and abs(over := counts[most] - sizes[most]) >= 1:
        by = 1 if over > 0 else -1
        other = max(others, key=lambda at: ((sizes[at] - counts[at]) * by, -at * by))
        counts[other] += by
        counts[most] -= by
    return counts


def _bar_cell(edges: Sequence[tuple[int, str]], left: int, rest: Piece, glyphs: Glyphs) -> Piece:
    """One cell of a bar that begins at ``left`` eighths."""
    shares: list[tuple[int, str]] = []  # eighths of this cell by token, left to right
    start = left
    for end, token in edges:
        if end > start:
            shares.append((min(end, left + 8) - start, token))
            start = min(end, left + 8)
        if start == left + 8:
            break
    filled = start - left
    if not shares:
        return rest
    token = max(shares, key=_eighths)[1]
    if token in glyphs.patterns or token == UNREAD or not glyphs.eighths:
        return (glyphs.fill(token), token) if filled >= 4 or left == 0 else rest
    if filled < 8:
        return glyphs.across[filled], token
    if len(shares) == 1:
        # both, so that no seam shows where a font leaves one
        return glyphs.across[8], f"{token} on {token}"
    ground = max(shares[1:], key=_eighths)[1]
    first = shares[0][1]
    if UNREAD in (first, ground):  # its texture is no colour that another could stand on
        return glyphs.across[8], f"{token} on {token}"
    return glyphs.across[shares[0][0]], f"{first} on {ground}"


def _eighths(share: tuple[int, str]) -> int:
    return share[0]


def meter(
    percent: float | Unknown | None,
    width: int,
    token: str,
    glyphs: Glyphs = UNICODE,
    *,
    slim: bool = False,
    idling: bool = False,
) -> Line:
    """Return a bar of 0 to 100 percent in one token, exactly ``width`` cells wide.

    Unknown is the dotted line. A load that is no progress is ``idling``: a dashed line.
    """
    if idling:
        dash = glyphs.idling
        glyphs = glyphs._replace(
            bar=dash, half=dash, across=glyphs.across[:-1] + dash, patterns=MappingProxyType({})
        )
    return stacked_bar(
        [(percent, token)],
        100.0 if _amount(percent) is not None else None,
        width,
        glyphs,
        slim=slim,
    )


def _amount(value: float | Unknown | None) -> float | None:
    if value is None or isinstance(value, Unknown) or not math.isfinite(value):
        return None
    return float(value)


# ── cells of a table that know their width only when it is drawn ──────────────────────────────────


@dataclass(frozen=True, slots=True)
class Bar:
    """A stacked bar as wide as its column."""

    parts: tuple[Part, ...]
    total: float | Unknown | None
    slim: bool = True
    warn_beyond: float | None = None

    def draw(self, width: int, glyphs: Glyphs) -> Line:
        return stacked_bar(
            self.parts, self.total, width, glyphs, slim=self.slim, warn_beyond=self.warn_beyond
        )


@dataclass(frozen=True, slots=True)
class Meter:
    """A percentage bar as wide as its column."""

    percent: float | Unknown | None
    token: str
    slim: bool = True
    idling: bool = False

    def draw(self, width: int, glyphs: Glyphs) -> Line:
        return meter(self.percent, width, self.token, glyphs, slim=self.slim, idling=self.idling)
