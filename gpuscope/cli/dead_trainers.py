"""Find what this user's trainers left behind here when they ended badly, unobserved.

The result is one line for ``gpuscope ps``.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from ..probe import blackbox

RECENT_SECONDS = 86400.0
_SENT = re.compile(r" signal (?!STOP|CONT)[A-Z0-9]+ to pid (\d+) \(start (\d+), .*: sent$", re.M)
_LOG_BYTES = 64 << 10


def boxes(directory: str | Path | None = None) -> list[tuple[float, Path]]:
    """Return the black boxes of the last day whose trainers are gone, the newest first.

    Each is (wall-clock time of the last write, path). Trainers that their user ended are left out.
    Never raises.
    """
    place = Path(directory or blackbox.directory())
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

    Either a signal did that Python or a launcher turned into an exception, or it is of those that
    are ended without a failure (:func:`~gpuscope.model.job_ends.may_end_silently`) and had none.
    Only the part of the box that is needed for this is read.
    """
    from ..model.job_ends import end_of_box, may_end_silently
    from ..store.blackbox import last_words, trainer_of

    ended = last_words(path)
    if ended is not None:
        return end_of_box(ended).word == "stopped"
    trainer = trainer_of(path)
    return trainer is not None and may_end_silently(trainer.script)


def line(directory: str | Path | None = None) -> str:
    """Return a line with the newest black box of the last day and how to replay it; "" without one.

    Never raises.
    """
    found = boxes(directory)
    if not found:
        return ""
    newest = shlex.quote(str(found[0][1]))
    return f"{_count(found)}. The last minutes of the newest:  gpuscope replay {newest}"


def ended(directory: str | Path | None = None) -> str:
    """Return how many trainers of this user ended here badly in the last day, and how.

    "" stands for none.
    """
    found = boxes(directory)
    return _count(found) if found else ""


def _count(found: Sequence[tuple[float, Path]]) -> str:
    from ..model.job_ends import counts_text, end_of_box
    from ..store.blackbox import last_words

    how = counts_text([end_of_box(last_words(path)) for _, path in found])
    if len(found) == 1:
        return f"A trainer of yours ended here in the last day: {how.removeprefix('1 ')}"
    return f"{len(found)} trainers of yours ended here in the last day: {how}"
