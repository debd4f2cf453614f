"""Define the runs that a search asks for, its settings, and its result.

Only the standard library is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..config import LabConfig
from ..matrix import label
from ..toggles import BY_NAME, Value
from .goal import SPEED, Goal
from .judge import Loss, Speed
from .space import Limits

Status = Literal[
    "baseline", "kept", "slower", "no_difference", "refused", "does_not_fit", "failed", "loss",
    "not_tried", "not_proved", "trying",
]  # fmt: skip
STATUS: dict[str, str] = {
    "baseline": "baseline",
    "kept": "kept",
    "slower": "slower",
    "no_difference": "no clear gain",
    "refused": "cannot run",
    "does_not_fit": "does not fit",
    "failed": "failed",
    "loss": "learns worse",
    "not_tried": "not tried",
    "not_proved": "not proved",
    "trying": "being tried",
}
"""The word of the table for each status of a candidate."""
NO_FIT, NO_RUN = NEEDED = "does not fit without it", "does not run without it"
"""Why the gain of a switch is not a number: the training needs the switch."""
UNPROVED_STEP = "it seemed better in the search, but was not proved"
"""Why a candidate from which the search went on is not kept, where the baseline stays the best."""
Fit = Callable[[LabConfig], "PredictedMemory | None"]


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """What is predicted of a configuration's memory, before it is run."""

    outcome: Literal["fits", "too_close", "does_not_fit"]
    bytes: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """A run that the search asks for. ``purpose`` says what it is for, in words.

    ``seconds`` is how long it may take at most, None for any time. ``rival`` is the speed of the
    best so far in samples per second: a run that is clearly slower may end early. Its steps are
    timed for ``windows`` times the usual time.
    """

    config: LabConfig
    repeat: int
    purpose: str
    seconds: float | None = None
    rival: float | None = None
    windows: int = 1


@dataclass(slots=True)
class CandidateRow:
    """A candidate and its result.

    ``speed`` is measured against the best configuration of that moment, ``against``. ``reason``
    says in words why it was not kept.
    """

    config: LabConfig
    changed: dict[str, Value]
    status: Status
    speed: Speed | None = None
    against: LabConfig | None = None
    reason: str = ""
    loss: Loss | None = None
    predicted: PredictedMemory | None = None


@dataclass(slots=True)
class Switch:
    """One switch that the winner has changed, and how much slower it would be without."""

    name: str
    before: Value
    after: Value
    brings: Speed | None
    reason: str = ""


@dataclass(slots=True)
class Found:
    """What a search has found.

    ``best`` is the baseline itself where nothing is certainly better. ``speed`` compares the best
    with the baseline in runs of their own; None where they are the same, or the baseline cannot
    run. ``stopped`` says why the search ended early, "" if it came to its end. ``more_seconds`` is
    how long the trials that were left out are expected to take, with a proof; None where none was.

    Where the baseline itself is the best, no candidate stays "kept": it seemed better in the
    search, but neither it nor what was built on it has proved that.
    """

    baseline: LabConfig
    best: LabConfig
    speed: Speed | None
    rows: list[CandidateRow] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    stopped: str = ""
    loss: Loss | None = None
    baseline_failure: str = ""
    more_seconds: float | None = None

    def __post_init__(self) -> None:
        for row in self.rows if self.best == self.baseline else ():
            if row.status == "kept":
                row.status, row.reason = "no_difference", row.reason or UNPROVED_STEP


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """The settings that bind a search.

    ``keep_loss`` is how much higher the loss may be, as a share. ``capacity`` is the memory in
    bytes that a run may reserve on each device; None: whatever runs. ``time_left`` returns the
    seconds of the budget that are left, or None for no budget. ``window_seconds`` is how long the
    steps of a trial are timed. ``goal`` says what is better.
    """

    limits: Limits
    keep_loss: float = 0.01
    capacity: int | None = None
    time_left: Callable[[], float | None] = lambda: None
    fits: Fit = lambda config: None
    window_seconds: float = 0.0
    goal: Goal = SPEED


TOO_SHORT = "what was left of the budget was too short for the next run and the proof"
"""Why a search ends before everything was tried."""
CLEARLY_SLOWER = 0.8
"""A trial that runs at less than this share of its rival's speed ends early."""
BASELINE = "baseline"


def label_of(config: LabConfig, baseline: LabConfig) -> str:
    """Return in which switches a configuration differs from the baseline."""
    names = [name for name in BY_NAME if getattr(config, name) != getattr(baseline, name)]
    return label(config, names) if names else BASELINE


def words(change: Mapping[str, Value]) -> str:
    """Return a change of switches in words."""
    return " ".join(f"{name}={BY_NAME[name].text(value)}" for name, value in change.items())


def one(values: Mapping[str, Value]) -> Value:
    """Return the value of one switch, or the text of several."""
    if len(values) == 1:
        return next(iter(values.values()))
    return ", ".join(BY_NAME[name].text(value) for name, value in values.items())
