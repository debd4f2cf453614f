"""Say how a job ended, in the words that every screen and verb shares."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ..store.view import Entity, Gone, JobView, ProcView, TrainerView

INTERRUPTED = "interrupted with Ctrl-C"
"""How the end reason of a probe begins if KeyboardInterrupt ended the program."""
CAUSES = ("stopped", "failed", "killed", "left", "ended")
"""Words for an end; the first of these explains the other ends of the same job."""
NOTHING_SENT: Mapping[int, str] = MappingProxyType({})
_EXITED, _PROBE_GONE = "exited: ", "the probe is gone ("
_WELL = ("the program has ended", "the program has come to its end", "finished")
_REMOVED = ("it was removed", "it was taken out")
"""The words of today's probe, then those of older ones, which recordings hold."""
_SILENT = ("without cleanup", "killed (signal")
_SIGNAL = re.compile(r"killed by signal (\d+)")


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended.

    ``word`` is one of ended, stopped, failed, killed and left; ``kind`` says how grave that is,
    ``text`` what is known besides, "" for nothing.
    """

    word: str
    kind: Literal["ok", "muted", "warn", "bad"]
    text: str = ""


def end_of(job: JobView) -> Gone | None:
    """Return when and why a job is over; None while anything of it lives."""
    members: list[Entity] = list(job.trainers) or list(job.processes)
    gone = [entity.gone for entity in members]
    last = [g for g in gone if g is not None]
    return max(last, key=lambda g: g.monotonic_seconds) if last and len(last) == len(gone) else None


def job_end(job: JobView, sent: Mapping[int, str] = NOTHING_SENT) -> End | None:
    """Say how a job ended; None while anything of it lives.

    The ranks of a job end one another, so the rank that shows the cause decides. ``sent`` holds, by
    pid, the signals that were sent from here to end a process.
    """
    if end_of(job) is None:
        return None
    members: Sequence[TrainerView | ProcView] = job.trainers or job.processes
    ends = [
        how_it_ended(one.gone, sent.get(one.definition.pid, ""))
        for one in members
        if one.gone is not None
    ]
    return min(ends, key=lambda end: CAUSES.index(end.word))


def how_it_ended(gone: Gone, sent: str = "") -> End:
    """Judge an end by its reason.

    ``sent`` is the signal with which the user ended it from here, such as ``SIGTERM``, or "". If it
    is set, the end is no crash, whatever the reason looks like.
    """
    reason = gone.reason
    if reason.startswith("runs on"):
        return End("left", "muted", reason)
    if sent:
        return End("stopped", "muted", f"by you, {sent}")
    text, goes_on = reason.removeprefix(_EXITED), reason.startswith(_PROBE_GONE)
    if goes_on:
        text = text.removeprefix(_PROBE_GONE).partition("); the process ")[0]
    if text.startswith(INTERRUPTED):
        return End("stopped", "muted", "by Ctrl-C")
    if goes_on and text in (*_WELL, *_REMOVED):
        return End("left", "muted", "its probe is gone, the process continues")
    if goes_on or reason.startswith(_EXITED):
        return End("ended", "ok") if text in (*_WELL, *_REMOVED) else End("failed", "bad", text)
    if (killed := _SIGNAL.fullmatch(reason)) is not None:
        return End("killed", "bad", _signal_text(int(killed[1])))
    if any(words in reason for words in _SILENT):
        return End("killed", "bad", reason)
    return End("ended", "muted", reason)


def _signal_text(number: int) -> str:
    """Name a signal that ended a process."""
    if number == signal.SIGKILL:
        return "SIGKILL; often the kernel's OOM killer"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_state(job: JobView) -> list[str]:
    """Return the last step and the last loss of a job."""
    steps = [n for t in job.trainers if (n := t.number("step")) is not None]
    losses = [n for t in job.trainers if (n := t.number("loss")) is not None]
    return [
        *([f"step {min(steps):,.0f}"] if steps else []),
        *([f"loss {losses[0]:.4g}"] if losses else []),
    ]
