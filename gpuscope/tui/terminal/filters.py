"""Every line passes these filters on its way to the terminal, whichever widget drew it.

One is the last guard, one takes the colours away, and one makes plain ASCII.
"""

from __future__ import annotations

from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from ...text.width import cells as text_cells
from ..cells import visible
from ..theme import FRAMES

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("─━═┄┈╌╍╸╺▔⠢", "-"),
        **dict.fromkeys("│║┆╎‖∥", "|"),
        "┃": "#",
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝┏┓┗┛╋", "+"),
        **dict.fromkeys("█▇▆▉▊▋⠿", "#"),
        **dict.fromkeys("▅▄▌▍▒▓⠶", "="),
        **dict.fromkeys("▃▂▎", "-"),
        **dict.fromkeys("▁▏⣀", "_"),
        **dict.fromkeys("…", "~"),
        **dict.fromkeys("–—−‑", "-"),
        **dict.fromkeys("·•░", "."),
        **dict.fromkeys("●○□", "o"),
        **dict.fromkeys("◆◇", "*"),
        **dict.fromkeys("▲△", "!"),
        **dict.fromkeys("▸▶►→", ">"),
        **dict.fromkeys("◀◂←", "<"),
        **dict.fromkeys("↑▴", "^"),
        **dict.fromkeys("↓▾▼", "v"),
        **dict.fromkeys("×╳✖", "x"),
        **dict.fromkeys("■", "#"),
        **dict.fromkeys("≡", "="),
        **dict.fromkeys("≠", "!"),
        **dict.fromkeys("≈", "~"),
        **dict.fromkeys("ø", "o"),
        **dict.fromkeys("✓", "+"),
        **dict.fromkeys("‘’╵▀", "'"),
        **dict.fromkeys("“”", '"'),
        "°": " ",
        "µ": "u",
        "╱": "/",
        "╲": "\\",
        "↻": "@",
        "²": "2",
        "±": "~",
        "≤": "<",
        "≥": ">",
        "┤": "+",
    }
)


class Guard(LineFilter):
    """A filter that makes control characters visible in whatever is about to be drawn.

    Textual's own widgets are included.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the same pieces with safe text."""
        # nearly always: our own lines are safe already
        if all(visible(text) == text for text, _, _ in segments):
            return segments
        return [Segment(visible(text), style, control) for text, style, control in segments]


class PlainAscii(LineFilter):
    """A filter that leaves nothing but ASCII, in the same cells.

    It is for terminals and fonts that have nothing else.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the same pieces with a likeness for each character.

        Where there is none, it is a ``?`` for each cell that the character takes.
        """
        return [Segment(plain(text), style, control) for text, style, control in segments]


class NoColours(LineFilter):
    """A filter that leaves the terminal's own two colours, and bold, dim and reverse.

    A stylesheet cannot ask for a dim frame: it becomes one here.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the same pieces without colours."""
        return [
            Segment(text, style and uncoloured(style), control) for text, style, control in segments
        ]


@lru_cache(maxsize=4096)
def uncoloured(style: Style) -> Style:
    """Return a style with the colours that a terminal has by itself."""
    colour = style.color
    frame = colour is not None and (colour.triplet or colour.number) in FRAMES
    return style + Style(color="default", bgcolor="default", dim=frame or None)


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """Return ``text`` in ASCII, as many cells wide as before."""
    if text.isascii():
        return text
    text = text.translate(_PLAIN)
    return "".join(char if char.isascii() else "?" * text_cells(char) for char in text)
