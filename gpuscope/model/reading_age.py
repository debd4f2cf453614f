"""Tell whether the last reading of an entity still stands for this moment.

The driver and the probes are not read at the same moment, and a probe cannot answer while its
program holds the interpreter: while it imports or compiles, say. What it read before that is old,
and says nothing about now.
"""

from __future__ import annotations

from ..store.view import AllocView, HostView, TrainerView
from ..text.units import DASH, age_text

HOLD_SECONDS = 6.0
"""Seconds for which a reading counts at most, until the next one replaces it."""
HELD_SAMPLES = 2
"""Where samples are seldom, a reading counts for so many of them."""
OLD = "old"
"""The code of an amount that is unknown because its last reading is old."""


def old_seconds(host: HostView, entity: AllocView | TrainerView | None) -> float | None:
    """Return how old the last reading is, None while it stands for this moment.

    What is gone has no present: its last state is shown, and said to be the last.
    """
    if entity is None or entity.gone is not None:
        return None
    if entity.sampled_seconds is None or host.sampled_seconds is None:
        return None
    age = host.sampled_seconds - entity.sampled_seconds
    held = max(HOLD_SECONDS, HELD_SAMPLES / host.rate_hz if host.rate_hz else 0.0)
    return age if age > held else None


def marked(text: str, age: float | None) -> str:
    """Return a value in words; one that is so old stands as what it was then."""
    return text if age is None else f"{DASH} ({age_text(age)} ago: {text})"
