"""Name the command that searches the fastest settings of a running training, where one can.

The search needs a factory. It is known of a trainer of the Lab, which is started with its switches,
and where the project that a trainer runs in lists its trainings for ``gpuscope check``.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ..check.settings_file import find
from ..doctor import table
from ..doctor.finding import Fix, Report
from ..errors import UsageError
from ..lab.config import ConfigError, LabConfig
from ..lab.toggles import FACTORY
from ..process.procfs import words_of
from ..store.view import TrainerView

CURED = frozenset(
    (
        "look.launches", "look.products_plain", "look.small_batch", "live.launch_bound",
        "live.tensor_idle", "live.input_bound",
    )
)  # fmt: skip
"""Causes that settings which a search tries can cure."""
LOOK_SECONDS = 3.0
"""How long this machine may take to say what trains on it."""
TITLE = "Search for the fastest settings of this training, and prove them"


def offer(trainer: TrainerView) -> str:
    """Return the command for a trainer of this machine, "" where no factory can be named."""
    pid = trainer.definition.pid
    if trainer.gone is not None:
        return ""
    if trainer.definition.origin == "lab":
        return _of_the_lab(pid)
    try:
        folder = Path(os.readlink(f"/proc/{pid}/cwd"))
        file = find(folder)
        if file is None:
            return ""
        from ..check import settings  # after a file is there: it loads what predictions need

        trainings = settings.read(folder, file).trainings.values()
    except (OSError, UsageError):
        return ""
    models = dict.fromkeys(one.model for one in trainings)
    factories = [
        one for one in models if FACTORY.fullmatch(one) and not one.startswith("torchvision:")
    ]
    stem = Path(trainer.definition.script or "").stem
    named = [one for one in factories if one.partition(":")[0].rpartition(".")[2] == stem]
    found = named if len(named) == 1 else factories
    if len(found) != 1:
        return ""
    there = "" if folder == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    return f"{there}gpuscope tune {found[0]}"


def _of_the_lab(pid: int) -> str:
    try:
        arguments = words_of(pid)
        config = LabConfig.from_json(arguments[arguments.index("--config") + 1])
    except (OSError, ValueError, IndexError, ConfigError):
        return ""
    if config.parallel != "none":
        return ""
    flags = replace(config, steps=None).flags(with_model=True)
    return " ".join(["gpuscope tune", *map(shlex.quote, flags)])


def offers_here() -> dict[str, int]:
    """Return the command for each training of this machine that can be named, and its PID."""
    from .local_look import look

    return {offer(one): one.definition.pid for one in look(LOOK_SECONDS).host.trainers}


def with_offers(report: Report, trainers: Iterable[TrainerView]) -> Report:
    """Return the report with the search as the last fix of what settings can cure."""
    commands = {offer(one) for one in trainers} - {""}
    if len(commands) != 1:
        return report
    fix, rows = Fix(title=TITLE, command=commands.pop()), table.load()
    findings = tuple(
        replace(one, fixes=(*(one.fixes or rows[one.pitfall].fixes_for(one.cause)), fix))
        if one.cause in CURED
        else one
        for one in report.findings
    )
    return replace(report, findings=findings)
