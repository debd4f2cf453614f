"""This module names the row under the cursor of a screen, and says what Enter does with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...text import styled
from ...text.width import cut
from ..overview.cursors import opens as opens_line
from ..overview.job_list import JobList
from ..widgets.table import LiveTable

if TYPE_CHECKING:
    from textual.screen import Screen

    from ...store.view import HostView

ROW_WORDS = 2
"""How many cells of a row are named to say which row it is."""
ROW_CELLS = 24
NAMES = ("host",)
"""Columns that alone say which row it is."""
NOT_A_NAME = ("time", "sign")
"""Columns that say nothing about which row it is."""
OPENS = {
    "devices": "everything about {row}",
    "jobs": "the page of {row}",
    "top-findings": "the finding in the Doctor, with its fix",
    "top-processes": "everything about {row}",
    "fleet-hosts": "the tabs of {row}",
    "time-rows": "what is in this row",
    "time-steps": "the step breakdown of this rank",
    "time-ranks": "where the time of this rank goes",
    "time-findings": "the finding in full",
}
"""What Enter opens, by the list that has the keyboard."""


def what_opens(screen: Screen[Any], host: HostView | None) -> str:
    """Return what Enter opens of the row under the cursor, "" where the list does not say."""
    table = screen.focused
    opens = OPENS.get(getattr(table, "id", None) or "", "")
    if isinstance(table, JobList) and host is not None and (of_line := opens_line(table, host)):
        opens = opens if of_line == "ranks" else of_line
    return opens.format(row=row_of(screen) or "the row") if opens else ""


def row_of(screen: Screen[Any]) -> str:
    """Return the first words of the row under the cursor of the list that has the keyboard."""
    table = screen.focused
    if isinstance(table, JobList):
        job = table.current.cells.get("job") if table.current is not None else None
        return cut(job[0].strip(), ROW_CELLS) if job is not None else ""
    if not isinstance(table, LiveTable):
        return ""
    row = next((row for row in table.rows if row.key == table.cursor_key), None)
    words: list[str] = []
    cells = row.cells if row is not None else {}
    named = {column: cells[column] for column in NAMES if column in cells}
    for column, cell in (named or cells).items():
        if column in NOT_A_NAME:
            continue
        if isinstance(cell, str):
            words.append(cell.strip())
        elif isinstance(cell, (list, tuple)):
            words.append(styled.plain(cell).strip())
        elif isinstance(name := getattr(cell, "name", None), str):
            words.append(name)
        if column == "index" and words[-1:] != [""]:
            words[-1] = f"GPU {words[-1]}"
    return cut(" ".join([word for word in words if word][:ROW_WORDS]), ROW_CELLS)
