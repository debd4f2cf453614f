"""Start the probe that was injected into a running trainer, and remove it when nobody uses it.

It starts at once.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from .core import GUARD, arm


def begin(farewell: Callable[[], None], idle_seconds: float) -> str:
    """Start this process's probe. Return why it cannot be reached, "" if it can.

    After ``idle_seconds`` without a client the probe removes itself and calls ``farewell``.
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
