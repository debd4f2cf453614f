"""What is noted as sent is what the terminal shows."""

from __future__ import annotations

import random

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from gpuscope.tui.terminal.screen_shadow import MAX_PIECES, Shadow

WIDTH = 60
PLAIN = Style()


def line(chars: list[str]) -> Strip:
    return Strip([Segment(char, PLAIN) for char in chars], len(chars))


def test_pieces_lie_above_the_line_and_above_each_other_in_the_order_in_which_they_came():
    dice = random.Random(7)
    for pieces in (1, 5, MAX_PIECES + 3):
        for longest in (1, 3, 20):
            shadow, shown = Shadow(), ["."] * WIDTH
            shadow.fit(WIDTH, 1)
            shadow.note(0, 0, WIDTH, line(shown))
            for _ in range(pieces):
                x = dice.randrange(WIDTH)
                end = min(WIDTH, x + dice.randint(1, longest))
                shown[x:end] = dice.choices("abcdef", k=end - x)
                shadow.note(x, 0, end, line(shown[x:end]))
            assert shadow.changes(0, 0, WIDTH, line(shown)) == []


def test_only_what_differs_is_sent():
    shadow = Shadow()
    shadow.fit(WIDTH, 1)
    before = line(list("a" * WIDTH))
    assert shadow.changes(0, 0, WIDTH, before) == [(0, 0, WIDTH, before)], "nothing is known yet"
    after = line([*"a" * 20, "b", *"a" * (WIDTH - 21)])
    assert [(x, end) for x, _, end, _ in shadow.changes(0, 0, WIDTH, after)] == [(20, 21)]
