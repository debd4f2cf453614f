"""This dialog sends a signal to a process.

It says first who that is and what each signal does. Each signal has a key of its own, and no row
is chosen beforehand: Enter, which is pressed by habit, sends nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...model.ranks import name_of
from ...store.view import by_id, by_pid
from ...text import styled
from ...text.process_name import shown_command
from ...text.styled import Line
from ...text.units import ago_text, bytes_text
from ..shell.keymap import key_of
from ..shell.screen_keys import SIGNAL_KEYS
from ..widgets.text_dialog import TextDialog

if TYPE_CHECKING:
    from ...store.view import HostView, ProcView, TrainerView
    from ..shell.session import Session

log = logging.getLogger("gpuscope.tui")

ASK_SECONDS = 5.0
KEYS_OF_SIGNALS = " ".join(SIGNAL_KEYS)
ENTER, LEAVE = key_of("enter", "SignalDialog"), key_of("dismiss", "Dialog")
WHOLE = key_of("whole", "SignalDialog")
_KILL = key_of("send('KILL')", "SignalDialog")
KILL_AGAIN = f"{_KILL} again: send KILL"
ENDING = ("TERM", "INT", "HUP", "QUIT", "KILL")
"""Whoever gets one of these and ends then was stopped by the user."""
SIGNALS = {
    "TERM": "asks it to end; it may clean up and save a checkpoint first",
    "INT": "like Ctrl-C in its terminal: Python raises KeyboardInterrupt",
    "HUP": "its terminal is gone; most programs end",
    "QUIT": "ends it with a core dump, or with its stacks",
    "KILL": "ends it at once: no checkpoint, no cleanup",
    "STOP": "pauses it; it keeps its GPU memory",
    "CONT": "resumes it after STOP",
    "USR1": "up to the program; without a handler it ends the program",
    "USR2": "up to the program; without a handler it ends the program",
}
REACTS = "how it reacts is up to the program"
NO_CHOICE = {
    "KILL": "no program can refuse it",
    "STOP": "no program can refuse it; CONT resumes it",
    "CONT": "it goes on where it was paused",
}
"""What follows of the signals to which a program cannot react in its own way."""


def signal_dialog(session: Session, process: ProcView) -> SignalDialog | None:
    """Return the question; None, and a notice why, where there is none to ask."""
    reason = session.why_not("signal") or _never(process)
    if not reason and process.definition.start is None:
        reason = (
            f"the start time of pid {process.definition.pid} is unknown, so another process "
            f"might be hit"
        )
    if reason:
        session.notices.say(f"Signal: {reason}", "warn")
        return None
    return SignalDialog(session, process)


def signal_dialog_to(session: Session, pid: int | None) -> SignalDialog | None:
    """Return the dialog for a process of the host that is looked at.

    Where none is meant, the user is told what to do.
    """
    living = (
        [p for p in session.host.processes if p.gone is None] if session.host is not None else []
    )
    process = by_pid(living, pid)
    if process is not None:
        return signal_dialog(session, process)
    reason = f"put the cursor on a job with one process, or choose it with {key_of('processes')}"
    if pid is not None:
        reason = f"pid {pid} has ended, or cannot be seen from here"
    if session.host is not None and _has_ended(session.host, pid):
        reason = f"pid {pid} has ended"
    session.notices.say(f"Signal: {reason}", "warn")
    return None


def _has_ended(host: HostView, pid: int | None) -> bool:
    """Return whether a process or a trainer with this pid is known to be gone."""
    known: list[ProcView | TrainerView] = [*host.processes, *host.trainers]
    return any(one.definition.pid == pid and one.gone is not None for one in known)


def _never(process: ProcView) -> str:
    """Return why a process cannot be signalled at all, "" where it can.

    The agent refuses these, and more, by itself.
    """
    d = process.definition
    if d.pid == 1:
        return "pid 1 is the system's first process: everything there depends on it"
    if d.pid == 2 or (d.ppid == 2 and (d.command or "").startswith("[")):
        return f"pid {d.pid} is a kernel thread: it takes no signals"
    return ""


def rank_lines(host: HostView, process: ProcView) -> Iterable[Line]:
    """Return what an end or a pause of a rank means for the others of its job, if it has others."""
    trainer = by_id(host.trainers, process.trainer)
    job = host.job_of(trainer) if trainer else None
    if trainer is None or job is None:
        return
    ranks = max(trainer.definition.world_size or 1, sum(one.gone is None for one in job.trainers))
    if ranks > 1:
        others = f"the other {ranks - 1} ranks" if ranks > 2 else "the other rank"
        waits = "wait" if ranks > 2 else "waits"
        yield [("Job      ", "muted"), (f"{name_of(trainer)} of {ranks} of {job.title}", "title")]
        # which backend the job communicates with is not known, nor how long that waits
        text = (
            f"if it ends or pauses, {others} {waits} for it at the next collective: until the "
            "launcher ends the job, or the collective times out"
        )
        yield [("         ", "muted"), (text, "warn")]


class SignalDialog(TextDialog):
    """The question which signal a process is to get.

    ``state`` is asking, running or done.
    """

    def __init__(self, session: Session, process: ProcView) -> None:
        super().__init__("Send a signal")
        self.session = session
        self._process = process
        self._host = session.host
        self._source = session.hosts.source if session.hosts is not None else None
        self._hint = ""
        self._whole = False
        """Whether the command is shown in full, not in one line."""
        self._came: Line = []
        self._sending: asyncio.Task[None] | None = None
        """Not cancelled when the dialog is closed: what was sent is told and logged."""
        self.state = "asking"

    def wrapped(self) -> list[Line]:
        lines = [self._process_line(self.cells), *super().wrapped()]
        for name in SIGNALS if self.state == "asking" else ():
            lines += styled.hang_lines([self._row(name)], self.cells, 2)
        if self.state == "asking" and self._hint:
            lines += [[(self._hint, "warn")]]
        return lines

    def redraw(self) -> None:
        super().redraw()
        if not self.is_open:
            return
        if self.state == "asking" and self._hint:
            self.keep_in_sight(self.lines.rows - 1)
        self.say_keys(
            [(KEYS_OF_SIGNALS, "send one"), (LEAVE, "cancel")]
            if self.state == "asking"
            else [(LEAVE, "close")]
        )

    def _process_line(self, cells: int) -> Line:
        """Return the process in one line; where its command is longer, with the key for all."""
        d = self._process.definition
        command = shown_command(d.command) if d.command else d.name or "unknown"
        head: Line = [("Process  ", "muted"), (f"pid {d.pid}", "title"), (f", {command}", "text")]
        if self._whole or (command == (d.command or command) and styled.cells(head) <= cells):
            return head if not self._whole else styled.cut(head, cells)
        key: Line = [("  ", "text"), (WHOLE, "bold accent"), (": whole", "muted")]
        return [*styled.cut(head, cells - styled.cells(key)), *key]

    def text(self) -> Iterable[Line]:
        d, host = self._process.definition, self._host
        if self._whole and d.command:
            yield [("         ", "muted"), (d.command, "text")]
        sizes = [use.number("used_bytes") for use in self._process.uses if use.gone is None]
        facts = [d.user or "owner unknown", host.name if host is not None else ""]
        if host is not None and host.wall_seconds is not None and d.start_time is not None:
            facts.append(f"started {ago_text(host.wall_seconds - d.start_time)}")
        if sizes and None not in sizes:
            facts.append(f"{bytes_text(sum(s for s in sizes if s is not None))} of GPU memory")
        yield [
            ("         ", "muted"),
            (" · ".join(fact for fact in facts if fact), "text" if d.mine else "warn"),
        ]
        if not d.mine:
            yield [("         ", "muted"), ("not yours: only root may signal it", "warn")]
        if self.state == "asking" and host is not None:
            yield from rank_lines(host, self._process)
        yield [("", "text")]
        if self.state != "asking":
            yield self._came

    def _row(self, name: str) -> Line:
        """Return the key of a signal, its name, and what it does."""
        return [
            (f" {key_of(f'send({name!r})', 'SignalDialog')}  ", "bold accent"),
            (f"{name:6}", "title"),
            (SIGNALS[name], "text"),
        ]

    def action_send(self, name: str) -> None:
        """Send this signal; KILL only when its key is pressed twice."""
        if self.state == "asking" and name == "KILL" and self._hint != KILL_AGAIN:
            self._hint = KILL_AGAIN
            self.redraw()
        elif self.state == "asking":
            self.state, self._came = "running", [("waiting for the answer", "muted")]
            self._sending = asyncio.get_running_loop().create_task(self._send(name))
            self.redraw()

    def action_enter(self) -> None:
        """Close at the end; before that, say that Enter sends nothing."""
        if self.state == "done":
            self.dismiss()
        elif self.state == "asking":
            self._hint = f"{ENTER} sends nothing: choose a signal by its letter"
            self.redraw()

    def action_whole(self) -> None:
        """Show the whole command, or only its first line again."""
        self._whole = not self._whole
        self.redraw()

    async def _send(self, name: str) -> None:
        from ...cli.commands.attach.local import audit
        from ...store.pending_requests import SourceError

        d = self._process.definition
        where = self._host.name if self._host is not None else "?"
        who = (
            f"signal {name} to pid {d.pid} (start {d.start}, {d.user or '?'}) on {where}: "
            f"{d.command or d.name or '?'}"
        )
        audit(f"{who}: asked for")
        try:
            if self._source is None:
                raise SourceError("gone", "not connected")
            await self._source.request(
                "signal", {"pid": d.pid, "start": d.start, "signal": name}, ASK_SECONDS
            )
        except SourceError as error:
            outcome = f"not sent: {error.what}"
            self._came = [("Not sent: ", "warn"), (error.what, "text")]
            self.session.notices.say(f"{name} to pid {d.pid}: {outcome}", "warn")
        else:
            outcome = "sent"
            self._came = [
                ("Sent. ", "ok"),
                (f"{name} to pid {d.pid}; {NO_CHOICE.get(name, REACTS)}", "text"),
            ]
            if name in ENDING:
                self.session.happened.stopped[d.pid] = f"SIG{name}"
            self.session.notices.say(f"{name} sent to pid {d.pid} on {where}", kind="signal")
        audit(f"{who}: {outcome}")
        log.info("%s: %s", who, outcome)
        self.state = "done"
        self.redraw()
