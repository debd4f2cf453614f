"""Define the result of a check: a verdict for each budget of each training, and the changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ..doctor.finding import Finding
from .cause import CostlyLine, ModuleChange
from .predicted import Predicted
from .settings import CheckedTraining, Configuration

Severity = Literal["ok", "info", "warning", "problem", "unchecked"]
Kind = Literal[
    "predicted", "fits", "peak", "allocated", "regression", "baseline", "step_time", "slower"
]


@dataclass(frozen=True, slots=True)
class BudgetVerdict:
    """The result for one budget: a sentence, what to do next, and where the budget is defined.

    ``line`` is in the configuration file.
    """

    kind: Kind
    severity: Severity
    text: str
    next: str = ""
    line: int = 1


@dataclass(frozen=True, slots=True)
class BaselineChange:
    """A difference from the revision, or from the baseline in the lock, that is compared with."""

    since: str
    """The revision or the file, in words."""
    by_line: bool
    """Whether lines could be looked for, which needs a revision."""
    before_bytes: int
    after_bytes: int
    parts: tuple[ModuleChange, ...]
    causes: tuple[CostlyLine, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def change_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


@dataclass(slots=True)
class Outcome:
    """The verdicts of one training. ``predicted`` is None if it could not be predicted."""

    training: CheckedTraining
    predicted: Predicted | None = None
    verdicts: list[BudgetVerdict] = field(default_factory=list)
    change: BaselineChange | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ScriptFinding:
    """A mistake that the doctor found in a script; ``file`` is relative to the configuration."""

    file: str
    line: int
    finding: Finding


@dataclass(slots=True)
class Checked:
    """Everything that one call has checked."""

    configuration: Configuration
    root: str
    """The folder that file names are relative to: the top of the checkout, if there is one."""
    outcomes: list[Outcome] = field(default_factory=list)
    findings: list[ScriptFinding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What could not be checked, and why, in whole sentences."""
    updated: str = ""
    """What ``--update`` has done; "" without it."""
    seconds: float = 0.0

    def severities(self) -> Iterable[str]:
        for outcome in self.outcomes:
            yield from (verdict.severity for verdict in outcome.verdicts)
        yield from (one.finding.severity for one in self.findings)
        if self.problems:
            yield "unchecked"
