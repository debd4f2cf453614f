"""Run the checks that a viewer's Doctor tab needs besides the live view.

They examine the environment, and what trainers that ended here left behind. They run in a child
process, so that the viewer loads no driver and waits for nothing.

``python …/doctor/background_checks.py environment left`` prints one JSON object per line as each
part is done: ``{"part": "environment", "report": …}``, ``{"part": "ended", "jobs": …}`` with the
fields of each EndedJob of ``model/ended_jobs.py``, ``{"part": "left", "pid": …, "ended": …,
"name": …, "end": …, "path": …, "report": …}``, and at the end ``{"part": "end"}``. A report is the
document of ``gpuscope doctor --json``. ``ended`` is in seconds since 1970, ``name`` a text for
people, ``end`` has the fields of an End of ``model/job_ends.py``, and ``path`` is the file it left.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    here = Path(__file__).resolve()
    sys.path[:] = [
        str(here.parents[4]),
        *(path for path in sys.path if Path(path or ".").resolve() != here.parent),
    ]
    import gpuscope  # noqa: F401

    del sys.path[0]  # otherwise files beside the package could shadow the standard library

from gpuscope.cli import dead_trainers
from gpuscope.cli.commands.doctor import left as doctor_left
from gpuscope.doctor import report as reports
from gpuscope.doctor import table
from gpuscope.doctor.finding import Pitfall, Report
from gpuscope.wire.clean import clean

TIMEOUT_SECONDS = 5.0
MOST = 4
"""How many of the newest jobs that left black boxes, and of the newest records, are examined."""
PATIENT = 10
"""The niceness of this process, so that trainers and the screen come first."""


def main(parts: list[str]) -> int:
    """Prints the parts that are asked for. 0, whatever is found."""
    os.nice(PATIENT)
    known = table.load()
    if "environment" in parts:
        _say("environment", _environment(), known)
    if "left" in parts:
        jobs = [
            {"pids": one.pids, "seconds": one.seconds, "end": asdict(one.end)}
            for one in dead_trainers.counted()
        ]
        _say("ended", Report(), known, jobs=jobs)
        for death in doctor_left.deaths(most=MOST):
            _say(
                "left",
                death.report,
                known,
                pid=death.pid,
                ended=death.ended,
                name=death.name,
                end=asdict(death.end),
                path=str(death.path),
            )
    print(json.dumps({"part": "end"}), flush=True)
    return 0


def _environment() -> Report:
    try:
        from gpuscope.cli.commands.doctor import environment as doctor_environment

        return doctor_environment.examine(timeout=TIMEOUT_SECONDS)
    except Exception as error:
        why = f"{type(error).__name__}: {clean(str(error), 300)}"
        return Report(
            problems=(f"The environment: the check failed ({why}). Try: gpuscope doctor",)
        )


def _say(part: str, found: Report, known: dict[str, Pitfall], **more: Any) -> None:
    settled = reports.finish(found, known)
    document = reports.document(settled, reports.exit_code(settled))
    print(json.dumps({"part": part, **more, "report": document}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
