"""Run ``gpuscope doctor`` on the environment.

The agent's code gathers the facts inside this process, and the rules judge them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....agent.environment import gather
from ....agent.oneshot import OneShot, collect_once
from ....doctor import environment
from ....doctor.finding import Report

__all__ = ["examine", "gather"]


def examine(
    ask_torch: bool = False,
    timeout: float = 5.0,
    look: Callable[..., OneShot] = collect_once,
    environ: Mapping[str, str] | None = None,
) -> Report:
    """Return the report on this machine and on the Python that is active here.

    Tests pass ``look`` and ``environ``.
    """
    return environment.examine(gather(ask_torch, timeout, look, environ))
