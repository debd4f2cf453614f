"""This module saves what is on the screen: as a picture, or with the findings as a page.

Both are files of their own that load nothing: the picture is SVG, the page HTML.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...paths import data_folder
from ...text.styled import Line
from ..terminal.copying import strips_of
from ..theme import DARK, Tokens
from ..widgets.program import program
from .result_files import short_path

if TYPE_CHECKING:
    from rich.style import Style
    from textual.app import App
    from textual.strip import Strip

REPORT_CELLS = 100


def save(kind: str, suffix: str, text: str) -> Path:
    """Write ``text`` into a new private file below the user's data folder.

    Raises OSError.
    """
    folder = data_folder() / kind
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stem = time.strftime("gpuscope-%Y%m%d-%H%M%S")
    path, number = folder / f"{stem}.{suffix}", 2
    while path.exists():
        path, number = folder / f"{stem}-{number}.{suffix}", number + 1
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def say_saved(app: App[Any], what: str, kind: str, suffix: str, text: str) -> None:
    """Write the file, and say where it is; its path goes to the clipboard."""
    try:
        path = save(kind, suffix, text)
    except OSError as error:
        program(app).say(f"{what} was not saved: {error.strerror}", "warn")
        return
    app.copy_to_clipboard(str(path))
    program(app).say(f"{what} saved: {short_path(path)}", path=path)


def save_picture(app: App[Any]) -> None:
    """Save the screen on top as SVG."""
    from ..terminal.picture import screen_svg

    say_saved(app, "picture", "pictures", "svg", screen_svg(app, "gpuscope"))


def save_report(app: App[Any]) -> None:
    """Save the screen on top and the findings of the Doctor as one HTML page."""
    say_saved(app, "report", "reports", "html", page(app))


def page(app: App[Any]) -> str:
    """Return the page."""
    from ... import __version__

    host, tokens = program(app).session.host, Tokens.of(app)
    name = host.name if host is not None else "no host"
    when = time.strftime(
        "%Y-%m-%d %H:%M:%S",
        time.localtime(host.wall_seconds if host is not None and host.wall_seconds else None),
    )
    # the sixteen colours of a terminal have no values that a page could name
    theme = app.available_themes[DARK] if app.current_theme.ansi else app.current_theme
    screen = "\n".join(_marked(strip) for strip in strips_of(app.screen))
    findings = "\n".join(_lines(findings_of(app), tokens))
    title = f"gpuscope: {escape(name)}, {when}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ background: {theme.background}; color: {theme.foreground}; margin: 2em; }}
body {{ font-family: sans-serif; }}
pre {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; line-height: 1.2; }}
</style></head><body>
<h1>{title}</h1>
<h2>Screen</h2>
<pre>{screen}</pre>
<h2>Findings</h2>
<pre>{findings}</pre>
<p>Made by gpuscope {escape(__version__)}.</p>
</body></html>
"""


def findings_of(app: App[Any]) -> list[Line]:
    """Return the findings that hold now, as ``gpuscope doctor`` prints them."""
    from ...doctor.report import lines

    watch = program(app).session.doctor
    holding = tuple(case.finding for case in watch.cases if not case.past)
    return lines(replace(watch.report, findings=holding), None, REPORT_CELLS)


def _lines(lines: Iterable[Line], tokens: Tokens) -> Iterable[str]:
    for line in lines:
        yield "".join(_span(text, tokens.style(token)) for text, token in line)


def _marked(strip: Strip) -> str:
    return "".join(_span(segment.text, segment.style) for segment in strip).rstrip()


def _span(text: str, style: Style | None) -> str:
    rules = []
    if style is not None:
        front, ground = style.color, style.bgcolor
        if style.reverse:
            front, ground = ground, front
        if front is not None and not front.is_default:
            rules.append(f"color:{front.get_truecolor().hex}")
        if ground is not None and not ground.is_default:
            rules.append(f"background:{ground.get_truecolor().hex}")
        if style.bold:
            rules.append("font-weight:bold")
        if style.underline:
            rules.append("text-decoration:underline")
    escaped = escape(text)
    return f'<span style="{";".join(rules)}">{escaped}</span>' if rules else escaped
