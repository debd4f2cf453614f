"""Observe a trainer from outside: by its log, and by how long it has used no CPU.

The log may contain step and loss. It is read only for processes of this user, and only if the
trainer's standard output or error is a regular file. Only the end of the file is read, and only
when the file has changed; where all losses there are NaN or infinite, what lies before it is
searched once for the last finite one. Figures from a log are claims of its writer, not
measurements.
"""

from __future__ import annotations

import math
import os
import re
import stat
import time
from typing import Dict, List, NamedTuple, Optional, Tuple

from ..process.procfs import why_process
from ..text.log_figures import LogFigures, LostRun, figures, lost_run
from ..wire.frames import NO_PERMISSION, NOT_INITIALISED, NOT_SUPPORTED, ProcDef, Reading, Unknown
from ..wire.loss_text import BEFORE_READ, not_finite_text
from .lost_since import beginning

LOG_COLUMNS = ("log_step", "log_total", "log_loss", "log_age_seconds", "log_epoch")
TAIL_BYTES = 16 << 10
BUSY_PERCENT = 1.0
"""The share of one CPU core below which a process counts as idle.

Such a process neither computes on the CPU nor launches kernels.
"""
LASTING_LOSSES = 2
"""From so many on, losses one after the other that are NaN or infinite are not the odd one.

A step in fp16 may overflow now and then; its grad scaler leaves that step out.
"""
FORGET = 4096


class _Log(NamedTuple):
    identity: Tuple[int, int]
    size: int
    modified: float
    figures: LogFigures
    lost: Optional[LostRun]


class _Seen:
    __slots__ = ("busy", "logs")

    def __init__(self, now: float) -> None:
        self.busy = now
        self.logs: List[_Log] = []


class OutsideReader:
    """Reads ``LOG_COLUMNS`` and ``idle_seconds`` of any number of processes."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._seen: Dict[Tuple[int, Optional[int]], _Seen] = {}

    def sample(
        self, process: ProcDef, cpu_percent: Optional[Reading], now: float
    ) -> Dict[str, Reading]:
        """Read the trainer's log, and since when the trainer has been idle.

        ``now`` is in monotonic seconds. ``cpu_percent`` is the process's CPU use, which was read
        just before.
        """
        key = process.pid, process.start
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= FORGET:
                self._seen.clear()
            seen = self._seen[key] = _Seen(now)
        return {**self._log(process, seen), "idle_seconds": self._idle(seen, cpu_percent, now)}

    @staticmethod
    def _idle(seen: _Seen, cpu_percent: Optional[Reading], now: float) -> Reading:
        """Return for how many seconds a process has used less than 1 % of a core.

        It is counted from the first observation, so the true time may be longer.
        """
        if isinstance(cpu_percent, Unknown):
            return cpu_percent
        if not isinstance(cpu_percent, (int, float)):
            return Unknown(NOT_INITIALISED, "not read yet")
        if cpu_percent >= BUSY_PERCENT:
            seen.busy = now
        return round(now - seen.busy, 1)

    def _log(self, process: ProcDef, seen: _Seen) -> Dict[str, Reading]:
        if not process.mine:
            return dict.fromkeys(
                LOG_COLUMNS, Unknown(NO_PERMISSION, "its log belongs to another user: not read")
            )
        try:
            logs, kinds = self._read(process.pid, seen.logs)
        except OSError as error:
            return dict.fromkeys(LOG_COLUMNS, why_process(error, process.pid, "fd/1"))
        if not logs and {*kinds} <= {"nothing"}:
            logs = seen.logs  # it is ending, and has closed its files
        seen.logs = logs
        if not logs:
            where = " and ".join(sorted(set(kinds))) or "nothing"
            reason = Unknown(NOT_SUPPORTED, f"its output goes to {where}, not to a readable file")
            return dict.fromkeys(LOG_COLUMNS, reason)
        logs = sorted(logs, key=lambda log: -log.modified)
        found: Dict[str, Reading] = {
            "log_age_seconds": round(max(0.0, time.time() - logs[0].modified), 1)
        }
        steps = [log.figures for log in logs if log.figures.step is not None]
        losses = [log for log in logs if log.figures.loss is not None]
        found["log_step"] = _or(steps[0].step if steps else None, "no step at the end of its log")
        found["log_total"] = _or(
            steps[0].total if steps else None, "no total number of steps at the end of its log"
        )
        epochs = [log.figures.epoch for log in logs if log.figures.epoch is not None]
        found["log_epoch"] = _or(epochs[0] if epochs else None, "no epoch at the end of its log")
        loss = losses[0].figures.loss if losses else None
        lost = losses[0].lost if losses else None
        if loss is not None and not math.isfinite(loss):
            found["log_loss"] = Unknown(NOT_SUPPORTED, _lost_text(loss, lost))
        else:
            found["log_loss"] = _or(loss, "no loss at the end of its log")
        return found

    def _read(self, pid: int, before: List[_Log]) -> Tuple[List[_Log], List[str]]:
        """Return the files behind standard output and error, and in words what else they are.

        Raises OSError.
        """
        logs: List[_Log] = []
        kinds = []
        for number in (1, 2):
            path = os.path.join(self._root, "proc", str(pid), "fd", str(number))
            try:
                found = os.stat(path)
            except FileNotFoundError:
                # The process itself is gone, so this is reported instead.
                os.stat(os.path.join(self._root, "proc", str(pid)))
                kinds.append("nothing")
                continue
            identity = found.st_dev, found.st_ino
            if not stat.S_ISREG(found.st_mode):
                kinds.append(_kind(found))
                continue
            if any(log.identity == identity for log in logs):
                continue
            old = next((log for log in before if log.identity == identity), None)
            if old is not None and (old.size, old.modified) == (found.st_size, found.st_mtime):
                logs.append(old)
                continue
            try:
                text, lost = _end(path, identity, old.lost if old is not None else None)
            except OSError:
                kinds.append("a file it may not read")
                continue
            logs.append(_Log(identity, found.st_size, found.st_mtime, figures(text), lost))
        return logs, kinds


def _lost_text(loss: float, lost: Optional[LostRun]) -> str:
    lasts = lost is not None and lost.length >= LASTING_LOSSES
    since = ""
    if lost is not None and lost.since:
        earlier = lost.is_whole and lost.since != BEFORE_READ
        since = lost.since + (" or earlier" if earlier else "")
    return not_finite_text("its log says", loss, since, lasts)


def _end(
    path: str, identity: Tuple[int, int], before: Optional[LostRun]
) -> Tuple[str, Optional[LostRun]]:
    """Return the end of the file, from its first whole line, and the lost losses up to its end.

    Those may begin before what is returned. ``before`` is what the last reading found of them,
    which holds for as long as no finite loss comes. Raises OSError, also where the file was
    replaced since it was found.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != identity or not stat.S_ISREG(found.st_mode):
            raise OSError("the file was replaced")
        at = max(0, found.st_size - TAIL_BYTES)
        text = os.pread(descriptor, TAIL_BYTES, at).decode("utf-8", "replace")
        if at:
            whole = re.search(r"[\r\n]", text)
            text = text[whole.end() :] if whole else text
        lost = lost_run(text)
        if lost is not None and lost.is_whole:
            if before is not None:
                lost = before._replace(length=max(lost.length, before.length))
            elif at:
                lost = beginning(descriptor, found.st_size, lost)
    finally:
        os.close(descriptor)
    return text, lost


def _kind(found: os.stat_result) -> str:
    if stat.S_ISCHR(found.st_mode):
        return "/dev/null" if found.st_rdev == os.makedev(1, 3) else "a terminal"
    return (
        "a pipe"
        if stat.S_ISFIFO(found.st_mode)
        else "a socket"
        if stat.S_ISSOCK(found.st_mode)
        else "something"
    )


def _or(value: Optional[float], text: str) -> Reading:
    return Unknown(NOT_SUPPORTED, text) if value is None else value
