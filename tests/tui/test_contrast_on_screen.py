"""On the screens themselves every text differs enough from its ground: 4.5 to 1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuscope.tui import theme
from gpuscope.tui.app.app import GpuscopeApp
from tests.fakes import jobs, views
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.test_theme import contrast, rgb

LEAST = 4.5
COLOURED = [name for name in theme.THEME_NAMES if name != "ansi"]
"""The themes whose colours are ours; what the others look like is the terminal's choice."""
KEYS = ("1", "2", "W", "3", "4", "5", "6", "P")
"""The tabs, the fixes of the Memory tab, and the screen of processes."""
FIELDS = {"P slash": "filter: user, command", "colon": "an action, gpu 3", "5 enter": "or type:"}
"""Keys that open a field to type into → the text in it while it is empty."""


def too_faint(app: GpuscopeApp) -> Iterator[str]:
    """Yield each text of the screen on top that differs too little from its ground."""
    for strip in app.screen._compositor.render_strips():
        for text, style, _ in strip:
            if style is None or style.color is None or style.bgcolor is None:
                continue
            ink, ground = rgb(style.color), rgb(style.bgcolor)
            if any(map(str.isalnum, text)) and contrast(ink, ground) < LEAST:
                yield f"{text.strip()!r} {contrast(ink, ground):.2f}"


@pytest.mark.parametrize("name", COLOURED)
@in_loop
async def test_no_text_of_a_screen_is_too_faint(name):
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "stalled: rank 3")
        app.choose_theme(name)
        for key in KEYS:
            await pilot.press(key)
            await pilot.pause(0.1)
            assert list(too_faint(app)) == [], key


@pytest.mark.parametrize("name", COLOURED)
@pytest.mark.parametrize("keys", FIELDS)
@in_loop
async def test_the_text_of_an_empty_field_can_be_read(name, keys):
    app = make_app(views.training(3.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train.py")
        app.choose_theme(name)
        for key in keys.split():
            await pilot.press(key)
        await until(pilot, FIELDS[keys])
        field = FIELDS[keys].split(":")[0][1:]  # the cursor stands on its first letter
        assert [found for found in too_faint(app) if field in found] == []
