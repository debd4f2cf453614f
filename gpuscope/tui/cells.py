"""This module makes safe text for the cells of a table, cut or padded to their width.

It also formats unknown readings. It is the last guard before the terminal: every function here
returns text that is safe to print.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from rich.cells import cell_len

from ..text.styled import Line, Piece
from ..text.units import DASH
from ..text.width import ELLIPSIS, cut, pad
from ..text.width import cells as text_cells

if TYPE_CHECKING:
    from ..wire.frames import Unknown

Align = Literal["left", "right", "centre"]

PID_BEHIND: Final = re.compile(r"\s+\(?(?:pid )?\d+\)?$")
LEAST_NAME = 6
"""Cells of a job's name that are worth its pid behind them."""

# C0, DEL, C1, bidi marks and overrides, zero-width and joiner characters, line and paragraph
# separators, variation selectors, tags, lone surrogates: none of these may reach a terminal, the
# first because they command it, the others because they reorder text or make its width
# unpredictable.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e01ef\ud800-\udfff]"
)
_COMBINING: Final = (
    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20f0\ufe20-\ufe2f]"
)
_PILE: Final = re.compile(f"({_COMBINING}{{3}}){_COMBINING}+")
_DROPPED: Final = frozenset("\xad\u200b\u200c\u200d\u2060\ufeff") | {
    chr(c) for c in range(0xFE00, 0xFE10)
}


def visible(text: str) -> str:
    """Return ``text`` without anything that a terminal would interpret.

    Control characters become their pictures (␛), a tab a space, and direction overrides U+FFFD.
    Invisible joiners are dropped, and piles of combining marks are cut to three.

    U+FFFD also replaces characters whose width differs between Textual, which lays out the screen,
    and our tables, because only newer Unicode tables know them. Terminals disagree about them as
    well, and columns would not stay aligned.
    """
    if text.isascii() and text.isprintable():
        return text
    return _made_visible(text) if len(text) <= 256 else _made_visible.__wrapped__(text)


@lru_cache(maxsize=2048)
def _made_visible(text: str) -> str:
    """Cached: borders and bars come again with every line drawn."""
    text = _PILE.sub(_first_three, _UNSAFE.sub(_picture, text))
    if cell_len(text) == text_cells(text):
        return text
    return "".join(
        char if cell_len(char) == text_cells(char) else "\ufffd" * max(text_cells(char), 1)
        for char in text
    )


def _first_three(match: re.Match[str]) -> str:
    return match[1]


def _picture(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if char == "\t":
        return " "
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return "" if char in _DROPPED else "\ufffd"


def visible_line(line: Iterable[Piece]) -> Line:
    """Return a line with :func:`visible` text, so that its width is the one measured."""
    return [(visible(text), style) for text, style in line]


def fit(text: str, cells: int, align: Align = "left", ellipsis: str = ELLIPSIS) -> str:
    """Return ``text`` made safe, in exactly ``cells`` cells.

    It is cut with an ellipsis or padded with spaces.
    """
    return pad(cut(visible(text), cells, ellipsis), cells, align)


def fit_job(text: str, cells: int) -> str:
    """Return the name of a job in exactly ``cells`` cells, cut before the pid behind it.

    The pid is there where two jobs have one name, and alone tells them apart.
    """
    found = PID_BEHIND.search(text)
    room = cells - text_cells(found[0]) if found is not None else 0
    if found is None or room < LEAST_NAME:
        return fit(text, cells)
    return pad(cut(visible(text[: found.start()]), room) + found[0], cells)


def unknown_text(unknown: Unknown, cells: int | None = None) -> str:
    """Return a dash and the short reason where there is room for it.

    That is ``"– no permission"``, else ``"–"``.
    """
    text = f"{DASH} {unknown.code.replace('_', ' ')}"
    return visible(text) if cells is None or text_cells(text) <= cells else DASH
