"""This module says where the training thread of a trainer that hangs stands."""

from __future__ import annotations

from typing import Any

from ...text.styled import Line
from ..background.probe_queries import ProbeAnswer
from ..shared.stack_text import frame_pieces
from ..shell.keymap import key_of

FRAMES = 8


def stack_text(answer: ProbeAnswer) -> list[Line]:
    """Return the innermost frames of the thread that trains, the innermost first.

    Without an answer yet, it is said why.
    """
    if answer.value is None:
        return [[(answer.problem or "waiting for the answer of the probe", "muted")]]
    threads = [one for one in answer.value.get("threads") or [] if isinstance(one, dict)]
    threads.sort(key=lambda one: (not one.get("training"), not one.get("main")))
    frames = _frames(threads[0]) if threads else []
    lines: list[Line] = [
        list(frame_pieces(frame, number == 0)) for number, frame in enumerate(frames[:FRAMES])
    ]
    more = len(frames) - len(lines)
    last: Line = [(f"{more} more frames, " if more > 0 else "", "muted")]
    return [*lines, [*last, (key_of("stacks"), "bold accent"), (": all threads", "muted")]]


def _frames(thread: dict[str, Any]) -> list[Any]:
    found = thread.get("frames")
    frames = found if isinstance(found, list) else []
    return [one for one in frames if isinstance(one, (list, tuple)) and len(one) >= 3]
