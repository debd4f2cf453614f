"""Print the diagnosis below a traceback.

``probe/diagnosis.py`` starts this file by its path when a trainer ends, and passes the traceback on
standard input. Standard output is the trainer's standard error.

Usage: ``python -I …/doctor/after_failure.py PID START``. The pid and start time of the trainer name
the record of an out-of-memory error that it may have left. Nothing is printed where no rule knows
the failure, and an error in here stays silent.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
    import gpuscope  # noqa: F401

    del sys.path[0]  # otherwise files beside the package could shadow the standard library

from gpuscope.doctor import report as reports
from gpuscope.doctor import table
from gpuscope.doctor.finding import Report
from gpuscope.text.styled import plain

MAX_BYTES = 1 << 20
SHOWN = 3
HEAD = "gpuscope doctor on this failure (to skip it: gpuscope run --no-doctor)"


def examine(text: bytes, pid: str, start: str) -> Report:
    """Return the findings on a traceback, and on the record that the same process left."""
    from gpuscope.doctor import postmortem, postmortem_end

    found = postmortem_end.examine_text(text, "traceback")
    record = _record(pid, start)
    if record is not None:
        known = postmortem.examine(record, "snapshot")
        if known.findings:  # what the allocator really held is more reliable than the message
            found = Report(
                findings=known.findings + found.findings,
                abstained=found.abstained,
                examined=found.examined,
            )
    return found


def _record(pid: str, start: str) -> Path | None:
    """The newest record of an out-of-memory error of this process, None where it left none."""
    from gpuscope.probe import records

    ours = re.compile(rf"oom-[\w-]+-{pid}-{start}-\d+\.\w+\.pickle\.gz")
    place = Path(records.place())
    try:
        records.check_private(str(place))
        found = [place / name for name in os.listdir(place) if ours.fullmatch(name)]
        return max(found, key=lambda path: path.lstat().st_mtime, default=None)
    except OSError:
        return None


def main(argv: list[str]) -> int:
    """0, whatever is found: the exit code that counts is the trainer's."""
    text = sys.stdin.buffer.read(MAX_BYTES)
    pid, start = (word if word.isdigit() else "" for word in argv[:2])
    known = table.load()
    found = reports.finish(examine(text, pid, start), known)
    if not found.findings:
        return 0
    from gpuscope.cli.commands.doctor import verb as doctor_verb

    chosen = Report(findings=found.findings[:SHOWN])
    lines = reports.lines(chosen, 0, doctor_verb.width())
    while lines and (not lines[-1] or "Exit code" in plain(lines[-1])):
        lines.pop()  # the exit code line is left out, because the trainer has its own
    print()
    doctor_verb.print_lines([[(HEAD, "accent")], *lines])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
