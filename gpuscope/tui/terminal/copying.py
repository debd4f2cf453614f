"""A screen as text: what is drawn, line by line, to the clipboard (OSC 52) and to a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.app import App
from textual.screen import Screen
from textual.strip import Strip

from ... import paths
from ...process import atomic_file
from ..cells import visible

OSC52_LIMIT_BYTES = 70_000
"""The longest text to copy: terminals drop longer ones, or break. The file has everything."""


def strips_of(screen: Screen[Any]) -> list[Strip]:
    """Return the lines on screen with their styles."""
    return screen._compositor.render_strips()


def text_of(screen: Screen[Any]) -> str:
    """Return the lines on screen, without styles and trailing blanks."""
    return "\n".join(visible(strip.text).rstrip() for strip in strips_of(screen)) + "\n"


def write(text: str, folder: Path | None = None) -> Path:
    """Write ``text`` into a new private file.

    Raises OSError.
    """
    folder = folder or paths.state_folder() / "copies"
    path = paths.new_file(folder, time.strftime("gpuscope-%Y%m%d-%H%M%S"), "txt")
    atomic_file.write_text(path, text)
    return path


def copy_screen(screen: Screen[Any], say: Callable[..., object]) -> None:
    """Copy the screen to the clipboard and into a file."""
    copy_text(screen.app, say, text_of(screen))


def copy_text(app: App[Any], say: Callable[..., object], text: str) -> None:
    """Copy ``text`` to the clipboard and into a file; ``say`` tells where that is, or why not."""
    if len(text.encode()) <= OSC52_LIMIT_BYTES:
        app.copy_to_clipboard(text)
    try:
        say(f"copied, and written to {paths.short_path(write(text))}")
    except OSError as error:
        say(f"sent to the clipboard only: no file ({error.strerror})", "warn")
