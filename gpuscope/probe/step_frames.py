"""Find which optimizers are in the middle of a step.

The frames of torch's own wrapper around ``step`` show it.
"""

from __future__ import annotations

import sys
from typing import Any, List

MAX_FRAMES = 64
NESTED = 8
"""How far up the stack a step of an optimizer's own class is looked for."""


def in_step(frame: Any) -> bool:
    """Whether an optimizer steps in ``frame`` or in one of its callers."""
    while frame is not None:
        if _is_wrapper(frame):
            return True
        frame = frame.f_back
    return False


def within_its_own_step(optimizer: Any) -> bool:
    """Tell whether the step that ended is a base class's step inside the class's own step.

    A hook calls this. torch calls the hooks for both steps, once it has wrapped both.
    """
    wrapped = 0
    for cls in type(optimizer).__mro__:
        wrapped += "step" in cls.__dict__ and hasattr(cls.__dict__["step"], "hooked")
    if wrapped < 2:
        return False
    frame = sys._getframe(2)  # torch's wrapper of step
    code, up = frame.f_code, frame.f_back
    for _ in range(NESTED):
        if up is None:
            break
        if up.f_code is code and _optimizer_of(up) is optimizer:
            return True
        up = up.f_back
    return False


def still_stepping(ended: Any) -> List[Any]:
    """Return the other optimizers whose step called the step of ``ended``, which has just ended.

    Such optimizers are wrappers like Lookahead, SAM or ZeroRedundancyOptimizer.
    """
    found: List[Any] = []
    frame: Any = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        if _is_wrapper(frame):
            optimizer = _optimizer_of(frame)
            if (
                optimizer is not None
                and optimizer is not ended
                and not any(one is optimizer for one in found)
            ):
                found.append(optimizer)
        frame = frame.f_back
    return found


def _is_wrapper(frame: Any) -> bool:
    return bool(
        frame.f_code.co_name == "wrapper"
        and frame.f_globals.get("__name__") == "torch.optim.optimizer"
    )


def _optimizer_of(frame: Any) -> Any:
    return (frame.f_locals.get("args") or (None,))[0]
