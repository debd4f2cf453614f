"""The script of a trainer that runs: the static checks, where its figures do not speak against them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..doctor.finding import Evidence, Report

if TYPE_CHECKING:
    from ..doctor.finding import Finding
    from ..store.view import TrainerView

MAX_SCRIPTS = 8
ENOUGH_INPUT = 0.20
"""With less of a step spent waiting for the loader, how it is made costs nothing."""
_OF_THE_LOADER = ("num-workers", "pin-memory")


def examine(trainers: Iterable[TrainerView]) -> Report:
    """What the scripts that these trainers were started with show. One that was changed since is not judged, nor one
    that cannot be read here."""
    report = Report()
    of: dict[Path, list[TrainerView]] = {}
    for trainer in trainers:
        path = _script(trainer)
        if path is not None:
            of.setdefault(path, []).append(trainer)
    for path, ranks in list(of.items())[:MAX_SCRIPTS]:
        report += _report(path, ranks)
    return report


def _report(path: Path, ranks: list[TrainerView]) -> Report:
    from ..doctor import script

    if _changed(path, ranks):
        return Report(examined=(f"{path.name} (changed since it was started: not judged)",))
    found = script.report([str(path)], on_cpu=all(_on_cpu(rank) for rank in ranks))
    pids = ", ".join(str(rank.definition.pid) for rank in ranks[:8])
    told = Evidence(text=f"the script that pid {pids} runs", source="/proc")
    findings = [replace(one, evidence=(*one.evidence, told)) for one in found.findings if not _idle(one, ranks)]
    return Report(findings=tuple(findings), abstained=found.abstained, examined=found.examined)


def _on_cpu(rank: TrainerView) -> bool:
    """Whether it has taken steps and not begun to use CUDA."""
    return not rank.definition.cuda and bool(rank.number("step"))


def _script(trainer: TrainerView) -> Path | None:
    """The file it was started with, as its working directory makes of the name. None for what is no Python file."""
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
    shares = [_waiting(rank) for rank in ranks]
    return all(share is not None and share < ENOUGH_INPUT for share in shares)


def _waiting(rank: TrainerView) -> float | None:
    """The share of a step that it waits for its input, on its device where that is measured."""
    step = rank.number("step_seconds")
    waited = rank.number("input_seconds")
    if waited is None:
        waited = rank.number("loader_wait_seconds")
    return None if waited is None or not step else waited / step
