"""Say which processes of this machine run a script that is being checked.

The text of a script does not tell how its training goes: its loss may be NaN at this moment.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from ....doctor.finding import Report
from ....doctor.script import WORDINGS
from ....process.procfs import stat_of, words_of
from ....text.process_name import behind_options
from ....text.units import count_text
from ....wire.clean import clean


def report(path: Path, name: str, is_judged: bool) -> Report:
    """Return what the text of a script cannot tell, and how to see it.

    Where it runs here now that is said in any case, and that only its text was examined, else where
    the script is not ``is_judged``.
    """
    pids = running(path)
    if not pids and is_judged:
        return Report()
    if not pids:
        once = WORDINGS.abstained("runs", script=name, path=shlex.quote(str(path)))
        return Report(abstained=(once,))
    runs = f"pid {pids[0]} runs" if len(pids) == 1 else f"{count_text(len(pids), 'process')} run"
    figures = {"script": clean(path.name, 200), "runs": runs, "pid": pids[0]}
    text = f"the text of {name} alone"
    return Report(abstained=(WORDINGS.abstained("runs-here", **figures),), examined=(text,))


def running(path: Path) -> list[int]:
    """Return the processes that Python started with this script, in the order of their pids.

    Workers of a loader have the command of the process that they belong to, and are left out.
    """
    wanted, found = path.resolve(), {}
    for folder in Path("/proc").glob("[1-9]*"):
        if folder.name.isdigit() and _runs(int(folder.name), wanted):
            found[int(folder.name)] = _parent(int(folder.name))
    return sorted(pid for pid, parent in found.items() if parent not in found)


def _runs(pid: int, wanted: Path) -> bool:
    try:
        words = words_of(pid)
        script = _script_of(words)
        return bool(script) and Path(os.readlink(f"/proc/{pid}/cwd"), script).resolve() == wanted
    except (OSError, ValueError):  # it has ended, or belongs to another user
        return False


def _script_of(words: list[str]) -> str:
    """Return the script in the command of a Python process, "" for a module or another program."""
    if not words[0].rpartition("/")[2].startswith("python"):
        return ""
    at = behind_options(words)
    if at >= len(words) or words[at].startswith("-"):
        return ""
    option = words[at - 1]
    if option.startswith("-") and not option.startswith("--") and option[-1] in "cm":
        return ""  # such as -uc, behind which is code
    return words[at]


def _parent(pid: int) -> int:
    try:
        return stat_of(pid).ppid
    except (OSError, ValueError):  # it has ended
        return 0
