"""The ways into a running process: which are open, which are not and why, and what would open them.

From best to worst they are: a probe that is already there, Python's own debugger interface (PEP
768), a call placed by ptrace, and observation from outside. Finding them out changes nothing. This
module also says what the user must know before a confirmation: which process, whose, by which
method, and at what cost.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Dict, List, Optional

from ..process.procfs import words_of
from . import inject_pep768, inject_place
from .inject import AUTO, PEP768, PTRACE
from .inject_payload import IDLE_SECONDS
from .inject_refusal import GONE, NEXT_RUN, REFUSED, UNSUPPORTED, CannotInject
from .inject_target import (
    Process,
    Python,
    check_ptrace,
    check_untraced,
    permission,
    process,
    python,
)

PROBE, OUTSIDE = "probe", "outside"
MAX_COMMAND_CHARS = 300

_LOADING = (
    "Loading the probe then takes about 0.3 s of one core; one load in 30 brings the trainer's "
    "next full garbage collection forward (0.2 s in a large process)."
)
_PRICE = {
    PEP768: "nothing is stopped; the main thread spends well under 1 ms, once. " + _LOADING,
    PTRACE: "the main thread pauses for about 0.5 ms, once (longer on a busy machine). " + _LOADING,
}
_EFFECT = {
    PEP768: "writes the path of a script into its memory, through Python's debugger interface "
    "(PEP 768); Python runs the script at its next safe point.",
    PTRACE: "stops its main thread, adds a call to Python's list of pending calls and restores all "
    "registers; Python makes the call at its next safe point.",
}


@dataclass(frozen=True)
class Rung:
    """One way into a process, and whether it is open.

    ``name`` is probe, pep768, ptrace or outside. For a closed way, ``code`` and ``why`` give the
    reason, and ``next`` is the command that would open it, "" if there is none.
    """

    name: str
    open: bool
    code: str = ""
    why: str = ""
    next: str = ""


@dataclass(frozen=True)
class Consent:
    """The facts that a confirmation must name before anything is written to a trainer."""

    pid: int
    start: int
    command: str
    user: str
    method: str
    effect: str
    price: str
    undo: str

    def text(self) -> str:
        return (
            f"Attach gpuscope's probe to pid {self.pid} ({self.command}, {self.user})?\n"
            f"Method: {self.method}. It {self.effect}\n"
            f"Overhead: {self.price}\n"
            f"Undo: {self.undo}"
        )


@dataclass(frozen=True)
class Ladder:
    """The ways into one process, best first. ``uid`` is None if there is no such process."""

    pid: int
    start: int
    uid: Optional[int]
    user: str
    command: str
    rungs: List[Rung] = field(default_factory=list)

    @property
    def best(self) -> Rung:
        """Return the first open way. Observation from outside is open while the process lives."""
        return next(rung for rung in self.rungs if rung.open or rung.name == OUTSIDE)

    def rung(self, name: str) -> Rung:
        return next(rung for rung in self.rungs if rung.name == name)

    def consent(self, method: str = AUTO) -> Consent:
        """Return what the user has to agree to. Raises :class:`CannotInject` for a closed way.

        ``method`` may be "auto", which means the method that would be chosen.
        """
        rung = (
            self.best
            if method == AUTO
            else next((one for one in self.rungs if one.name == method), None)
        )
        if rung is None or rung.name not in (PEP768, PTRACE) or not rung.open:
            closed = (
                self._closed_way() if rung is None or rung.name not in (PEP768, PTRACE) else rung
            )
            raise CannotInject(
                closed.code or UNSUPPORTED,
                closed.why or "it already has a listening probe.",
                closed.next,
            )
        return Consent(
            self.pid,
            self.start,
            self.command,
            self.user,
            rung.name,
            _EFFECT[rung.name],
            _PRICE[rung.name],
            f"key a, then d (or --detach for --inject), or by itself {IDLE_SECONDS:.0f} s after "
            "the last viewer has left (not that of gpuscope run or enable). Nothing stays but its "
            "compiled code, unused.",
        )

    @property
    def _who(self) -> str:
        return f"pid {self.pid} ({self.command}, {self.user})"

    def text(self) -> str:
        """Return the text for people: what can be seen, why not more, and the next command."""
        best = self.best
        if self.uid is None:
            return (
                f"Cannot look inside pid {self.pid}.\nWhy: {self.rungs[-1].why}\n"
                f"Next:  {self.rungs[-1].next}"
            )
        if best.name == PROBE:
            return f"{self._who} has a probe.\nNext:  gpuscope"
        if best.name in (PEP768, PTRACE):
            return (
                f"{self._who} has no probe; one can be attached while it runs ({best.name}).\n"
                f"Now:  gpuscope attach {self.pid} --inject={best.name}     (asks first, and names "
                "the overhead)\n"
                f"{NEXT_RUN}"
            )
        closed = self._closed_way()
        return self.refusal(closed.why, closed.next or NEXT_RUN)

    def refusal(self, why: str, following: str) -> str:
        """Say that nobody can look inside, what is shown all the same, and what to do next."""
        if following and not following.startswith("Next"):
            following = f"Next:  {following}"
        return (
            f"Cannot look inside {self._who}. Training not touched.\n"
            f"Why: {why}\n"
            "Still shown: GPU memory and load, step and loss from its log if that is readable.  "
            f"Unknown: allocated, cached, cause of growth.\n{following}"
        ).rstrip()

    def _consent(self) -> Optional[Dict[str, object]]:
        try:
            return dict(vars(self.consent()))
        except CannotInject:
            return None

    def _closed_way(self) -> Rung:
        """Return the closed way whose reason matters: the one that fits this Python."""
        inner = [rung for rung in self.rungs if rung.name in (PEP768, PTRACE) and rung.why]
        return next(
            (rung for rung in inner if rung.code != UNSUPPORTED),
            inner[-1] if inner else self.rungs[-1],
        )

    def data(self) -> Dict[str, object]:
        """Return the data for the wire (whose texts have no line ends) and for ``--json``."""
        rungs = [
            {**vars(rung), "next": rung.next.replace("\n", "    or    ")} for rung in self.rungs
        ]
        return {
            "pid": self.pid,
            "start": self.start,
            "user": self.user,
            "command": self.command,
            "best": self.best.name,
            "text": self.text(),
            "lines": self.text().splitlines(),
            "rungs": rungs,
            "consent": self._consent(),
        }


def look(pid: int, start: Optional[int] = None) -> Ladder:
    """Return the ways into process ``pid``, and change nothing.

    ``start`` is its start time in clock ticks since boot, if that is known.
    """
    try:
        found = process(pid, start)
    except CannotInject as error:
        return Ladder(
            pid, start or 0, None, "", "", [Rung(OUTSIDE, False, error.code, error.why, error.next)]
        )
    rungs = [_probe(found)]
    try:
        known: Optional[Python] = python(found)
        rungs += [_pep768(found, known), _ptrace(found, known)] if known else []
    except CannotInject as error:
        rungs += [Rung(name, False, error.code, error.why, error.next) for name in (PEP768, PTRACE)]
    rungs.append(Rung(OUTSIDE, True))
    return Ladder(pid, found.start, found.uid, _user(found.uid), _command(pid), rungs)


def _probe(found: Process) -> Rung:
    place = f"/proc/{found.pid}/root/tmp/gpuscope-{inject_place.inner_uid(found)}"
    name = f"{found.inner_pid}-{found.start}.sock"
    if os.path.lexists(os.path.join(place, name)):
        return Rung(PROBE, True)
    return Rung(
        PROBE,
        False,
        "none",
        "it has no probe: it was started without one, or the probe was removed.",
        NEXT_RUN,
    )


def _pep768(found: Process, known: Python) -> Rung:
    try:
        inject_pep768.check(known)
        _may_write(found)
        with inject_pep768.Sender(found, known):
            return Rung(PEP768, True)
    except CannotInject as error:
        return Rung(PEP768, False, error.code, error.why, error.next)


def _ptrace(found: Process, known: Python) -> Rung:
    try:
        check_ptrace(known)
        check_untraced(found)
        _may_write(found)
        return Rung(PTRACE, True)
    except CannotInject as error:
        return Rung(PTRACE, False, error.code, error.why, error.next)


def _may_write(found: Process) -> None:
    """Check that the kernel allows us to write to a process. Raises :class:`CannotInject`.

    Yama's answer is known only by asking. Opening /proc/PID/mem for writing needs the same right,
    and by itself writes nothing.
    """
    try:
        os.close(os.open(f"/proc/{found.pid}/mem", os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        raise CannotInject(REFUSED, *permission(found)) from None
    except OSError as error:
        raise CannotInject(
            GONE, f"process {found.pid} ended meanwhile ({error.strerror}).", "gpuscope ps"
        ) from None


def _user(uid: int) -> str:
    if uid == os.geteuid():
        return "yours"
    try:
        import pwd

        return f"of {pwd.getpwuid(uid).pw_name}"
    except (ImportError, KeyError):
        return f"of uid {uid}"


def _name(pid: int) -> str:
    """Return the kernel's name for a process.

    A kernel thread, or a process that has overwritten its arguments, has no other name.
    """
    try:
        with open(f"/proc/{pid}/comm", "rb") as stream:
            return stream.read(64).decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return "?"


def _command(pid: int) -> str:
    """Return the arguments as text, shortened, with control characters made visible."""
    try:
        text = " ".join(words_of(pid, limit=8192)).strip() or f"[{_name(pid)}]"
    except OSError:
        return "?"
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if len(text) <= MAX_COMMAND_CHARS else text[: MAX_COMMAND_CHARS - 1] + "…"
