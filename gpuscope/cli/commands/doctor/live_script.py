"""Check the script of a running trainer.

The static checks are applied, and findings that the trainer's own figures contradict are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ....doctor.finding import Evidence, Report
from ....model.loader_line import has_changed, script_of
from ....model.step_time import input_share

if TYPE_CHECKING:
    from ....doctor.finding import Finding
    from ....store.view import TrainerView

MAX_SCRIPTS = 8
ENOUGH_INPUT = 0.20
"""If a smaller share of the step is spent waiting for the loader, its settings cost nothing."""
NUM_WORKERS = "num-workers"
_OF_THE_LOADER = (NUM_WORKERS, "pin-memory")


def examine(trainers: Iterable[TrainerView], live: Report | None = None) -> Report:
    """Return the findings on the scripts with which these trainers were started.

    A script that was changed since the start, or that cannot be read here, is not judged. ``live``
    are the findings on the running trainers: one that they wait for input takes the CPU cores and
    the script's loader into account, so that the script's own finding on workers is left out.
    """
    report = Report()
    of: dict[Path, list[TrainerView]] = {}
    for trainer in trainers:
        path = script_of(trainer)
        if path is not None:
            of.setdefault(path, []).append(trainer)
    told = any(one.pitfall == NUM_WORKERS for one in (live or Report()).findings)
    for path, ranks in list(of.items())[:MAX_SCRIPTS]:
        report += _report(path, ranks)
    if not told:
        return report
    left = tuple(one for one in report.findings if one.pitfall != NUM_WORKERS)
    return replace(report, findings=left)


def _report(path: Path, ranks: list[TrainerView]) -> Report:
    from ....doctor import script

    if has_changed(path, ranks):
        return Report(examined=(f"{path.name} (changed since it was started: not checked)",))
    found = script.report([str(path)], on_cpu=all(_on_cpu(rank) for rank in ranks))
    pids = ", ".join(str(rank.definition.pid) for rank in ranks[:8])
    evidence = Evidence(f"the script that pid {pids} runs", "/proc")
    all_pids = tuple(rank.definition.pid for rank in ranks)
    findings = [
        replace(one, evidence=(*one.evidence, evidence), pids=all_pids)
        for one in found.findings
        if not _idle(one, ranks)
    ]
    return Report(findings=tuple(findings), abstained=found.abstained, examined=found.examined)


def _on_cpu(rank: TrainerView) -> bool:
    """Whether it has taken steps and not begun to use CUDA."""
    return not rank.definition.cuda and bool(rank.number("step"))


def _idle(finding: Finding, ranks: list[TrainerView]) -> bool:
    """Whether it is about a loader, and the ranks hardly wait for theirs."""
    if finding.pitfall not in _OF_THE_LOADER:
        return False
    shares = [input_share(rank) for rank in ranks]
    return all(share is not None and share < ENOUGH_INPUT for share in shares)
