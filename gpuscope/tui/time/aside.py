"""What a large Time tab shows below the details of a row: the stack of a hang, or lines of code.

The lines are those of all rows of the clock, the longest first. Where the clock is not divided it
is what is known of the process.
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

    While a trainer hangs it is where it hangs. Without a ``ledger`` it is what is known of its
    process.
    """
    if stands_still(trainer) and not session.why_not("stacks"):
        from ..trainer.hung_stack import hung_lines, stack_title

        return stack_title(trainer), hung_lines(session, trainer, STACK_ROWS, cells)
    if ledger is None:
        return process_lines(session, trainer, cells, glyphs)
    on_gpu = any(one.definition.cuda for one in ranks)
    hint: list[Line] = []
    if not session.why_not("look"):
        hint = styled.hang_lines(look_lines() if on_gpu else work_lines(), cells)
    code = code_lines(ledger, cells, glyphs, MOST_LINES)
    if not code:
        return GPU_TITLE if on_gpu else WORK_TITLE, hint
    return CODE_TITLE, [*code, *([[], *hint] if hint else [])]


def process_lines(
    session: Session, trainer: TrainerView, cells: int, glyphs: Glyphs
) -> tuple[str, list[Line]]:
    """Return what the process of a trainer does, and what it holds; nothing where it is gone."""
    from ..processes.idle import BUSY
    from ..processes.text import about_lines, use_lines
    from ..processes.training_text import memory_lines, training_lines

    host = session.host
    running = [one for one in host.processes if one.gone is None] if host is not None else []
    process = next((one for one in running if one.id == trainer.process), None)
    if host is None or process is None:
        return "", []
    rank = f"Rank {trainer.definition.rank}, p" if trainer.definition.rank is not None else "P"
    lines = training_lines(host, process, BUSY, cells, glyphs)
    lines += [*use_lines(host, process, cells), *memory_lines(host, process, cells, glyphs)]
    lines += about_lines(host, process, None, cells)
    return f"{rank}rocess {trainer.definition.pid}", lines
