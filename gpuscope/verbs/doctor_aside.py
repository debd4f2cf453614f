"""What a viewer's doctor examines besides the live picture, in a child process so that the viewer loads no driver and
waits for nothing: the environment, and what trainers that died here left behind.

``python …/verbs/doctor_aside.py environment left`` prints one JSON object a line, as each part is done:
``{"part": "environment", "report": …}``, ``{"part": "left", "pid": …, "ended": …, "report": …}``, at the end
``{"part": "end"}``. A report is the document of ``gpuscope doctor --json``; ``ended`` is seconds since 1970.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    here = Path(__file__).resolve()
    sys.path[:] = [str(here.parents[2]), *(path for path in sys.path if Path(path or ".").resolve() != here.parent)]
    import gpuscope.verbs  # noqa: F401

    del sys.path[0]  # else what lies beside the package could stand before the standard library

from gpuscope.doctor import report as reports
from gpuscope.doctor import table
from gpuscope.doctor.finding import Evidence, Finding, Fix, Report
from gpuscope.probe import blackbox, records
from gpuscope.store.blackbox import BoxReader
from gpuscope.verbs import died, doctor_targets
from gpuscope.wire.clean import clean

TIMEOUT_SECONDS = 5.0
MOST = 4
"""Of boxes and of records: the newest."""
PATIENT = 10
"""The niceness: the trainers and the screen come first."""
_RECORD = re.compile(r"oom-[\w.-]+-([1-9][0-9]*)-([0-9]+)-\d+\.(\w+)\.pickle\.gz")


def main(parts: list[str]) -> int:
    """Prints the parts that are asked for. 0, whatever is found."""
    os.nice(PATIENT)
    known = table.load()
    if "environment" in parts:
        _say("environment", _environment(), known)
    if "left" in parts:
        for pid, ended, report in left():
            _say("left", report, known, pid=pid, ended=ended)
    print(json.dumps({"part": "end"}), flush=True)
    return 0


def _environment() -> Report:
    try:
        from gpuscope.verbs import doctor_environment

        return doctor_environment.examine(timeout=TIMEOUT_SECONDS)
    except Exception as error:
        why = f"{type(error).__name__}: {clean(str(error), 300)}"
        return Report(problems=(f"The environment: examining it failed ({why}). Try: gpuscope doctor",))


def _say(part: str, found: Report, known: dict[str, table.Pitfall], **more: Any) -> None:
    settled = reports.settled(found, known)
    document = reports.document(settled, reports.exit_code(settled))
    print(json.dumps({"part": part, **more, "report": document}), flush=True)


def left(seconds: float = died.RECENT_SECONDS, most: int = MOST) -> Iterator[tuple[int, float, Report]]:
    """What trainers of this user left that died in the last ``seconds``, ``most`` records and as many boxes: (pid, wall
    clock of the end, report). The record of an out-of-memory error knows more than the black box of the same process,
    and stands for it. A report without findings: it ended by an exception that no rule knows."""
    told = set()
    since = time.time() - seconds
    for ended, pid, start, path in [one for one in _records() if one[0] >= since][:most]:
        found = doctor_targets.examine([str(path)], False, TIMEOUT_SECONDS)
        if found.findings and (pid, start) not in told:
            told.add((pid, start))
            yield pid, ended, _told(found, pid, ended, path, "Look at what it held", "gpuscope snapshot")
    for ended, path in [one for one in died.boxes() if one[0] >= since][:most]:
        match = blackbox.NAME.fullmatch(path.name)
        pid, start = (int(match[1]), int(match[2])) if match else (0, 0)
        if (pid, start) not in told:
            found = doctor_targets.examine([str(path)], False, TIMEOUT_SECONDS)
            # How fast it was matters no more.
            graves = tuple(one for one in found.findings if one.severity == "problem")
            known = graves or BoxReader(path).ended is not None
            found = replace(found, findings=graves if known else (_unexplained(pid),))
            yield pid, ended, _told(found, pid, ended, path, "Look at its last minutes", "gpuscope replay")


def _records() -> list[tuple[float, int, int, Path]]:
    """The records of the last day whose process is gone, the newest first."""
    place = Path(records.place())
    out = []
    try:
        records.check_private(str(place))
        for path in place.iterdir():
            match = _RECORD.fullmatch(path.name)
            written = path.lstat().st_mtime
            if match is None or time.time() - written >= died.RECENT_SECONDS:
                continue
            pid, start = int(match[1]), int(match[2])
            if match[3] in ("confirmed", "seen") and not blackbox.runs(pid, start):
                out.append((written, pid, start, path))
    except OSError:
        return []
    return sorted(out, reverse=True)


def _unexplained(pid: int) -> Finding:
    return Finding(
        pitfall="host-memory-limit",
        cause="end.unseen",
        severity="info",
        confidence="prior",
        title=f"pid {pid} ended without a word: killed, by somebody or by the kernel for lack of host memory",
        evidence=(Evidence(text="no exception and no out-of-memory error of the GPU stands in its black box"),),
        fixes=(Fix(title="Ask the kernel", now=True, command="dmesg | grep -i 'killed process'"),),
    )


def _told(found: Report, pid: int, ended: float, path: Path, look: str, verb: str) -> Report:
    """With whose it was and when, and how to look at it. A fix that needs the process alive is of no use any more."""
    when = time.strftime("%d %b %H:%M:%S", time.localtime(ended))
    line = Evidence(text=f"left by pid {pid}, which ended {when}", source=path.name)
    way = Fix(title=look, now=True, command=f"{verb} {shlex.quote(str(path))}")
    out = []
    for one in found.findings:
        where = one.where if f"pid {pid}" in one.where else ", ".join(filter(None, (f"pid {pid}", one.where)))
        known = one.fixes or table.load()[one.pitfall].fixes_for(one.cause)
        out.append(replace(one, where=where, evidence=(*one.evidence, line), fixes=(way, *known)))
    return replace(found, findings=tuple(out), examined=())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
