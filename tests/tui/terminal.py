"""A terminal for tests: it is fed what an app would write, and knows what stands in each cell.

It proves that partial repaints leave the same screen as a full one, and counts the bytes they take.
"""

from __future__ import annotations

import re
from typing import Any

from rich.cells import cell_len
from textual._compositor import CompositorUpdate
from textual.app import App

Look = tuple[str, str, frozenset[str]]
"""Foreground, background, attributes."""
PLAIN: Look = ("39", "49", frozenset())
_TOKEN = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]")


class Terminal:
    """A terminal that understands cursor positions, styles (SGR) and text.

    A compositor's update is made of nothing else.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.rows: list[list[tuple[str, Look]]] = [[(" ", PLAIN)] * width for _ in range(height)]
        self.bytes = 0

    def feed(self, data: str) -> None:
        """Apply one update."""
        self.bytes += len(data.encode())
        x = y = 0
        style = PLAIN
        for match in _TOKEN.finditer(data):
            args, command = match[1], match[2]
            if command == "H":
                row, _, column = args.partition(";")
                y, x = int(row or 1) - 1, int(column or 1) - 1
            elif command == "m":
                style = restyled(style, args)
            elif match[0] == "\n":
                x, y = 0, y + 1
            elif match[0] != "\r" and command is None:
                size = cell_len(match[0])
                if size == 0:
                    if y < len(self.rows) and x <= self.width:  # else drawn for the size before
                        self.rows[y][x - 1] = (self.rows[y][x - 1][0] + match[0], style)
                    continue
                for part in range(size):
                    if y < len(self.rows) and x + part < self.width:
                        self.rows[y][x + part] = (
                            match[0] if part == 0 else "",
                            blank(style) if match[0] == " " else style,
                        )
                x += size

    def text(self) -> str:
        """The characters, lines without trailing blanks."""
        return "\n".join("".join(char for char, _ in row).rstrip() for row in self.rows)


def blank(look: Look) -> Look:
    """What can be seen of a look where there is only a space: its ground, and lines."""
    seen = look[2] & {"4", "5", "7", "9", "21", "53"}
    return (look[0] if seen else "39", look[1], seen)


def restyled(look: Look, args: str) -> Look:
    """What an SGR sequence makes of a look."""
    front, back, attributes = look
    codes = args.split(";")
    while codes:
        code = codes.pop(0)
        if code in ("38", "48"):
            size = 1 if codes[0] == "5" else 3
            colour = ";".join([code, *codes[: size + 1]])
            del codes[: size + 1]
            front, back = (colour, back) if code == "38" else (front, colour)
        elif code in ("", "0"):
            front, back, attributes = PLAIN
        elif 30 <= int(code) <= 39 or 90 <= int(code) <= 97:
            front = code
        elif 40 <= int(code) <= 49 or 100 <= int(code) <= 107:
            back = code
        else:
            attributes = attributes | {code}
    return front, back, attributes


class Mirrored(App[Any]):
    """An app whose updates also reach a :class:`Terminal`, as they would a real one.

    It is ``self.terminal``.
    """

    terminal: Terminal | None = None
    draws = True

    def _display(self, screen: Any, renderable: Any) -> None:
        super()._display(screen, renderable)
        if isinstance(renderable, CompositorUpdate) and not self._batch_count:
            if self.terminal is None:
                self.terminal = Terminal(*self.size)
            self.terminal.feed(renderable.render_segments(self.console))

    def redrawn(self) -> Terminal:
        """What a terminal shows after the whole screen was drawn from nothing."""
        fresh = Terminal(*self.size)
        for widget in self.screen.walk_children():
            widget._styles_cache.clear()
        fresh.feed(self.screen._compositor.render_full_update().render_segments(self.console))
        return fresh
