"""This module saves what is on the screen: as a picture, or as a report with all that is known.

Both are files of their own that load nothing: the picture is SVG, the report HTML.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...paths import data_folder, new_file, short_path
from ...process import atomic_file
from ...report.content import Chapter, Code, Section
from ..terminal.copying import strips_of
from ..widgets.full_screen import FullScreen
from ..widgets.program import program

if TYPE_CHECKING:
    from textual.app import App

    from ...doctor.finding import Report

WINDOW_SECONDS = 3600.0
"""How far back a report shows the time of a training."""


def save(kind: str, suffix: str, text: str) -> Path:
    """Write ``text`` into a new private file below the user's data folder.

    Raises OSError.
    """
    path = new_file(data_folder() / kind, time.strftime("gpuscope-%Y%m%d-%H%M%S"), suffix)
    atomic_file.write_text(path, text)
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
    """Save all that is known of the subjects on the screen as one HTML page."""
    say_saved(app, "report", "reports", "html", page(app))


def page(app: App[Any]) -> str:
    """Return the page: of the file on the screen, else of the host that is looked at."""
    from ... import __version__
    from ...report.page import html

    chapters = _of_file(app) or [*_of_ledger(app), *_of_host(app)]
    if not chapters:
        chapters = [Chapter("gpuscope", "Screen", [])]
    chapters[0] = replace(chapters[0], sections=[*chapters[0].sections, _screen(app)])
    when = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return html(chapters, f"Made by gpuscope {__version__} on {when}.")


def _screen(app: App[Any]) -> Section:
    """Return the screen on top as text."""
    lines = [strip.text.rstrip() for strip in strips_of(app.screen)]
    size = f"{app.size.width} by {app.size.height} cells"
    return Section("The screen", [Code("", lines, source="the screen as it was shown", when=size)])


def _of_file(app: App[Any]) -> list[Chapter]:
    """Return the chapter of the file that the screen on top shows, if it shows one."""
    return app.screen.chapters() if isinstance(app.screen, FullScreen) else []


def _of_ledger(app: App[Any]) -> list[Chapter]:
    """Return the chapter of the Lab's runs on the Lab's tab."""
    from ...lab.ledger import LedgerError, RunLedger
    from ...report.runs import of_entries

    if program(app).tab_shown() != "lab":
        return []
    try:
        entries = RunLedger().entries()
    except LedgerError as error:
        return [Chapter("Runs of the Lab", "Ledger of runs", [], (), [str(error)])]
    return [of_entries(entries, "Runs of the Lab")] if entries else []


def _of_host(app: App[Any]) -> list[Chapter]:
    """Return the chapter of the host that is looked at, at the moment that is shown."""
    from ...cli import trainer_times
    from ...report.host import Watched, chapter

    session = program(app).session
    host, store = session.host, session.known
    if host is None or store is None or host.sampled_seconds is None:
        return []
    times = trainer_times.documents(host, session.history, WINDOW_SECONDS)
    watched = Watched.of(store, host, session.history, report=findings_of(app), times=times)
    kind = "Recording" if session.replay is not None else "What the screen has seen"
    return [chapter(watched, host.name, kind)]


def findings_of(app: App[Any]) -> Report:
    """Return the findings that hold now, as ``gpuscope doctor`` prints them."""
    watch = program(app).session.doctor
    holding = tuple(case.finding for case in watch.cases if not case.past)
    return replace(watch.report, findings=holding)
