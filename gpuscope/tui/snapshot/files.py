"""This module lists the other snapshots that one can be compared with."""

from __future__ import annotations

from pathlib import Path

from ...paths import data_folder
from ...text.clock import DATE_AND_SECOND, clock_text
from ...text.units import bytes_text
from ..shell.keymap import key_of
from ..widgets.full_screen import named_path
from ..widgets.table import Column, TableRow

FILE_COLUMNS = (
    Column("name", f"COMPARE WITH ({key_of('select', 'LiveTable')})", 20, flex=1),
    Column("size", "SIZE", 9, align="right"),
    Column("when", "TAKEN", 19, priority=1),
)
MOST_FILES = 200


def neighbours(path: Path) -> list[Path]:
    """Other snapshots beside this one and in our data folder, the newest first."""
    found: dict[Path, float] = {}
    for folder in (path.parent, data_folder() / "snapshots"):
        try:
            for other in folder.iterdir():
                if (
                    other.suffix in (".pickle", ".pkl", ".gz")
                    and other.is_file()
                    and not other.samefile(path)
                ):
                    found[other.resolve()] = other.stat().st_mtime
        except OSError:
            continue
    return sorted(found, key=lambda other: -found[other])[:MOST_FILES]


def file_row(path: Path) -> TableRow:
    try:
        status = path.stat()
        size, when = bytes_text(status.st_size), clock_text(status.st_mtime, DATE_AND_SECOND)
    except OSError:
        size, when = "–", "–"
    return TableRow(str(path), {"name": named_path(path), "size": size, "when": [(when, "muted")]})
