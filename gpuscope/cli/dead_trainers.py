"""Find what this user's trainers left behind here when they died unobserved.

The result is one line for ``gpuscope ps``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..probe import blackbox, rendezvous
from ..wire import boxes as format_of_boxes

RECENT_SECONDS = 86400.0
BY_ITS_USER = frozenset(("KeyboardInterrupt", "SignalException", "SIGTERMException"))
"""Exceptions that mean that somebody deliberately sent a signal.

They are Python's own for Ctrl-C, that of torch's launcher, and that of Lightning. A user who ended
a trainer need not be told about its end.
"""
_SENT = re.compile(r" signal (?!STOP|CONT)[A-Z0-9]+ to pid (\d+) \(start (\d+), .*: sent$", re.M)
_NOTEBOOK = re.compile(r"ipykernel|colab_kernel|papermill|jupyter")
_LAB = re.compile(r"\bgpuscope[./]lab[./](worker|rank)\b|^gpuscope lab$")
"""The Lab's own processes. Stopping a run ends them, and the Lab itself says how a run failed."""
_LOG_BYTES = 64 << 10


def boxes(directory: str | Path | None = None) -> list[tuple[float, Path]]:
    """Return the black boxes of the last day whose trainers died, the newest first.

    Each is (wall-clock time of the last write, path). Trainers that their user ended are left out.
    Never raises.
    """
    place = Path(directory or os.environ.get("GPUSCOPE_BLACKBOX_DIR") or rendezvous.directory())
    found: list[tuple[float, Path]] = []
    try:
        for path in place.glob("*.box"):
            match = blackbox.NAME.fullmatch(path.name)
            seen = path.lstat()
            mine = (
                match is not None
                and seen.st_uid == os.geteuid()
                and not blackbox.runs(int(match[1]), int(match[2]))
            )
            if (
                mine
                and time.time() - seen.st_mtime < RECENT_SECONDS
                and not was_ended_by_its_user(path)
            ):
                found.append((seen.st_mtime, path))
    except OSError:
        return []
    sent = _signalled() if found else set()
    return sorted((one for one in found if one[1].name.partition(".")[0] not in sent), reverse=True)


def _signalled() -> set[str]:
    """Return ``pid-start`` of the processes that this user has recently sent a signal.

    Only signals that were sent from a screen of gpuscope are known.
    """
    from .commands.attach.local import audit_path

    try:
        with open(audit_path(), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return set()
    return {f"{pid}-{start}" for pid, start in _SENT.findall(text)}


def was_ended_by_its_user(path: Path) -> bool:
    """Tell whether the trainer's own user ended it.

    Either an exception of :data:`BY_ITS_USER` ended it, or it was a notebook kernel that ended
    without an error, or a run of the Lab: restarting a kernel or stopping a run is no failure. Only
    the part of the box that is needed for this is read.
    """
    try:
        with open(path, "rb") as file:
            payload = format_of_boxes.read_header(file.read(format_of_boxes.SLOTS_OFFSET))
        ended: Any = json.loads(payload).get("ended") if payload is not None else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return False
    if isinstance(ended, dict):
        return str(ended.get("type", "")).rpartition(".")[2] in BY_ITS_USER
    from ..store.blackbox import trainer_of

    trainer = trainer_of(path)
    script = (trainer.script or "") if trainer is not None else ""
    return any(one.search(script) is not None for one in (_NOTEBOOK, _LAB))


def line(directory: str | Path | None = None) -> str:
    """Return a line with the newest black box of the last day and how to replay it; "" without one.

    Never raises.
    """
    found = boxes(directory)
    if not found:
        return ""
    newest = shlex.quote(str(found[0][1]))
    return f"{_count(found)}. The last minutes of the newest:  gpuscope replay {newest}"


def died(directory: str | Path | None = None) -> str:
    """Return how many trainers of this user died here in the last day; "" without one."""
    found = boxes(directory)
    return _count(found) if found else ""


def _count(found: Sequence[object]) -> str:
    count = f"{len(found)} trainers of yours" if len(found) > 1 else "A trainer of yours"
    return f"{count} died here in the last day"
