"""Compare verdicts about the dead jobs with what was done to them.

Jobs that were made elsewhere, as those of ``nccl.toml`` on two GPUs, are scored by::

    python -m bench.dead_jobs.score tests/data/dead_jobs/nccl.toml FOLDER
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gpuscope import toml
from gpuscope.doctor.dead.collect import read_job
from gpuscope.doctor.dead.first_failure import judge

DATA = Path(__file__).parent.parent.parent / "tests" / "data" / "dead_jobs"
Half = Literal["dev", "held_out", "other_trainers", "nccl"]


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
        if not self.jobs:
            return "0 jobs: none of the index is in the folder"
        head = (
            f"{self.jobs} jobs: culprit first {self.culprit:.0%}, cause first {self.cause:.0%}, "
            f"definite and wrong {len(self.wrong_definite)}"
        )
        return "\n".join([head, *self.wrong_culprit, *self.wrong_cause, *self.wrong_definite])


def jobs(half: Half) -> list[dict[str, Any]]:
    """Return the index of one half."""
    return read_index(DATA / f"{half}.toml")


def read_index(path: Path) -> list[dict[str, Any]]:
    """Return the jobs of an index."""
    found: list[dict[str, Any]] = toml.loads(path.read_text())["job"]
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


def answer_of(folder: Path) -> Answer:
    """Return what ``gpuscope doctor`` says first of the job that left this folder."""
    found = judge(read_job([folder], folder.name)).suspects
    if not found:
        return Answer((), "", False)
    one = found[0]
    return Answer(one.ranks, one.cause.partition(".")[2], one.confidence == "definite")


def score(half: Half, verdict: Callable[[Path], Answer]) -> Score:
    """Ask for a verdict about each job of one half, and count what is right."""
    return score_jobs(jobs(half), DATA / half, verdict)


def score_jobs(
    index: Sequence[dict[str, Any]], folder: Path, verdict: Callable[[Path], Answer] = answer_of
) -> Score:
    """Ask for a verdict about each job that is in a folder, and count what is right."""
    found = Score()
    for job in index:
        if not (folder / job["name"]).is_dir():
            continue
        answer = verdict(folder / job["name"])
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Score the verdicts on jobs that lie in a folder.")
    parser.add_argument("index", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    print(score_jobs(read_index(args.index), args.folder))
