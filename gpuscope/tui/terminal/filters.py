"""What every line passes on its way to the terminal, whichever widget drew it: the last guard, and plain ASCII."""

from __future__ import annotations

from functools import lru_cache

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from ...text.width import cells as text_cells
from ..cells import visible

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("─━═┄┈╌▔", "-"),
        **dict.fromkeys("│║┆╎", "|"),
        "┃": "#",
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝┏┓┗┛", "+"),
        **dict.fromkeys("█▇▆▉▊▋", "#"),
        **dict.fromkeys("▅▄▌▍▒▓", "="),
        **dict.fromkeys("▃▂▎", "-"),
        **dict.fromkeys("▁▏", "_"),
        **dict.fromkeys("…", "~"),
        **dict.fromkeys("–—−‑", "-"),
        **dict.fromkeys("·•░", "."),
        **dict.fromkeys("●○", "o"),
        **dict.fromkeys("◆◇", "*"),
        **dict.fromkeys("▲", "!"),
        **dict.fromkeys("▸▶►→", ">"),
        **dict.fromkeys("◀◂←", "<"),
        **dict.fromkeys("↑▴", "^"),
        **dict.fromkeys("↓▾▼", "v"),
        **dict.fromkeys("×╳", "x"),
        **dict.fromkeys("‘’", "'"),
        **dict.fromkeys("“”", '"'),
        "°": " ",
        "µ": "u",
        "±": "~",
        "≤": "<",
        "≥": ">",
        "┤": "+",
    }
)


class Guard(LineFilter):
    """Makes control characters visible in whatever is about to be drawn, Textual's own widgets included."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the same pieces with safe text."""
        if all(visible(text) == text for text, _, _ in segments):  # nearly always: our own lines are safe already
            return segments
        return [Segment(visible(text), style, control) for text, style, control in segments]


class PlainAscii(LineFilter):
    """Nothing but ASCII, in the same cells: for terminals and fonts that have nothing else."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same pieces with each character replaced by a likeness, or by ``?`` for each cell it takes."""
        return [Segment(plain(text), style, control) for text, style, control in segments]


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """``text`` in ASCII, as many cells wide as before."""
    if text.isascii():
        return text
    text = text.translate(_PLAIN)
    return "".join(char if char.isascii() else "?" * text_cells(char) for char in text)
