"""What a large Time tab shows below the details of a row: the stack of a hang, or lines of code.

The lines are those of all rows of the clock, the longest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model.standstill import stands_still
from ...model.step_colours import token_of
from ...model.time_ledger import TimeLedger
from ...text import styled
from ...text.styled import Line
from ...text.units import duration_text, percent_text
from ...wire.clean import clean
from ..cells import fit
from ..theme import Glyphs
from .text import PLACE_CELLS, look_lines, work_lines

if TYPE_CHECKING:
    from ...store.view import TrainerView
    from ..shell.session import Session

GPU_TITLE, WORK_TITLE, CODE_TITLE = "On the GPU", "Work of a step", "Lines of code"
MOST_LINES, LEAST_SHARE = 14, 0.005
STACK_ROWS = 24
STEP_CELLS, SHARE_CELLS = 9, 6


def aside_lines(
    session: Session,
    trainer: TrainerView,
    ranks: Sequence[TrainerView],
    ledger: TimeLedger | None,
    cells: int,
    glyphs: Glyphs,
) -> tuple[str, list[Line]]:
    """Return the title and the lines of the panel, of which a line has ``cells`` cells.

    While a trainer hangs it is where it hangs. Without a ``ledger`` of one that steps there are no
    lines.
    """
    if stands_still(trainer) and not session.why_not("stacks"):
        from ..trainer.hung_stack import hung_lines, stack_title

        return stack_title(trainer), hung_lines(session, trainer, STACK_ROWS, cells)
    if ledger is None:
        return "", []
    on_gpu = any(one.definition.cuda for one in ranks)
    hint = styled.hang_lines(look_lines() if on_gpu else work_lines(), cells)
    code = code_lines(ledger, cells, glyphs)
    if not code:
        return GPU_TITLE if on_gpu else WORK_TITLE, hint
    return CODE_TITLE, [*code, [], *hint]


def code_lines(ledger: TimeLedger, cells: int, glyphs: Glyphs) -> list[Line]:
    """Return the lines of code that take the time, the longest first, with their row of the clock.

    A line has the mark of its row, its time a step, its share of the clock and its place.
    """
    found = sorted(
        ((seconds, place, row) for row in ledger.rows for place, seconds in row.places),
        key=lambda one: -one[0],
    )
    out: list[Line] = []
    for seconds, place, row in found[:MOST_LINES]:
        share = seconds / ledger.seconds if ledger.seconds else 0.0
        if share < LEAST_SHARE:
            break
        token = token_of(row.name)
        each = duration_text(share * ledger.step_seconds) if ledger.step_seconds else ""
        line: Line = [
            (glyphs.fill(token), token),
            (fit(each, STEP_CELLS, "right"), "text"),
            (fit(percent_text(share), SHARE_CELLS, "right"), "text"),
            (f"  {clean(place, PLACE_CELLS)}", "title"),
            (f"  {row.words}", "muted"),
        ]
        out.append(styled.cut(line, cells, glyphs.ellipsis))
    return out
