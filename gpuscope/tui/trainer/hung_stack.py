"""This module says where a rank of a job that hangs is stuck, on the job screen.

While somebody looks at a job that hangs, its probe is asked for the stacks, as the key for them
does: that only reads. A rank that makes steps is not asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...model.ranks import name_of
from ...model.stalls import is_stalled, place
from ...text import styled
from ...text.styled import Line
from ...text.units import count_text
from ..shared.stack_text import collective_lines, thread_lines
from ..shell.keymap import key_of

if TYPE_CHECKING:
    from ...store.view import TrainerView
    from ..shell.session import Session

NO_STACK = "no stack: "
AGAIN_SECONDS = 10.0
"""How long an answer is shown before a rank that still hangs is asked again."""


def stack_title(trainer: TrainerView) -> str:
    """Return the title of the panel."""
    rank = name_of(trainer) if trainer.definition.rank is not None else "the training thread"
    return f"Stack of {rank}"


def hung_lines(session: Session, trainer: TrainerView, height: int, width: int) -> list[Line]:
    """Return where this rank is stuck in ``height`` lines, or why that is not known."""
    cells = max(width, 30)
    lines = list(_lines(session, trainer, cells))
    if len(lines) > height > 1:
        key = key_of("act('stacks')", "JobScreen")
        left = len(lines) - height + 1
        lines = [
            *lines[: height - 1],
            [(key, "accent"), (f": all of it, {count_text(left, 'more line')}", "faint")],
        ]
    return [styled.cut(line, cells) for line in lines]


def _lines(session: Session, trainer: TrainerView, width: int) -> Iterable[Line]:
    why = "the rank has ended" if trainer.gone is not None else session.why_not("stacks")
    if not why:
        if session.paused_seconds is None:
            answer = session.asker.latest(trainer, "stacks", every_seconds=AGAIN_SECONDS)
        else:
            answer = session.asker.seen(trainer, "stacks")
        if answer.value is not None:
            yield from thread_lines({"threads": training_of(answer.value)}, None)
            yield from collective_lines(answer.value)
            return
        why = answer.problem or "waiting for the answer of its probe"
    yield from _recorded(trainer, why, width)


def training_of(value: Mapping[str, Any]) -> list[Any]:
    """Return the threads that train, or the main one where none is said to."""
    threads = value.get("threads")
    known = [t for t in threads if isinstance(t, dict)] if isinstance(threads, list) else []
    return [t for t in known if t.get("training") is True] or known[:1]


def _recorded(trainer: TrainerView, why: str, width: int) -> Iterable[Line]:
    """Return the one line that the probe reports unasked, and why there is no more."""
    reading = trainer.reading("stall_at")
    at = place(trainer)
    if at.line:
        yield [("▸ ", "accent"), (f"{at.functions}  ", "text"), (at.line, "title")]
        whole = str(reading)
        outer, _, inner = whole.partition(" ← ")
        for name, text in (("your line", outer), ("in it", inner)):
            if text:
                yield [(f"  {name}: ", "muted"), (text, "text")]
    elif is_stalled(trainer):
        yield [
            ("where it is stuck is not known: ", "muted"),
            (getattr(reading, "text", "no reading"), "muted"),
        ]
    yield []
    yield from styled.hang([(NO_STACK, "faint")], [(why, "faint")], width)
