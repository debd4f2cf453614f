"""Pasted text is text.

Whatever is in it presses no key, and it comes where the keys before it lead.
"""

from __future__ import annotations

import time

import pytest
from textual import constants, events
from textual._xterm_parser import XTermParser

from gpuscope.tui.terminal.escapes import Escapes
from tests.fakes import views
from tests.tui.pilot import in_loop, make_app, until

COLOURED = "a\x1b[31mred\x1b[0m\x1b]0;title\x07\nq\tq\x1b[A\x1bq\x1b[20" * 20
PLAIN = COLOURED.replace("\x1b", "")


def said(*pieces: str) -> list[str]:
    """Names of keys, and texts that were pasted, from pieces read one after the other."""
    parser, escapes, found = XTermParser(), Escapes(), []
    for piece in pieces:
        typed = escapes.apart(piece)
        found.extend(parser.feed(typed) if typed else ())
        for event in parser.tick():
            escapes.decided()
            found.append(event)
    time.sleep(constants.ESCAPE_DELAY * 1.2)
    found.extend(parser.tick())
    return [event.key if isinstance(event, events.Key) else event.text for event in found]


def test_escapes_in_a_paste_press_no_key():
    assert said(f"/\x1b[200~{COLOURED}\x1b[201~x\x1bj") == ["slash", PLAIN, "x", "escape", "j"]


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_paste_whose_marks_come_in_halves(cut):
    begin, end = "\x1b[200~", "\x1b[201~"
    halves = ("/" + begin[:3], begin[3:] + COLOURED + end[:cut], end[cut:] + "j")
    assert said(*halves) == ["slash", PLAIN, "j"]
    assert said(f"{begin}one{end[:cut]}", f"two{end}", "\x1b[20", "~") == [
        f"one{end[1:cut]}two",
        "f9",
    ]


def test_a_key_in_halves_is_still_a_key():
    assert said("\x1b[2", "~") == ["insert"]
    assert said("\x1b[2", "0~\x1b", "[A") == ["f9", "up"]


@in_loop
async def test_a_paste_right_behind_the_key_that_opens_the_filter(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    app = make_app(views.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        for event in (
            events.Key("slash", "/"),
            events.Key("H", "H"),
            events.Paste("20"),
            events.Key("0", "0"),
        ):
            app.post_message(event)
        await until(pilot, "filter: H200")
