"""Say how a job ended, in the words that every screen and verb shares."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from ..store.view import Gone, HostView, JobView, ProcView, TrainerView
from ..text.units import age_text
from ..wire.frames import (
    AFTER_OUT_OF_MEMORY,
    DETACHED,
    EXITED,
    INTERRUPTED,
    NO_LAST_WORDS,
    PROBE_REMOVED,
    PROGRAM_ENDED,
    UNWATCHED,
)
from .ranks import names_of

Word = Literal["ended", "stopped", "failed", "out of memory", "killed", "left"]
Kind = Literal["ok", "muted", "warn", "bad"]
CAUSES: tuple[Word, ...] = ("stopped", "out of memory", "failed", "killed", "left", "ended")
"""Words for an end; the first of these explains the other ends of the same job."""
NOTHING_SENT: Mapping[int, str] = MappingProxyType({})
_PROBE_GONE, _SEEN_GONE = "the probe is gone (", "exited"
_REMOVED = (PROBE_REMOVED, DETACHED, UNWATCHED)
_FAILED = re.compile(r"exit code .+|[\w.<>]+(: .*| \(at .*\))?", re.DOTALL)
"""The last words of a probe whose program failed: the exit code, or the exception's type."""
_OUT_OF_MEMORY = re.compile(
    r"([\w.<>]*\.)?(OutOfMemoryError|MemoryError)\b"
    r"|[\w.<>]+: .*(CUDA|HIP|XPU) out of memory|.*DefaultCPUAllocator: can't allocate memory"
)
_STOPPED = re.compile(r"([\w.<>]*\.)?(SignalException|SIGTERMException)\b")
"""Exceptions by which torch's launcher and Lightning end after a signal from their user."""
RUNS_ON = "runs on"
"""How the reason begins if a process is out of sight and has not ended."""
UNKNOWN_HOW = "how is not known"
WITHOUT_MESSAGE = "without an error message"
"""How a trainer ended whose probe was there to the end and had no last words to send."""
NOBODY_SAW = "a signal, a crash or os._exit"
"""What an end without an error message may have been: nobody saw which of them it was."""
_UNASKED = re.compile(
    r"ipykernel|colab_kernel|papermill|jupyter"
    r"|\bgpuscope[./]lab[./](worker|rank)\b|^gpuscope lab$"
)
_SIGNAL = re.compile(r"killed by signal (\d+)")
_ASKS_TO_END = (signal.SIGTERM, signal.SIGHUP)
"""What kill, a launcher or Slurm sends to end a process, and a terminal that is closed."""
GRAVITY: tuple[Kind, ...] = ("bad", "warn", "muted", "ok")


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended.

    ``kind`` says how grave that is, ``how`` completes the word ("by SIGKILL"), and ``text`` says
    what is known besides; "" stands for nothing.
    """

    word: Word
    kind: Kind
    text: str = ""
    how: str = ""

    @property
    def phrase(self) -> str:
        """The word with what completes it, such as ``killed by SIGKILL``."""
        return f"{self.word} {self.how}" if self.how else self.word

    @property
    def sentence(self) -> str:
        """All that is known, such as ``failed: ValueError: no labels``."""
        return f"{self.phrase}: {self.text}" if self.text else self.phrase


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
    ends = [end for _, end in _judged(job, sent)]
    return min(ends, key=_as_cause)


def first_to_fail(
    job: JobView, sent: Mapping[int, str] = NOTHING_SENT
) -> TrainerView | ProcView | None:
    """Return the rank whose end explains that of its job; None while anything of it lives."""
    if end_of(job) is None:
        return None
    return min(_judged(job, sent), key=lambda one: _as_cause(one[1]))[0]


def _judged(job: JobView, sent: Mapping[int, str]) -> list[tuple[TrainerView | ProcView, End]]:
    return [
        (one, how_it_ended(gone, sent.get(one.definition.pid, "")))
        for one, gone in _ends(job)
        if gone is not None
    ]


def _as_cause(end: End) -> tuple[int, int, bool]:
    return CAUSES.index(end.word), GRAVITY.index(end.kind), not end.how


def ending_text(trainers: Sequence[TrainerView]) -> str:
    """Return which ranks have ended already and which have not, of a job that is being ended."""
    gone = [one for one in trainers if one.gone is not None]
    rest = [one for one in trainers if one.gone is None]
    have, have_not = ("has" if len(some) == 1 else "have" for some in (gone, rest))
    return f"{names_of(gone)} {have} ended, {names_of(rest)} {have_not} not yet"


def end_text(gone: Gone) -> str:
    """Return how one process or rank ended, in a few words."""
    return how_it_ended(gone).sentence


def has_ended(gone: Gone) -> str:
    """Return the same after a name: ``has ended: killed by SIGKILL``."""
    end = how_it_ended(gone)
    return f"has {end.sentence}" if end.word == "ended" else f"has ended: {end.sentence}"


def end_of_box(last_words: Mapping[str, Any] | None) -> End:
    """Say how the trainer of a black box ended, by what it wrote down of that itself.

    ``last_words`` is None for a trainer that is gone and wrote nothing.
    """
    from ..store.blackbox import end_reason  # only those who read boxes load it

    return how_it_ended(Gone(0.0, None, end_reason(last_words)))


def may_end_silently(script: str | None) -> bool:
    """Return whether a script ends without an error message though nothing is wrong.

    Restarting a notebook's kernel or stopping a run of the Lab is no failure, and the Lab itself
    says how a run failed.
    """
    return _UNASKED.search(script or "") is not None


def counts_text(ends: Sequence[End], brief: bool = False) -> str:
    """Return how many jobs ended in which way, the gravest first: ``1 killed by SIGKILL, 2 …``.

    With ``brief`` it is not said by which signal.
    """
    ranked = sorted(ends, key=lambda end: (GRAVITY.index(end.kind), CAUSES.index(end.word)))
    names = Counter(_counted(end, brief) for end in ranked)
    return ", ".join(f"{count} {name}" for name, count in names.items())


def _counted(end: End, brief: bool) -> str:
    """Return the name under which an end is counted, after a number."""
    if end.word == "ended":
        how = end.how or ("without an error" if end.kind == "ok" else "in an unknown way")
        return f"{end.word} {how}"
    return end.word if brief else end.phrase


def gravest_of(ends: Sequence[End]) -> Kind:
    """Return how grave the worst of some ends is."""
    return min((end.kind for end in ends), key=GRAVITY.index, default="ok")


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
    why = _told_of_probe(gone.reason)
    told = process.gone.reason.startswith(EXITED) or _SIGNAL.fullmatch(process.gone.reason)
    if told and (why == PROGRAM_ENDED or not _is_of_the_program(why)):
        return process.gone  # the kernel said how: its exit code, or which signal it was
    known = gone.reason.startswith(_PROBE_GONE) and _is_of_the_program(why)
    reason = f"{EXITED}{why}" if known else UNKNOWN_HOW
    return Gone(process.gone.monotonic_seconds, process.gone.wall_seconds, reason)


def _told_of_probe(reason: str) -> str:
    """Return why a probe is gone, of a reason that also says that its process goes on."""
    return reason.removeprefix(_PROBE_GONE).partition("); the process ")[0]


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
        return End("stopped", "muted", how=f"by you, {sent}")
    text, goes_on = reason.removeprefix(EXITED), reason.startswith(_PROBE_GONE)
    if goes_on:
        text = _told_of_probe(text)
    if text == INTERRUPTED:
        return End("stopped", "muted", how="by Ctrl-C")
    if goes_on and text == PROGRAM_ENDED:
        return End("ended", "muted", "its process has not exited yet")
    if goes_on and text in _REMOVED:
        return End("left", "muted", "its probe was taken out, the process continues")
    if goes_on and not _is_of_the_program(text):
        return End("left", "muted", f"its probe is gone ({text}), the process continues")
    if goes_on or reason.startswith(EXITED):
        return _by_last_words(text)
    if (killed := _SIGNAL.fullmatch(reason)) is not None:
        return killed_by(int(killed[1]))
    if ended_silently(gone):
        return End("ended", "warn", NOBODY_SAW, WITHOUT_MESSAGE)
    return End("ended", "muted", UNKNOWN_HOW if reason == _SEEN_GONE else reason)


def _by_last_words(text: str) -> End:
    """Judge an end by what the program said last."""
    if text in (PROGRAM_ENDED, *_REMOVED):
        return End("ended", "ok")
    if text == AFTER_OUT_OF_MEMORY or _OUT_OF_MEMORY.match(text):
        return End("out of memory", "bad", text)
    if _STOPPED.match(text):
        return End("stopped", "muted", text, "by a signal")
    failed = _FAILED.fullmatch(text) is not None
    return End("failed", "bad", text) if failed else End("ended", "muted", text)


def ended_silently(gone: Gone) -> bool:
    """Return whether nobody saw how it ended: a signal, a crash and os._exit look alike."""
    return gone.reason == NO_LAST_WORDS


def may_be_out_of_memory(gone: Gone) -> bool:
    """Return whether the kernel's OOM killer may have ended it: it sends SIGKILL."""
    return ended_silently(gone) or how_it_ended(gone) == killed_by(signal.SIGKILL)


def _is_of_the_program(text: str) -> bool:
    """Return whether the last words of a probe say how its program ends."""
    return text in (PROGRAM_ENDED, INTERRUPTED) or _FAILED.fullmatch(text) is not None


def killed_by(number: int) -> End:
    """Say that a signal ended a process, and name the signal.

    Whoever sends SIGTERM or SIGHUP asks a process to end: that is no failure of it.
    """
    if number == signal.SIGINT:
        return End("stopped", "muted", how="by SIGINT, as Ctrl-C sends it")
    text = "often the kernel's OOM killer" if number == signal.SIGKILL else ""
    kind: Kind = "muted" if number in _ASKS_TO_END else "bad"
    try:
        return End("killed", kind, text, f"by {signal.Signals(number).name}")
    except ValueError:
        return End("killed", kind, text, f"by signal {number}")


def last_state(job: JobView) -> list[str]:
    """Return the last step and the last loss of a job, or else those that its log has."""
    steps = [n for t in job.trainers if (n := t.number("step")) is not None]
    steps = steps or [n for p in job.processes if (n := p.number("log_step")) is not None]
    losses = [n for t in job.trainers if (n := t.number("loss")) is not None]
    losses = losses or [n for p in job.processes if (n := p.number("log_loss")) is not None]
    return [
        *([f"step {min(steps):,.0f}"] if steps else []),
        *([f"loss {losses[0]:.4g}"] if losses else []),
    ]


def start_of(host: HostView, job: JobView) -> float | None:
    """Return when the first process of a job was started, on the wall clock."""
    wanted: Collection[int | None] = {t.process for t in job.trainers} | {
        p.id for p in job.processes
    }
    starts = [
        p.definition.start_time
        for p in host.processes
        if p.id in wanted and p.definition.start_time is not None
    ]
    return min(starts, default=None)


def lived_text(host: HostView, job: JobView) -> str:
    """Return for how long a job ran that has ended, such as ``after 3h 20m``; "" if not known."""
    over, started = end_of(job), start_of(host, job)
    if over is None or over.wall_seconds is None or started is None:
        return ""
    return f"after {age_text(over.wall_seconds - started)}"
