"""What a large Time tab shows below the details of a row: the stack of a hang, or lines of code.

The lines are those of all rows of the clock, the longest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model.standstill import stands_still
from ...model.time_ledger import TimeLedger
from ...text import styled
from ...text.styled import Line
from ..shared.code_lines import CODE_TITLE, code_lines
from ..theme import Glyphs
from .text import look_lines, work_lines

if TYPE_CHECKING:
    from ...store.view import TrainerView
    from ..shell.session import Session

GPU_TITLE, WORK_TITLE = "On the GPU", "Work of a step"
MOST_LINES, STACK_ROWS = 14, 24


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
    hint: list[Line] = []
    if not session.why_not("look"):
        hint = styled.hang_lines(look_lines() if on_gpu else work_lines(), cells)
    code = code_lines(ledger, cells, glyphs, MOST_LINES)
    if not code:
        return GPU_TITLE if on_gpu else WORK_TITLE, hint
    return CODE_TITLE, [*code, *([[], *hint] if hint else [])]
