"""Order the fixes of a finding: every screen and the shell give the same first advice.

What helps now comes first, then the fix of the cause, then what prevents it next time. Within each
the order is that of the table.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .order import pid_of

if TYPE_CHECKING:
    from .finding import Finding, Fix, Pitfall

STACKS = re.compile(r"gpuscope attach (\d+)")
"""A command that is a key of the screens."""
_CALL = re.compile(r"\w+\(…, ([^()…]+)\)")
_TO_FILL = re.compile(r"…|\b(?:N|PID|PIDS|FILE)\b")
"""What a reader has to fill in stands for what is not known here."""
KILL = "kill "
"""Begins a command that ends processes."""


def now_of(finding: Finding, row: Pitfall) -> str:
    """Return what helps without a restart, with the process of the finding where it names one."""
    pid = pid_of(finding)
    return row.now if pid is None else re.sub(r"\bPID\b", str(pid), row.now)


def steps_of(finding: Finding, replayed: bool) -> list[Fix]:
    """Return what to do in order: first what helps now, then what is for the next run.

    In a replay nothing that ran can be helped any more: only what is for the next run is left.
    """
    fixes = sorted(finding.fixes, key=lambda fix: not fix.now)
    if not replayed:
        return fixes
    later = [fix for fix in fixes if not fix.now]
    return later or [fix for fix in fixes if not is_for_what_runs(fix)]


def is_for_what_runs(fix: Fix) -> bool:
    """Tell whether a fix acts on a process that runs: in a replay there is none."""
    return bool(STACKS.fullmatch(fix.command)) or fix.command.startswith(KILL)


def paste_of(fix: Fix) -> str:
    """Return what can be pasted of a fix, "" where it is only words.

    That is code, the line of the environment, or the command, if it runs as it stands. Of a call
    whose other arguments are left out, it is the arguments that it gets.
    """
    command = "" if STACKS.fullmatch(fix.command) else fix.command
    call = _CALL.fullmatch(fix.code.strip())
    parts = (call[1] if call else fix.code.strip("\n"), fix.environment, command)
    return "\n".join(part for part in parts if part and not _TO_FILL.search(part))


def copied_steps(finding: Finding, replayed: bool) -> list[int]:
    """Return the numbers of the steps that have something to copy."""
    return [at for at, fix in enumerate(steps_of(finding, replayed)) if paste_of(fix)]


def marked_step(finding: Finding, replayed: bool, chosen: int = 0) -> int | None:
    """Return the number of the step that is copied, None where there is none.

    It is the first of the next run that has something to copy, else the first that helps now,
    and from there ``chosen`` further.
    """
    steps, able = steps_of(finding, replayed), copied_steps(finding, replayed)
    if not able:
        return None
    start = next((at for at in able if not steps[at].now), able[0])
    return able[(able.index(start) + chosen) % len(able)]
