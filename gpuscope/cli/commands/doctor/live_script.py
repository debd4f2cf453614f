"""Check the script of a running trainer.

The static checks are applied, and findings that the trainer's own figures contradict are dropped.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ....doctor.finding import Evidence, Report
from ....model.step_time import input_share

if TYPE_CHECKING:
    from ....doctor.finding import Finding
    from ....store.view import TrainerView

MAX_SCRIPTS = 8
ENOUGH_INPUT = 0.20
"""If a smaller share of the step is spent waiting for the loader, its settings cost nothing."""
_NUMBER = re.compile(r"\bnum_workers=([0-9]+)")
_OF_THE_LOADER = ("num-workers", "pin-memory")


def examine(trainers: Iterable[TrainerView], live: Report | None = None) -> Report:
    """Return the findings on the scripts with which these trainers were started.

    A script that was changed since the start, or that cannot be read here, is not judged. ``live``
    are the findings on the running trainers: they take the CPU cores into account, and so know the
    right number of loader workers, which a script alone does not show.
    """
    report = Report()
    of: dict[Path, list[TrainerView]] = {}
    for trainer in trainers:
        path = _script(trainer)
        if path is not None:
            of.setdefault(path, []).append(trainer)
    for path, ranks in list(of.items())[:MAX_SCRIPTS]:
        report += _report(path, ranks)
    number = next(
        (found for one in (live or Report()).findings if (found := _workers(one)) is not None), None
    )
    if number is None:
        return report
    return replace(report, findings=tuple(_with_workers(one, number) for one in report.findings))


def _workers(finding: Finding) -> str | None:
    """The number of loader workers that a finding advises."""
    codes = [found for fix in finding.fixes if (found := _NUMBER.search(fix.code)) is not None]
    return codes[0][1] if finding.pitfall == "num-workers" and codes else None


def _with_workers(finding: Finding, number: str) -> Finding:
    if finding.pitfall != "num-workers":
        return finding
    fixes = tuple(
        replace(fix, code=_NUMBER.sub(f"num_workers={number}", fix.code)) for fix in finding.fixes
    )
    return replace(finding, fixes=fixes)


def _report(path: Path, ranks: list[TrainerView]) -> Report:
    from ....doctor import script

    if _changed(path, ranks):
        return Report(examined=(f"{path.name} (changed since it was started: not checked)",))
    found = script.report([str(path)], on_cpu=all(_on_cpu(rank) for rank in ranks))
    pids = ", ".join(str(rank.definition.pid) for rank in ranks[:8])
    evidence = Evidence(text=f"the script that pid {pids} runs", source="/proc")
    findings = [
        replace(one, evidence=(*one.evidence, evidence))
        for one in found.findings
        if not _idle(one, ranks)
    ]
    return Report(findings=tuple(findings), abstained=found.abstained, examined=found.examined)


def _on_cpu(rank: TrainerView) -> bool:
    """Whether it has taken steps and not begun to use CUDA."""
    return not rank.definition.cuda and bool(rank.number("step"))


def _script(trainer: TrainerView) -> Path | None:
    """Return the path of the script, resolved against the trainer's working directory.

    The result is None for anything that is not a Python file.
    """
    definition = trainer.definition
    name = definition.script
    if not name or not name.endswith(".py"):
        return None
    try:
        path = Path(os.readlink(f"/proc/{definition.pid}/cwd")) / name
        return path if path.is_file() and os.access(path, os.R_OK) else None
    except (OSError, ValueError):
        return None


def _changed(path: Path, ranks: list[TrainerView]) -> bool:
    try:
        written = path.stat().st_mtime
        booted = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return True
    ticks = os.sysconf("SC_CLK_TCK")
    return any(written > booted + (rank.definition.start or 0) / ticks + 1.0 for rank in ranks)


def _idle(finding: Finding, ranks: list[TrainerView]) -> bool:
    """Whether it is about a loader, and the ranks hardly wait for theirs."""
    if finding.pitfall not in _OF_THE_LOADER:
        return False
    shares = [input_share(rank) for rank in ranks]
    return all(share is not None and share < ENOUGH_INPUT for share in shares)
