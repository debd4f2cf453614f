"""List all checks, and what they leave open."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from . import cudnn, devices, memory, parallel, precision, registered, speed, step, wrapped
from .program import LOADER, SAMPLER, Script, ScriptMatch

ALL = (
    *memory.CHECKS,
    *precision.CHECKS,
    *step.CHECKS,
    *parallel.CHECKS,
    *wrapped.CHECKS,
    *devices.CHECKS,
    *registered.CHECKS,
    *speed.CHECKS,
    *cudnn.CHECKS,
)


def run(s: Script) -> Iterator[ScriptMatch]:
    """Yield what every check finds in the file."""
    for check in ALL:
        yield from check(s)


def open_questions(s: Script) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield what one file alone cannot settle: the id of an abstention, and its figures."""
    if (
        s.distributed
        and s.training_loops
        and not s.calls_to(LOADER)
        and not s.calls_to(SAMPLER)
        and _has_loader(s)
    ):
        yield "sampler", {"path": s.path}
    if s.managed and s.training_loops:
        yield "managed", {"path": s.path, "library": s.managed}


def _has_loader(s: Script) -> bool:
    """Return whether a training loop goes through something that is named as a loader."""
    return any(
        "load" in s.code(loop.iter).lower()
        for loop in s.training_loops
        if not isinstance(loop, ast.While)
    )
