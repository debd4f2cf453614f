"""Say how a job ended, in the words that every screen and verb shares."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ..store.view import Gone, JobView, ProcView, TrainerView
from ..wire.frames import DETACHED, INTERRUPTED, PROBE_REMOVED, PROGRAM_ENDED, UNWATCHED
from .ranks import names_of

CAUSES = ("stopped", "failed", "killed", "left", "ended")
"""Words for an end; the first of these explains the other ends of the same job."""
NOTHING_SENT: Mapping[int, str] = MappingProxyType({})
_EXITED, _PROBE_GONE, _SEEN_GONE = "exited: ", "the probe is gone (", "exited"
_WELL = (PROGRAM_ENDED, "the program has come to its end", "finished")
_REMOVED = (PROBE_REMOVED, DETACHED, UNWATCHED, "it was taken out")
"""The words of today's probe, then those of older ones, which recordings hold."""
_FAILED = re.compile(r"exit code .+|[\w.<>]+(: .*)?", re.DOTALL)
"""The last words of a probe whose program failed: the exit code, or the exception's type."""
_SILENT = ("without cleanup", "killed (signal")
RUNS_ON = "runs on"
"""How the reason begins if a process is out of sight and has not ended."""
UNKNOWN_HOW = "how is not known"
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
    gone = [one for _, one in _ends(job)]
    last = [g for g in gone if g is not None]
    return max(last, key=lambda g: g.monotonic_seconds) if last and len(last) == len(gone) else None


def job_end(job: JobView, sent: Mapping[int, str] = NOTHING_SENT) -> End | None:
    """Say how a job ended; None while anything of it lives.

    The ranks of a job end one another, so the rank that shows the cause decides. ``sent`` holds, by
    pid, the signals that were sent from here to end a process.
    """
    if end_of(job) is None:
        return None
    ends = [
        how_it_ended(gone, sent.get(one.definition.pid, ""))
        for one, gone in _ends(job)
        if gone is not None
    ]
    return min(ends, key=lambda end: CAUSES.index(end.word))


def ending_text(trainers: Sequence[TrainerView]) -> str:
    """Return which ranks have ended already and which have not, of a job that is being ended."""
    gone = [one for one in trainers if one.gone is not None]
    rest = [one for one in trainers if one.gone is None]
    have, have_not = ("has" if len(some) == 1 else "have" for some in (gone, rest))
    return f"{names_of(gone)} {have} ended, {names_of(rest)} {have_not} not yet"


def end_text(gone: Gone) -> str:
    """Return how one process or rank ended, in a few words."""
    end = how_it_ended(gone)
    return f"{end.word}: {end.text}" if end.text else end.word


def _ends(job: JobView) -> list[tuple[TrainerView | ProcView, Gone | None]]:
    if not job.trainers:
        return [(process, process.gone) for process in job.processes]
    processes = {process.id: process for process in job.processes}
    return [
        (one, last_end(one.gone, processes.get(one.process) if one.process is not None else None))
        for one in job.trainers
    ]


def last_end(gone: Gone | None, process: ProcView | None) -> Gone | None:
    """Return how a trainer ended: if its probe was gone before its process, the process says it.

    A process may outlive its probe by seconds or by hours, so what the probe's end said of it is
    true only for as long as the process is there.
    """
    if gone is None or not is_out_of_sight(gone):
        return gone
    if process is None or process.gone is None or is_out_of_sight(process.gone):
        return gone
    why = gone.reason.removeprefix(_PROBE_GONE).partition("); the process ")[0]
    known = gone.reason.startswith(_PROBE_GONE) and _is_of_the_program(why)
    reason = f"{_EXITED}{why}" if known else UNKNOWN_HOW
    return Gone(process.gone.monotonic_seconds, process.gone.wall_seconds, reason)


def is_out_of_sight(gone: Gone) -> bool:
    """Return whether the reason of an end says that the process itself goes on."""
    return gone.reason.startswith((RUNS_ON, _PROBE_GONE))


def how_it_ended(gone: Gone, sent: str = "") -> End:
    """Judge an end by its reason.

    ``sent`` is the signal with which the user ended it from here, such as ``SIGTERM``, or "". If it
    is set, the end is no crash, whatever the reason looks like.
    """
    reason = gone.reason
    if reason.startswith(RUNS_ON):
        return End("left", "muted", reason)
    if sent:
        return End("stopped", "muted", f"by you, {sent}")
    text, goes_on = reason.removeprefix(_EXITED), reason.startswith(_PROBE_GONE)
    if goes_on:
        text = text.removeprefix(_PROBE_GONE).partition("); the process ")[0]
    if text == INTERRUPTED:
        return End("stopped", "muted", "by Ctrl-C")
    if goes_on and text in _WELL:
        return End("ended", "muted", "its process has not exited yet")
    if goes_on and text in _REMOVED:
        return End("left", "muted", "its probe was taken out, the process continues")
    if goes_on and not _is_of_the_program(text):
        return End("left", "muted", f"its probe is gone ({text}), the process continues")
    if goes_on or reason.startswith(_EXITED):
        if text in (*_WELL, *_REMOVED):
            return End("ended", "ok")
        failed = _FAILED.fullmatch(text) is not None
        return End("failed", "bad", text) if failed else End("ended", "muted", text)
    if (killed := _SIGNAL.fullmatch(reason)) is not None:
        return End("killed", "bad", _signal_text(int(killed[1])))
    unknown = reason == _SEEN_GONE or ended_silently(gone)
    return End("ended", "muted", UNKNOWN_HOW if unknown else reason)


def ended_silently(gone: Gone) -> bool:
    """Return whether nobody saw how it ended: a signal, a crash and os._exit(0) look alike."""
    return any(words in gone.reason for words in _SILENT)


def _is_of_the_program(text: str) -> bool:
    """Return whether the last words of a probe say how its program ends."""
    return text in (*_WELL, INTERRUPTED) or _FAILED.fullmatch(text) is not None


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
