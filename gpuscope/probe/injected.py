"""Start the probe that was put into a running trainer, and leave when nobody looks.

It starts at once.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from .core import GUARD, arm


def begin(farewell: Callable[[], None], idle_seconds: float) -> str:
    """Start this process's probe; why nobody can see it, "" where all is well.

    ``farewell`` is called once it has been taken out again, which it does by itself after
    ``idle_seconds`` without a client.
    """
    probe: Any = getattr(sys, GUARD, None)
    if probe is None:
        arm("inject")
        probe = getattr(sys, GUARD)
        probe.idle_seconds = idle_seconds
        probe.farewell = farewell
    probe.start()
    problem = str(probe.problem)
    if problem and probe.origin == "inject":
        probe.detach()  # no half of it stays
    return problem
