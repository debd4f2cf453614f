"""Measure how many cells a text takes on a terminal, and cut, pad or wrap text to a width.

East Asian wide characters and emoji take two cells. Combining marks and invisible characters take
none. The widths agree with those that Textual's layout uses, as far as this Python's Unicode tables
know the character. Only the standard library is needed, because reports are also printed where no
other package is installed.

Text from outside must have been cleaned before: nothing here removes control characters.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Iterator, List, Tuple

ELLIPSIS = "…"
_REMEMBERED_CHARS = 256


def cells(text: str) -> int:
    """Return how many cells ``text`` takes."""
    if text.isascii():
        return len(text)
    return _sum(text) if len(text) <= _REMEMBERED_CHARS else _sum.__wrapped__(text)


@lru_cache(maxsize=4096)
def _sum(text: str) -> int:
    """Remembered, because a screen measures the same texts again each time it is drawn."""
    return sum(map(_cell, text))


@lru_cache(maxsize=4096)
def _cell(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Mc", "Cf") or _joins_the_one_before(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _joins_the_one_before(char: str) -> bool:
    """Say whether ``char`` is a later part of a Korean syllable, or an emoji's skin colour."""
    return (
        "\u1160" <= char <= "\u11ff"
        or "\ud7b0" <= char <= "\ud7ff"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
    )


def beginning(text: str, room: int) -> str:
    """Return the longest beginning of ``text`` that takes at most ``room`` cells."""
    if text.isascii():
        return text[: max(room, 0)]
    used = 0
    for index, char in enumerate(text):
        used += _cell(char)
        if used > room:
            return text[:index]
    return text


def ending(text: str, room: int) -> str:
    """Return the longest end of ``text`` that takes at most ``room`` cells."""
    used = 0
    for index in range(len(text) - 1, -1, -1):
        used += _cell(text[index])
        if used > room:
            rest = text[index + 1 :]
            while rest and _cell(rest[0]) == 0:  # a combining mark whose base character was cut
                rest = rest[1:]
            return rest
    return text


def cut(text: str, room: int, ellipsis: str = ELLIPSIS) -> str:
    """Return ``text`` in at most ``room`` cells, with an ellipsis for an end cut off."""
    if cells(text) <= room:
        return text
    left = room - cells(ellipsis)
    return beginning(text, left) + ellipsis if left >= 0 else ""


def cut_start(text: str, room: int) -> str:
    """Return ``text`` in at most ``room`` cells, with its start replaced by an ellipsis if needed.

    This is for paths, whose end matters most.
    """
    if cells(text) <= room:
        return text
    left = room - cells(ELLIPSIS)
    return ELLIPSIS + ending(text, left) if left >= 0 else ""


def pad(text: str, room: int, align: str = "left") -> str:
    """Return ``text`` padded with spaces to ``room`` cells.

    ``align`` is "left", "right" or "centre".
    """
    gap = max(room - cells(text), 0)
    before = gap if align == "right" else gap // 2 if align == "centre" else 0
    return " " * before + text + " " * (gap - before)


def wrap(text: str, room: int) -> List[str]:
    """Return ``text`` in lines of at most ``room`` cells, broken between words.

    A percentage stays in one line. A word wider than a line is broken anywhere, so that nothing of
    it is lost. A line is at least two cells wide, because a wide character could not be placed
    otherwise.
    """
    lines: List[str] = []
    line, used = "", 0
    for word in _words(text):
        for piece, size in _pieces(word, max(room, 2)):
            if line and used + 1 + size <= room:
                line, used = f"{line} {piece}", used + 1 + size
            else:
                if line:
                    lines.append(line)
                line, used = piece, size
    return [*lines, line] if line else lines


def _words(text: str) -> Iterator[str]:
    """Yield the words of a text, ``12 %`` as one."""
    before = ""
    for word in text.split():
        if before and word[0] == "%" and before[-1].isdigit():
            before = f"{before} {word}"
            continue
        if before:
            yield before
        before = word
    if before:
        yield before


def _pieces(word: str, room: int) -> Iterator[Tuple[str, int]]:
    """Yield the parts of one word that fit into a line, each with its cells."""
    while cells(word) > room:
        part = beginning(word, room)
        yield part, cells(part)
        word = word[len(part) :]
    yield word, cells(word)
