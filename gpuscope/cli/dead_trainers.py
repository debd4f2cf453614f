"""Find what this user's trainers left behind here when they ended badly, unobserved.

The result is one line for ``gpuscope ps`` and ``gpuscope --oneline``, and what the Doctor counts.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..model.ended_jobs import BAD, RECENT_SECONDS, EndedJob, number_text, sentence
from ..probe import blackbox

if TYPE_CHECKING:
    from ..wire.frames import TrainerDef

TOGETHER_SECONDS = 120.0
"""Trainers that ended within this many seconds of each other may be ranks of one job."""
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


def box_of(pid: int) -> Path | None:
    """Return the newest black box that a process with this pid left here. Never raises."""
    try:
        found = [
            (seen.st_mtime, path)
            for path in Path(blackbox.directory()).glob(f"{pid}-*.box")
            if blackbox.NAME.fullmatch(path.name) and (seen := path.lstat()).st_uid == os.geteuid()
        ]
    except OSError:
        return None
    return max(found)[1] if found else None


def nothing_has(pid: int) -> tuple[str, str]:
    """Return that no process has this pid, and what to do next: its black box says how it was."""
    said = f"no process has pid {pid} here"
    box = box_of(pid)
    if box is None:
        return said, "gpuscope ps    lists the trainers"
    name = shlex.quote(str(box))
    return (
        f"{said}: its trainer has ended",
        f"gpuscope doctor {name}    says how it ended; gpuscope why {name}    where its time went",
    )


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

    Either a signal did that asks a process to end, or it is of those that are ended without a
    failure (:func:`~gpuscope.model.job_ends.may_end_silently`) and had none. Only the part of the
    box that is needed for this is read.
    """
    from ..model.job_ends import end_of_box, may_end_silently
    from ..store.blackbox import last_words, trainer_of

    ended = last_words(path)
    if ended is not None:
        return end_of_box(ended).kind not in BAD
    trainer = trainer_of(path)
    return trainer is not None and may_end_silently(trainer.script)


class LeftJob(NamedTuple):
    """A job that left black boxes: the box of the rank that says why it ended, else the newest.

    ``ended`` is the wall-clock time of the last write of its newest box. ``last_words`` is what
    that rank wrote of its end.
    """

    ended: float
    path: Path
    pids: tuple[int, ...]
    trainer: TrainerDef | None
    last_words: dict[str, Any] | None

    @property
    def counted(self) -> EndedJob:
        """The job as all surfaces count it."""
        from ..model.job_ends import end_of_box

        return EndedJob(self.pids, self.ended, end_of_box(self.last_words))


def jobs(directory: str | Path | None = None) -> list[LeftJob]:
    """Return the jobs of the last day that left black boxes, the newest first.

    Of the ranks of a job, the first one that says how it ended stands for all, because its end made
    the others end. Runs with the same rendezvous address at different times are different jobs.
    """
    from ..store.blackbox import last_words, trainer_of

    found: list[tuple[object, LeftJob]] = []
    for ended, path in boxes(directory):
        pid, start = map(int, path.name.partition(".")[0].split("-"))
        trainer, how = trainer_of(path), last_words(path)
        key = trainer.job if trainer is not None and trainer.job else (pid, start)
        one = LeftJob(ended, path, (pid,), trainer, how)
        same = [
            n
            for n, (job, known) in enumerate(found)
            if job == key and known.ended - ended <= TOGETHER_SECONDS
        ]
        if not same:
            found.append((key, one))
            continue
        known = found[same[0]][1]
        first = one if _when(how) < _when(known.last_words) else known
        found[same[0]] = key, first._replace(ended=known.ended, pids=(*known.pids, pid))
    return [job for _, job in found]


def _when(how: dict[str, Any] | None) -> float:
    when = how.get("time") if how is not None else None
    return float(when) if isinstance(when, (int, float)) else float("inf")


def counted(directory: str | Path | None = None) -> list[EndedJob]:
    """Return the same jobs as all surfaces count them."""
    return [job.counted for job in jobs(directory)]


def line(directory: str | Path | None = None) -> str:
    """Return a line with the jobs of the last day and how to replay the newest; "" without one.

    Never raises.
    """
    found = jobs(directory)
    if not found:
        return ""
    newest = shlex.quote(str(found[0].path))
    said = sentence([job.counted for job in found])
    return f"{said}. To play the last minutes of the newest:  gpuscope replay {newest}"


def brief(directory: str | Path | None = None) -> str:
    """Return how many jobs of this user ended badly here in the last day, without that time."""
    return number_text(counted(directory), window=False)


def ended(directory: str | Path | None = None) -> str:
    """Return how many jobs of this user ended badly here in the last day, and how.

    "" stands for none.
    """
    return sentence(counted(directory))
