"""Snapshots of a screen: every character and every style, as text that a diff can be read in.

``await check(pilot, name)`` inside a running pilot, or ``snapshot(make, name, width, height)`` from
a plain test. The files lie in ``tests/tui/snapshots/``; ``GPUSCOPE_UPDATE_SNAPSHOTS=1`` writes them
anew. Look at the diff, and at a picture (``tests/tui/picture.py``), before you commit it.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import os
import string
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.style import Style
from textual._context import visible_screen_stack
from textual.app import App
from textual.pilot import Pilot
from textual.strip import Strip

FOLDER = Path(__file__).parent / "snapshots"
WAIT_SECONDS = 15.0
"""How long a screen may take to look as it is stored: parts of it are drawn later than others."""
SIZES = [
    (80, 24),
    pytest.param((120, 40), marks=pytest.mark.slow),
    pytest.param((200, 60), marks=pytest.mark.slow),
]
"""Sizes of the terminals in which screens are stored; quick tests look at the smallest."""
LETTERS = (
    string.ascii_lowercase + string.ascii_uppercase + string.digits + "!$%&()*+,-/:;<=>?@[]^_{|}~"
)


def strips(app: App[Any]) -> list[Strip]:
    """The lines of the screen, with the screens that show through it."""
    visible_screen_stack.set(app._background_screens)
    return app.screen._compositor.render_strips()


def grid(app: App[Any]) -> list[list[tuple[str, Style]]]:
    """The screen as rows of cells; the second half of a wide character is an empty string."""
    rows = []
    for strip in strips(app):
        row: list[tuple[str, Style]] = []
        for text, given, _ in strip:
            style = given or Style()
            if text.isascii() and text.isprintable():
                row.extend((char, style) for char in text)
                continue
            for char in text:
                size = cell_len(char)
                if size == 0 and row:
                    row[-1] = (row[-1][0] + char, row[-1][1])
                    continue
                row.append((char, style))
                row.extend([("", style)] * (size - 1))
        rows.append(row)
    return rows


def text(app: App[Any]) -> str:
    """The characters on the screen, lines without trailing blanks."""
    return "\n".join(strip.text.rstrip() for strip in strips(app))


def describe(app: App[Any]) -> str:
    """Characters, then a letter per cell for its style, then what the letters mean."""
    rows = grid(app)
    letters: dict[str, str] = {}
    styles = []
    for row in rows:
        line = ""
        for _, style in row:
            name = _name(style)
            if name not in letters:
                letters[name] = LETTERS[len(letters)]
            line += letters[name]
        styles.append(line)
    key = "\n".join(f"{letter} {name}" for name, letter in letters.items())
    return f"{text(app)}\n\n──── styles\n" + "\n".join(styles) + f"\n\n──── key\n{key}\n"


@functools.cache
def _name(style: Style) -> str:
    words = [
        word for word in ("bold", "dim", "italic", "underline", "reverse") if getattr(style, word)
    ]
    words.append(style.color.name if style.color else "default")
    if style.bgcolor:
        words.append(f"on {style.bgcolor.name}")
    return " ".join(words)


async def check(pilot: Pilot[Any], name: str) -> None:
    """Wait until the screen is as the stored one; fail with the difference.

    A missing file is a failure that says how to make it.
    """
    app = pilot.app
    await pilot.pause()
    path = FOLDER / f"{name}-{app.size.width}x{app.size.height}.txt"
    if os.environ.get("GPUSCOPE_UPDATE_SNAPSHOTS") == "1":
        await pilot.pause(1.0)
        FOLDER.mkdir(exist_ok=True)
        path.write_text(describe(app), encoding="utf-8")
        return
    assert path.exists(), (
        f"no snapshot {path.name}: make it with GPUSCOPE_UPDATE_SNAPSHOTS=1, and look at it"
    )
    stored, deadline = path.read_text(encoding="utf-8"), time.monotonic() + WAIT_SECONDS
    # the characters come first, and cost little; the styles are read once those are there
    while not (stored.startswith(text(app)) and describe(app) == stored):
        if time.monotonic() > deadline:
            lines = (stored.splitlines(), describe(app).splitlines())
            diff = difflib.unified_diff(*lines, "stored", "found", lineterm="", n=1)
            raise AssertionError(f"{path.name} differs\n" + "\n".join(list(diff)[:80]))
        await pilot.pause(0.05)


def run(
    make: Callable[[], App[Any]],
    body: Callable[[Pilot[Any]], Awaitable[None]],
    width: int = 80,
    height: int = 24,
) -> None:
    """Run an app at a size and ``body`` with its pilot: pilot tests without a plugin."""

    async def session() -> None:
        async with make().run_test(size=(width, height)) as pilot:
            await pilot.pause()
            await body(pilot)

    asyncio.run(session())


def snapshot(
    make: Callable[[], App[Any]], name: str, width: int, height: int, keys: tuple[str, ...] = ()
) -> None:
    """Run an app at a size, press ``keys``, compare its screen."""

    async def body(pilot: Pilot[Any]) -> None:
        await pilot.press(*keys)
        await pilot.pause()
        await check(pilot, name)

    run(make, body, width, height)
