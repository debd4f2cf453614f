"""Asks this host's ``scontrol`` or ``squeue`` when a Slurm job ends by its time limit."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from typing import Dict, List, Optional, Tuple, Union

from ..wire.frames import NOT_INITIALISED, NOT_SUPPORTED, TIMEOUT, Unknown

SECONDS = 5.0
"""Seconds to wait for Slurm: a controller that is down lets its clients wait for minutes."""
KEPT_SECONDS = 50.0
MAX_KEPT = 64
MAX_OUTPUT = 64 << 10
_JOB = re.compile(r"\d{1,12}(?:_\d{1,8})?$")

End = Union[float, Unknown]
"""Seconds since the epoch, or why they are not known."""
_kept: Dict[str, Tuple[float, End]] = {}
_lock = threading.Lock()


def job_end(job: str) -> End:
    """Return when this job ends; Slurm is asked at most once in 50 s.

    It may take 10 s, so it must not be called in a thread that others wait for.
    """
    if not _JOB.match(job):
        return Unknown(NOT_SUPPORTED, "not a Slurm job id")
    now = time.monotonic()
    with _lock:
        old = _kept.get(job)
    if old is not None and now - old[0] < KEPT_SECONDS:
        return old[1]
    found = ask(job)
    with _lock:
        if len(_kept) >= MAX_KEPT:
            _kept.clear()
        _kept[job] = (now, found)
    return found


def ask(job: str) -> End:
    """Ask Slurm when a job ends, without the cached answer.

    ``job`` must be a number, because it becomes an argument of a program. No shell is used.
    """
    ways = (("scontrol", ["show", "job", "-o", job]), ("squeue", ["-h", "-j", job, "-o", "%e"]))
    reason = Unknown(NOT_SUPPORTED, "neither scontrol nor squeue is on this host's PATH")
    for program, words in ways:
        path = shutil.which(program)
        if path is None:
            continue
        text, failed = _run([path, *words])
        if failed:
            reason = Unknown(
                TIMEOUT if "within" in failed else NOT_SUPPORTED, f"{program}: {failed}"
            )
            continue
        if program == "scontrol":
            match = re.search(r"(?:^|\s)EndTime=(\S+)", text)
            text = match.group(1) if match else ""
        end = _moment(text.strip().splitlines()[0].strip() if text.strip() else "")
        if end is not None:
            return end
        if text.strip() in ("Unknown", "N/A", "NONE"):
            why = "the job has no time limit, or has not started"
            return Unknown(NOT_INITIALISED, f"{program} says {text.strip()}: {why}")
        reason = Unknown(NOT_SUPPORTED, f"{program} shows no end time of job {job}")
    return reason


def _run(words: List[str]) -> Tuple[str, str]:
    """Return what a command wrote, and why that is nothing to read."""
    from ..process import child  # imported late, because only a host with Slurm needs it

    try:
        output = child.ask(
            words, SECONDS, {**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}, MAX_OUTPUT
        )
    except OSError as error:
        return "", f"cannot be started ({error.strerror})"
    if output.failure:
        return "", output.last_words if output.code and output.last_words else output.failure
    return output.output.decode("utf-8", "replace"), ""


def _moment(text: str) -> Optional[float]:
    """Return a time that Slurm printed as seconds since the epoch.

    It looks like ``1763671020``, or like ``2026-11-20T20:37:00`` in this host's time zone.
    """
    if text.isdigit() and len(text) <= 12:
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
