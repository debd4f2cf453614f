"""Live inside the trainer: read its steps, its allocator and the sizes of its tensors.

The probe answers the agents of viewers. It never raises into the trainer, never synchronises,
creates no CUDA context, resets no peak, adds no module hook and imports no torch (it uses the
trainer's, once that is loaded). :func:`watch` starts it at once; :func:`arm` waits for the first
optimizer step or for CUDA to be initialised; :func:`detach` removes everything again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core import arm, count_now, detach, watch

__all__ = ["arm", "count_now", "detach", "watch"]


def __getattr__(name: str) -> Any:
    """Load the probe itself only for who starts it: viewers read a few tables of this package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import core

    return getattr(core, name)
