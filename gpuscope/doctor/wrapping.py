"""Text in columns of a terminal: how wide it is, and lines that fit."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator


def cells(text: str) -> int:
    """Columns that ``text`` takes: CJK and emoji two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(map(_cell, text))


def _cell(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def wrap(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` columns, broken between words; a word that is wider is cut into pieces,
    so nothing of it is lost."""
    lines: list[str] = []
    line, used = "", 0
    for word in text.split():
        for piece, wide in _pieces(word, max(width, 2)):
            if line and used + 1 + wide <= width:
                line, used = f"{line} {piece}", used + 1 + wide
            else:
                if line:
                    lines.append(line)
                line, used = piece, wide
    return [*lines, line] if line else lines


def _pieces(word: str, width: int) -> Iterator[tuple[str, int]]:
    if cells(word) <= width:
        yield word, cells(word)
        return
    start, used = 0, 0
    for index, char in enumerate(word):
        wide = _cell(char)
        if used + wide > width:
            yield word[start:index], used
            start, used = index, 0
        used += wide
    yield word[start:], used
