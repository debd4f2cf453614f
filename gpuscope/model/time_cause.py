"""What can make a training slow: its name in words, and from which share of the time it counts.

``model.time_causes`` ranks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .look import LookRow
from .time_ledger import WORDS as ROW_WORDS
from .time_ledger import Row

LEAST_LOW = 0.5
"""The share of its bar that the lower end of a cause's interval must reach too."""
MANY_RECOMPILES = 4
"""A training is compiled in its first minutes, once more if sizes turn out to vary, and once for
evaluation. Only what is compiled beyond that is worth curing."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The shares of the wall clock from which a cause is reported, and is a warning."""

    told: float
    warned: float


BARS: Mapping[str, Threshold] = {
    "input": Threshold(0.05, 0.10),
    "compile": Threshold(0.05, 0.20),
    "checkpoint": Threshold(0.05, 0.10),
    "validation": Threshold(0.20, 0.40),
    "logging": Threshold(0.05, 0.20),
    "collection": Threshold(0.02, 0.05),
    "other": Threshold(0.10, 0.50),
    "profiler": Threshold(0.02, 0.05),
    "read": Threshold(0.10, 0.20),
    "copies-out": Threshold(0.05, 0.10),
    "copies-in": Threshold(0.05, 0.20),
    "allocate": Threshold(0.05, 0.10),
    "release": Threshold(0.05, 0.10),
    "launch": Threshold(0.10, 0.50),
    "products-plain": Threshold(0.05, 0.20),
    "products-double": Threshold(0.05, 0.20),
    "launch-blocking": Threshold(0.02, 0.05),
    "anomaly-detection": Threshold(0.02, 0.05),
    "uncached-memory": Threshold(0.02, 0.05),
    "optimizer-on-host": Threshold(0.05, 0.10),
}
"""All causes.

A checkpoint that another thread writes costs only the copy. Validation is wanted, and up to a fifth
of the time is common. Code of the script is a part of many loops. Late launches may be the price of
a small model, so only half of the time makes them a warning."""
WORDS: Mapping[str, str] = {
    **{name: ROW_WORDS[name] for name in BARS if name in ROW_WORDS},
    "copies-out": "copies to the host",
    "copies-in": "copies from the host",
    "allocate": "allocating GPU memory",
    "launch": "slow kernel launches (host-bound)",
    "products-plain": "FP32 matmuls without tensor cores",
    "products-double": "FP64 matmuls",
    "launch-blocking": "CUDA_LAUNCH_BLOCKING=1",
    "anomaly-detection": "autograd's anomaly detection",
    "uncached-memory": "PYTORCH_NO_CUDA_MEMORY_CACHING=1",
    "optimizer-on-host": "an optimizer on the CPU",
}
"""What causes are called after ``goes into``."""
SETTINGS = ("launch-blocking", "anomaly-detection", "uncached-memory")
"""Debugging settings, which the probe reads in the trainer. They own the late launches."""
OF_CUDA = ("launch-blocking", "uncached-memory", "optimizer-on-host")
"""Settings that cost nothing where CUDA is not in use."""
THREAD = ("input", "compile", "logging", "other", "profiler")
"""Rows of the thread that a look bounds: what they cost is the idle time that they cause."""
PAUSES = ("checkpoint", "validation", "collection")
"""Rows during which the thread does nothing for its steps, whatever the GPU does."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that is worth curing.

    Its cure saves ``share`` of the wall clock at most, between ``low`` and ``high`` with 95 %
    confidence. ``clock`` is the row of the thread and ``row`` that of the look which belong to it,
    None if there is no such row. ``late`` is the part of the share that is late launches. ``by``
    says who has seen it: ``clock``, ``look`` or ``both``. ``usual_share`` is what the other ranks
    of its job spend on it, where they wait for this one: ``share`` is the difference. ``cured_by``
    is what its first fix does, as in ``with 8 workers``, where that saves no more than
    ``cured_share``; "" where it may save all.
    """

    name: str
    share: float
    low: float
    high: float
    place: str = ""
    clock: Row | None = None
    row: LookRow | None = None
    late: float = 0.0
    by: str = "look"
    usual_share: float | None = None
    cured_by: str = ""
    cured_share: float = 1.0

    @property
    def saves(self) -> float:
        """Return what share of the wall clock its first fix saves at most."""
        return min(self.share, self.cured_share)

    @property
    def words(self) -> str:
        return WORDS[self.name]

    @property
    def warns(self) -> bool:
        return self.share >= BARS[self.name].warned


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a trainer apart from the clock and the look.

    ``facts`` are those of the trainer's last minute. ``cost_seconds`` is what looks have cost in
    the window of the clock. ``faster`` is how many times as fast tensor cores multiply as plain
    float32, None where the card has none. ``idle`` is the share of the time for which no kernel
    ran, for where nobody has looked. ``median_step_seconds`` is the median of its last steps:
    pauses in fewer than half of them do not change it. ``on_gpu`` says whether CUDA is in use.
    """

    facts: Mapping[str, Any] | None = None
    cost_seconds: float = 0.0
    faster: float | None = 15.0
    idle: float | None = None
    median_step_seconds: float | None = None
    on_gpu: bool = True


def is_on(known: Known, name: str) -> bool:
    """Return whether the probe has found a setting on that matters here."""
    matters = known.on_gpu or name not in OF_CUDA
    return matters and name in settings_of(known.facts or {})


def settings_of(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings that the facts of a minute say are on."""
    names = (*SETTINGS, "optimizer-on-host")
    return tuple(name for name in names if facts.get(name.replace("-", "_")) == 1)


def compiles_again(known: Known) -> bool:
    count = (known.facts or {}).get("recompiles")
    return isinstance(count, int) and count >= MANY_RECOMPILES
