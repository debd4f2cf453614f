"""Look for mistakes in the scripts that the configuration names, as ``gpuscope doctor`` does."""

from __future__ import annotations

import os
from pathlib import Path

from ..doctor import report as reports
from ..doctor import script
from .outcome import Checked, ScriptFinding


def look(checked: Checked) -> None:
    """Add the findings of the scripts, and what could not be read, to what was checked."""
    found = checked.configuration
    for name in found.scripts:
        path = found.folder / name
        if not path.exists():
            checked.problems.append(
                f"scripts: there is no {name} in the folder of {found.file.name}."
            )
            continue
        report = reports.finish(script.report([str(path)]), {})
        checked.problems += report.problems
        for finding in report.findings:
            where, _, line = finding.where.rpartition(":")
            file = os.path.relpath(where or path, checked.root)
            number = int(line) if line.isdigit() else 1
            checked.findings.append(ScriptFinding(Path(file).as_posix(), number, finding))
