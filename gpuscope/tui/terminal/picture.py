"""This module draws the screen as SVG, in the colours that the terminal is drawn in."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.app import App


def screen_svg(app: App[Any], title: str) -> str:
    """Return the screens that are seen, as SVG.

    Textual's own export renders every style in true colour. Rich keeps the first escape sequence
    that a style was rendered to, so that a terminal of 256 colours would be sent those from then
    on. The colours in the SVG are those of the styles either way.
    """
    from rich.console import Console

    width, height = app.size
    console = Console(
        width=width,
        height=height,
        file=io.StringIO(),
        force_terminal=True,
        color_system=app.console.color_system,  # type: ignore[arg-type]
        record=True,
        legacy_windows=False,
        safe_box=False,
    )
    console.print(
        app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    )
    return console.export_svg(title=title)
