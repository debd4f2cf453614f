"""Lines of styled text: pieces of text, each with the name of its style.

A style is a token of the screen's theme, such as ``muted`` or ``warn``. A verb that prints plain
text leaves it out.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Iterable, List, Sequence, Tuple

from . import width

Piece = Tuple[str, str]
"""A text and the name of its style."""
Line = List[Piece]
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[KMGTP]?i?B|[mµ]?s|min|h|d)(?:/s)?(?!\w))")


def cells(line: Iterable[Piece]) -> int:
    """Return how many cells a line takes."""
    return sum([len(text) if text.isascii() else width.cells(text) for text, _ in line])


def plain(line: Iterable[Piece]) -> str:
    """Return a line's text without its styles."""
    return "".join(text for text, _ in line)


def merged(line: Iterable[Piece]) -> Line:
    """Return a line with neighbours of one style as one piece, and without empty pieces."""
    found: Line = []
    for text, style in line:
        if not text:
            continue
        if found and found[-1][1] == style:
            found[-1] = (found[-1][0] + text, style)
        else:
            found.append((text, style))
    return found


def join(lines: Iterable[Iterable[Piece]], separator: str = "  ", style: str = "text") -> Line:
    """Return several lines as one, with ``separator`` between those that are not empty."""
    found: Line = []
    for line in lines:
        pieces = list(line)
        if pieces and found:
            found.append((separator, style))
        found += pieces
    return found


def cut(line: Sequence[Piece], room: int, ellipsis: str = width.ELLIPSIS) -> Line:
    """Return a line cut to at most ``room`` cells.

    A line that is cut ends with an ellipsis, which has the style of the text that it replaces.
    """
    if cells(line) <= room:
        return list(line)
    left = room - width.cells(ellipsis)
    if left < 0:
        return []
    found: Line = []
    for text, style in line:
        size = width.cells(text)
        if size > left:
            found.append((width.beginning(text, left) + ellipsis, style))
            break
        found.append((text, style))
        left -= size
    return found


_SMALL_WORDS = tuple(
    f" {word}" for word in ("a", "and", "at", "for", "in", "of", "on", "the", "to")
)
_DOT = " · "
_ENDS_OF_PARTS = ("  ", _DOT, "; ", ": ", " (", ", ")


def cut_whole(line: Sequence[Piece], room: int, ellipsis: str = width.ELLIPSIS) -> Line:
    """Return as many whole parts of a line as have room, and none that is cut in the middle.

    Parts end at two blanks or at a mark such as a comma; a word before a colon, as in ``· how: tab
    4``, is none without what it announces. Where the first part alone is too long,
    or would leave over half of the room empty, the line is cut behind a word, with an ellipsis.
    """
    if cells(line) <= room:
        return list(line)
    if room < width.cells(ellipsis):
        return []
    text = plain(line)
    shown = width.beginning(text, room).rstrip()
    ends = [shown.rfind(end) for end in _ENDS_OF_PARTS]
    ends += [len(shown) for end in _ENDS_OF_PARTS if text[len(shown) :].startswith(end)]
    end = max(ends)
    if text[: max(end, 0)].count("(") > text[: max(end, 0)].count(")"):
        end = text.rfind(" (", 0, end)
    label = text.rfind(_DOT, 0, max(end, 0))
    if text[max(end, 0) :].startswith(": ") and label >= 0:
        end = end if " " in text[label + len(_DOT) : end] else label
    more = ""
    if width.cells(text[: max(end, 0)]) < room / 2:
        shown, more = width.beginning(text, room - width.cells(ellipsis)), ellipsis
        word = len(shown) if text[len(shown) :].startswith(" ") else shown.rfind(" ")
        while text[: max(word, 0)].endswith(_SMALL_WORDS):  # which say nothing at an end
            word = text.rfind(" ", 0, word)
        end = word if width.cells(text[: max(word, 0)]) >= room / 2 else len(shown)
    found: Line = []
    for piece, style in line:
        found.append((piece[:end], style))
        end -= len(piece[:end])
        if end <= 0:
            break
    if more and found:
        found[-1] = (found[-1][0] + more, found[-1][1])
    return found


def cut_items(line: Sequence[Piece], room: int, ellipsis: str = width.ELLIPSIS) -> Line:
    """Return as many whole items of a list as have room, and an ellipsis for those left out.

    Items end at a comma; a text without one is cut behind a word, and a long word within it.
    """
    if cells(line) <= room:
        return list(line)
    text = width.beginning(plain(line), room - width.cells(ellipsis))
    end = text.rfind(", ") + 1 or text.rfind(" ")
    if end <= 0:
        return cut(line, room, ellipsis)
    found: Line = []
    for piece, style in line:
        found.append((piece[: max(end, 0)], style))
        end -= len(piece)
    return merged([*found, (f" {ellipsis}", line[-1][1])])


def pad(line: Iterable[Piece], room: int, align: str = "left", style: str = "text") -> Line:
    """Return a line padded with spaces to ``room`` cells.

    ``align`` is "left", "right" or "centre". A line that is already as wide is returned unchanged.
    """
    found = list(line)
    gap = max(room - cells(found), 0)
    before = gap if align == "right" else gap // 2 if align == "centre" else 0
    spaces = ((" " * before, style), *found, (" " * (gap - before), style))
    return [piece for piece in spaces if piece[0]]


def spread(left: Sequence[Piece], right: Sequence[Piece], room: int) -> Line:
    """Return one line of ``room`` cells with ``left`` at its start and ``right`` at its end.

    When both do not fit, ``left`` is cut. ``right`` is dropped when it would leave ``left`` less
    than half of the room.
    """
    rest = room - cells(right)
    if rest < min(cells(left), room // 2):
        return cut(left, room)
    found = cut(left, rest - 1)
    return [*found, (" " * (rest - cells(found)), "text"), *right]


def wrap(line: Iterable[Piece], room: int, indent: int = 0) -> List[Line]:
    """Return a line broken at its spaces into lines of at most ``room`` cells.

    Spaces inside a line are kept; those at a line break are dropped. A word may consist of pieces
    of several styles. A word wider than a line is broken anywhere, code where a call begins if that
    is in the second half of the line. Every line after the first begins with ``indent`` spaces.
    """
    return [list(one) for one in _wrapped(tuple(line), max(room, indent + 2), indent)]


@lru_cache(maxsize=256)
def _wrapped(line: Tuple[Piece, ...], room: int, indent: int) -> List[Line]:
    """Remembered, because a screen wraps the same lines again each time it is drawn."""
    found: List[Line] = [[]]
    start: Line = [(" " * indent, "text")]
    used = first = 0
    gap: Line = []
    for word in _words(line):
        size = cells(word)
        if not plain(word).strip(" "):
            gap = word
            continue
        if used + cells(gap) + size > room:
            if used > first:
                found.append(list(start))
                used = first = indent
            gap = []
        found[-1] += gap
        used += cells(gap)
        gap = []
        for text, style in word:
            while used + width.cells(text) > room:
                part = width.beginning(text, room - used)
                call = part.rfind("(") + 1
                part = part[:call] if call > len(part) // 2 else part
                found[-1].append((part, style))
                found.append(list(start))
                text, used, first = text[len(part) :], indent, indent
            found[-1].append((text, style))
            used += width.cells(text)
    return [merged(one) for one in found]


def _words(line: Iterable[Piece]) -> Iterable[Line]:
    """Yield words and the gaps between them in turn, each as pieces.

    A number and its unit count as one word, so that they are never separated.
    """
    word: Line = []
    in_gap = False
    for text, style in line:
        start = 0
        inside = {found.start() for found in _BEFORE_UNIT.finditer(text)}
        for index, char in enumerate(text):
            is_gap = char == " " and index not in inside
            if is_gap != in_gap:
                if index > start:
                    word.append((text[start:index], style))
                if word:
                    yield word
                word, start, in_gap = [], index, is_gap
        if start < len(text):
            word.append((text[start:], style))
    if word:
        yield word


def hang(
    label: Sequence[Piece], line: Iterable[Piece], room: int, style: str = "text", least: int = 10
) -> List[Line]:
    """Return ``line`` wrapped to the right of ``label``.

    Lines after the first are aligned with the text of the first line. The text gets at least
    ``least`` cells, however wide the label is. ``style`` is the style of the indent.
    """
    indent = cells(label)
    found = wrap(line, max(room - indent, least))
    return [
        merged([*(label if not number else [(" " * indent, style)]), *one])
        for number, one in enumerate(found)
    ]


def hang_lines(lines: Iterable[Sequence[Piece]], room: int, labels: int = 1) -> List[Line]:
    """Return lines wrapped with a hanging indent, each aligned behind its own label.

    The first ``labels`` pieces of a line are its label. A line that consists of its label alone is
    wrapped from the left edge.
    """
    found: List[Line] = []
    for line in lines:
        found += (
            hang(line[:labels], line[labels:], room) if len(line) > labels else wrap(line, room)
        )
    return found


def first_rows(
    lines: Sequence[Sequence[Piece]], rows: int, room: int, ellipsis: str = width.ELLIPSIS
) -> List[Line]:
    """Return at most the first ``rows`` lines of a text with a hanging indent.

    Where lines are left out, the last one that is kept ends with an ellipsis.
    """
    kept = [list(line) for line in lines[:rows]]
    if len(lines) <= rows or not kept:
        return kept
    last = [*kept[-1], (" ", "muted"), *lines[rows][1:], ("  ", "muted")]
    return [*kept[:-1], cut(last, room, ellipsis)]
