"""The lines of code that the wall clock of a training goes to, those of all rows of its ledger."""

from __future__ import annotations

from ...model.step_colours import token_of
from ...model.time_ledger import TimeLedger
from ...text import styled
from ...text.styled import Line
from ...text.units import brief_duration_text, percent_text
from ...wire.clean import clean
from ..cells import fit
from ..theme import Glyphs

CODE_TITLE = "Lines of code"
LEAST_SHARE = 0.005
STEP_CELLS, SHARE_CELLS, PLACE_CELLS = 9, 7, 160


def code_lines(ledger: TimeLedger, cells: int, glyphs: Glyphs, most: int) -> list[Line]:
    """Return the lines of code that take the time, the longest first, with their row of the clock.

    A line has the mark of its row, its time a step, its share of the clock and its place.
    """
    found = sorted(
        ((seconds, place, row) for row in ledger.rows for place, seconds in row.places),
        key=lambda one: -one[0],
    )
    out: list[Line] = []
    for seconds, place, row in found[:most]:
        share = seconds / ledger.seconds if ledger.seconds else 0.0
        if share < LEAST_SHARE:
            break
        token = token_of(row.name)
        each = brief_duration_text(share * ledger.step_seconds) if ledger.step_seconds else ""
        line: Line = [
            (glyphs.fill(token), token),
            (fit(each, STEP_CELLS, "right"), "text"),
            (fit(percent_text(share), SHARE_CELLS, "right"), "text"),
            (f"  {clean(place, PLACE_CELLS)}", "title"),
            (f"  {row.words}", "muted"),
        ]
        out.append(styled.cut(line, cells, glyphs.ellipsis))
    return out
