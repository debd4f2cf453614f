"""Lines of styled text that repaint only what changed: status lines, job lines, key figures, empty states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.geometry import Size
from textual.strip import Strip

from ..cells import cut_text, fit, visible, width
from ..charts.strips import Painted, Segments, strip_of
from ..theme import Tokens


class Lines(Painted):
    """Lines of pieces; too long ones are cut with an ellipsis. Its natural height is their number."""

    DEFAULT_CSS = """
    Lines { height: auto; }
    """

    def __init__(self, lines: Sequence[Segments] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._lines: tuple[Segments, ...] = tuple(lines)

    @property
    def rows(self) -> int:
        """How many lines there are: the height it is given at the next layout."""
        return len(self._lines)

    def show(self, lines: Sequence[Segments]) -> None:
        """Replace all lines."""
        lines = tuple(tuple(line) for line in lines)
        if lines == self._lines:
            return
        taller = len(lines) != len(self._lines)
        self._lines = lines
        if taller and self.is_mounted:
            self.refresh(layout=True)
        self.repaint()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return max((cells_of(line) for line in self._lines), default=0)

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        return [strip_of(cut(line, width, tokens.glyphs.ellipsis), width, tokens) for line in self._lines[:height]]


def cells_of(segments: Segments) -> int:
    """Cells a line of pieces takes."""
    return sum(width(visible(text)) for text, _ in segments)


def cut(segments: Segments, cells: int, ellipsis: str = "…") -> list[tuple[str, str]]:
    """``segments`` cut to at most ``cells`` cells, the cut marked with an ellipsis."""
    left = cells - cells_of(segments)
    if left >= 0:
        return list(segments)
    pieces: list[tuple[str, str]] = []
    room = cells
    for index, (text, spec) in enumerate(segments):
        size = width(visible(text))
        more = index + 1 < len(segments)
        if size + (1 if more else 0) > room or (size == room and more):
            pieces.append((fit(text + (" " if size <= room else ""), room, ellipsis=ellipsis).rstrip(" "), spec))
            break
        pieces.append((text, spec))
        room -= size
    return pieces


def spread(left: Segments, right: Segments, cells: int, ellipsis: str = "…") -> list[tuple[str, str]]:
    """One line with ``left`` at its start and ``right`` at its end. When both do not fit, the left is cut; when the
    right alone does not fit, it goes."""
    room = cells - cells_of(right)
    if room < min(cells_of(left), cells // 2):
        return cut(left, cells, ellipsis)
    pieces = cut(left, room - 1, ellipsis)
    gap = room - cells_of(pieces)
    return [*pieces, (" " * gap, "text"), *right]


def wrap(segments: Segments, cells: int) -> list[list[tuple[str, str]]]:
    """Pieces broken at spaces into lines of at most ``cells`` cells; words longer than a line are broken anywhere."""
    lines: list[list[tuple[str, str]]] = [[]]
    used = 0
    for text, spec in segments:
        for word in _words(visible(text)):
            size = width(word)
            if used + width(word.rstrip(" ")) > cells and used:
                lines.append([])
                used = 0
                if word.isspace():
                    continue
            while size > cells and width(word.rstrip(" ")) > cells:
                head = cut_text(word, cells) or word[:1]
                lines[-1].append((head, spec))
                lines.append([])
                word = word[len(head) :]
                size = width(word)
            lines[-1].append((word, spec))
            used += size
    return [_without_trailing_spaces(line) for line in lines]


def hang(segments: Segments, cells: int, labels: int = 1) -> list[list[tuple[str, str]]]:
    """Like :func:`wrap`; lines after the first begin below the piece that follows the first ``labels`` ones."""
    if cells_of(segments) <= cells or len(segments) <= labels:
        return wrap(segments, cells)
    indent = cells_of(segments[:labels])
    rest = wrap(segments[labels:], max(cells - indent, 10))
    return [
        [*(segments[:labels] if not number else [(" " * indent, "text")]), *line] for number, line in enumerate(rest)
    ]


def first_rows(lines: Sequence[Segments], rows: int, cells: int, ellipsis: str = "…") -> list[list[tuple[str, str]]]:
    """At most ``rows`` of these lines of a text that hangs; the last of them is cut with its sign where there are
    more."""
    kept = [list(line) for line in lines[:rows]]
    if len(lines) <= rows:
        return kept
    last = [*lines[rows - 1], (" ", "muted"), *lines[rows][1:], ("  ", "muted")]
    return [*kept[:-1], cut(last, cells, ellipsis)]


def _without_trailing_spaces(line: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """A space at the end of a full line has no cell of its own."""
    while line and not (kept := line[-1][0].rstrip(" ")):
        line.pop()
    if line:
        line[-1] = (kept, line[-1][1])
    return line


def _words(text: str) -> list[str]:
    """Words with the spaces that follow them."""
    words: list[str] = []
    start = 0
    for index in range(1, len(text)):
        if text[index] != " " and text[index - 1] == " ":
            words.append(text[start:index])
            start = index
    words.append(text[start:])
    return [word for word in words if word]
