"""Compare verdicts about the dead jobs with what was done to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gpuscope import toml

DATA = Path(__file__).parent.parent.parent / "tests" / "data" / "dead_jobs"
Half = Literal["dev", "held_out"]


@dataclass(frozen=True)
class Answer:
    """What a verdict says first: the ranks, a cause of ``causes.toml``, and whether it is sure."""

    ranks: Sequence[int]
    cause: str
    definite: bool


@dataclass
class Score:
    """How many answers were right; each list holds lines about answers that were wrong."""

    jobs: int = 0
    wrong_culprit: list[str] = field(default_factory=list)
    wrong_cause: list[str] = field(default_factory=list)
    wrong_definite: list[str] = field(default_factory=list)

    @property
    def culprit(self) -> float:
        """Return the share of jobs whose culprit was named first."""
        return 1 - len(self.wrong_culprit) / self.jobs

    @property
    def cause(self) -> float:
        """Return the share of jobs whose cause was named first."""
        return 1 - len(self.wrong_cause) / self.jobs

    def __str__(self) -> str:
        head = (
            f"{self.jobs} jobs: culprit first {self.culprit:.0%}, cause first {self.cause:.0%}, "
            f"definite and wrong {len(self.wrong_definite)}"
        )
        return "\n".join([head, *self.wrong_culprit, *self.wrong_cause, *self.wrong_definite])


def jobs(half: Half) -> list[dict[str, Any]]:
    """Return the index of one half."""
    found: list[dict[str, Any]] = toml.loads((DATA / f"{half}.toml").read_text())["job"]
    return found


def causes() -> dict[str, str]:
    """Return the causes, and what each means."""
    found: dict[str, str] = toml.loads((DATA / "causes.toml").read_text())["causes"]
    return found


def right_culprit(job: dict[str, Any], ranks: Sequence[int]) -> bool:
    """Tell whether the rank that was named first is one of those where it began.

    Where no rank differs from the others, none may be named, or all.
    """
    if job["culprit"]:
        return bool(ranks) and ranks[0] in job["culprit"]
    return not ranks or len(set(ranks)) == job["ranks"]


def score(half: Half, verdict: Callable[[Path], Answer]) -> Score:
    """Ask for a verdict about each job of one half, and count what is right."""
    found = Score()
    for job in jobs(half):
        answer = verdict(DATA / half / job["name"])
        found.jobs += 1
        said = f"ranks {list(answer.ranks)}, {answer.cause}"
        line = f"{job['name']}: {said}, but it was ranks {job['culprit']}, {job['cause']}"
        culprit = right_culprit(job, answer.ranks)
        if not culprit:
            found.wrong_culprit.append(f"culprit: {line}")
        if answer.cause != job["cause"]:
            found.wrong_cause.append(f"cause: {line}")
        wrong = answer.cause != job["cause"] or (len(answer.ranks) > 0 and not culprit)
        if answer.definite and wrong:  # one that names no rank is incomplete, and not wrong
            found.wrong_definite.append(f"definite: {line}")
    return found
