"""Esc is a key whatever comes behind it; a sequence of the terminal stays one.

By Textual's own parser.
"""

from __future__ import annotations

import time

from textual import constants, events
from textual._xterm_parser import XTermParser

from gpuscope.tui.terminal.escapes import Escapes
from tests.fakes.cases import each


def keys(*pieces: str | float) -> list[str]:
    """Return the names of the keys that pieces mean.

    They are read one after the other, some seconds apart where a number says so.
    """
    parser, escapes, found = XTermParser(), Escapes(), []

    def tick() -> None:
        for event in parser.tick():
            escapes.decided()
            found.append(event)

    for piece in pieces:
        if isinstance(piece, float):
            time.sleep(piece)
        else:
            found.extend(parser.feed(escapes.apart(piece)))
        tick()
    time.sleep(constants.ESCAPE_DELAY * 1.2)
    tick()
    return [event.key if isinstance(event, events.Key) else type(event).__name__ for event in found]


@each(
    ("pieces", "wanted"),
    [
        (("\x1bj",), ["escape", "j"]),
        (("\x1b", "j"), ["escape", "j"]),
        (("\x1bf\x1bb",), ["escape", "f", "escape", "b"]),
        (("\x1b/ada\r",), ["escape", "slash", "a", "d", "a", "enter"]),
        (("\x1b",), ["escape"]),
        (("\x1b", 0.15, "j"), ["escape", "j"]),
        (("\x1b", 0.15, "[A"), ["escape", "left_square_bracket", "A"]),
        (("\x1b\x1bj",), ["escape", "escape", "j"]),
        (("\x1b", "\x1b", "j"), ["escape", "escape", "j"]),
        (("\x1b\r",), ["escape", "enter"]),
        (("\x1bé",), ["escape", "é"]),
        (("\x1b[A", "\x1bOB", "\x1b", "[C", "\x1b[", "D"), ["up", "down", "right", "left"]),
        (("\x1b[15~", "\x1b[Z", "\x1b[27u"), ["f5", "shift+tab", "escape"]),
        (("\x1b[<0;3;4M",), ["MouseDown"]),
        (("\x1b[200~one two\x1b", "[201~", "\x1bj"), ["Paste", "escape", "j"]),
        (("\x1b[I\x1b[O",), ["AppFocus", "AppBlur"]),
    ],
)
def test_what_pieces_mean(pieces, wanted):
    assert keys(*pieces) == wanted
