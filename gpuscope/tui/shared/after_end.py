"""What is said of a job that has ended besides how: for how long it ran, where, what next."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from ...model.job_ends import end_of, first_to_fail, job_end, lived_text, start_of
from ...model.ranks import name_of
from ...probe import blackbox
from ...store.view import TrainerView
from ...text.clock import clock_text
from ...text.styled import Line
from ...wire.clean import clean
from .event_rows import DAY, at_text

if TYPE_CHECKING:
    from ...model.job_ends import End
    from ...store.view import HostView, JobView
    from ..shell.session import Session

SHOWN_FRAMES = 3
"""The innermost lines of a stack; the black box has more."""
MAX_FRAME_CHARS = 300
_FRAME = re.compile(r"(called )?at (?=\S+:\d+ )")


def after_end(session: Session, host: HostView, job: JobView) -> Iterable[Line]:
    """Return where a job stood at its end, what to run next, and for how long it ran."""
    sent = session.happened.stopped
    rank, end = first_to_fail(job, sent), job_end(job, sent)
    if end is None or not isinstance(rank, TrainerView):
        return
    bad = end.kind in ("bad", "warn")
    box = box_of(rank) if bad and session.local else ""
    if bad:
        who = f" of {name_of(rank)}" if len(job.trainers) > 1 else ""
        yield [(f"stack{who}: ", "muted"), _stack(host, rank, end, box)]
        yield from _next(session, host, box)
    over, started = end_of(job), start_of(host, job)
    lived = lived_text(host, job).removeprefix("after ")
    if lived and started is not None and over is not None and over.wall_seconds is not None:
        begin = at_text(started, clock_text(over.wall_seconds, DAY))
        span = f"{lived}, from {begin} to {clock_text(over.wall_seconds)}"
        yield [("ran: ", "faint"), (span, "muted")]


def box_of(rank: TrainerView) -> str:
    """Return the path of the black box that a trainer left on this machine, "" without one."""
    pid, start = rank.definition.pid, rank.definition.start
    if start is None:
        return ""
    path = os.path.join(blackbox.directory(), blackbox.name_of(pid, start))
    return path if os.path.isfile(path) else ""


def _stack(host: HostView, rank: TrainerView, end: End, box: str) -> tuple[str, str]:
    """Return where a rank stood: by its exception, or by where it was stuck."""
    rows = (_rows_of_box(box) if box else ()) or tuple(_rows_told(host, rank))
    if rows:
        more = f" ← {len(rows) - SHOWN_FRAMES} more" if len(rows) > SHOWN_FRAMES else ""
        return " ← ".join(rows[:SHOWN_FRAMES]) + more, "text"
    stuck = rank.readings.get("stall_at")
    if isinstance(stuck, str) and stuck:
        return f"{stuck}, where it was stuck", "text"
    if end.word in ("failed", "out of memory"):
        return "not known: no black box of it is here", "faint"
    return "not known: it was not stuck before, and no exception ended it", "faint"


def _rows_told(host: HostView, rank: TrainerView) -> Iterable[str]:
    """Yield the stack that a replayed black box tells in notes, the innermost line first."""
    for event in host.events:
        match = _FRAME.match(event.text) if event.e == "note" and event.id == rank.id else None
        if match is not None:
            yield event.text[match.end() :]


@lru_cache(maxsize=16)
def _rows_of_box(path: str) -> tuple[str, ...]:
    """Return the stack that is in a black box; a page that stays open reads it once.

    Its process has ended, so that the box no longer changes.
    """
    from ...store.blackbox import last_words, stack_of

    return tuple(clean(row, MAX_FRAME_CHARS) for row in stack_of(last_words(path) or {}))


def _next(session: Session, host: HostView, box: str) -> Iterable[Line]:
    """Return the commands that tell more of what the job left."""
    if session.replay is not None:
        box = str(session.replay.path)
        yield [("next: ", "accent"), (f"gpuscope doctor {shlex.quote(box)}", "title")]
    elif box:
        for head, verb, does in (
            ("next: ", "doctor", "what is known of its end"),
            ("      ", "replay", "its last minutes"),
        ):
            command = f"gpuscope {verb} {shlex.quote(box)}"
            yield [(head, "accent"), (command, "title"), (f"    {does}", "muted")]
    elif session.local:
        text = f"it left no black box in {blackbox.directory()}"
        yield [
            ("next: ", "accent"),
            ("gpuscope doctor LOGFILE", "title"),
            (f"    {text}", "muted"),
        ]
    else:
        yield [
            ("next: ", "accent"),
            ("gpuscope doctor", "title"),
            (f"    on {host.name}: it names the black box and what is known of its end", "muted"),
        ]
