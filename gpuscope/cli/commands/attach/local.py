"""Attach to a trainer on this machine: ``gpuscope attach PID [--inject[=METHOD]]``.

:func:`look` describes what would be done to the trainer, so that the caller can ask the user.
:func:`attach_pid` does it and asks nobody.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .... import paths
from ....attach.attach_options import Consent, Ladder, look
from ....attach.inject import METHODS, PATIENCE_SECONDS, CannotInject, inject
from ....text.units import duration_text

__all__ = [
    "METHODS",
    "AttachOutcome",
    "Consent",
    "Ladder",
    "attach_pid",
    "audit",
    "audit_path",
    "look",
]

MAX_AUDIT_BYTES = 4 << 20


@dataclass(frozen=True)
class AttachOutcome:
    """The result of attaching to one process.

    ``ok`` means that a probe listens there. Otherwise ``code`` is one of gone, refused, disabled,
    unsupported, busy, traced and failed, and ``text`` says what happened, why, and the next
    command. ``data`` has the measured seconds.
    """

    ok: bool
    method: str
    code: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)


def attach_pid(
    pid: int,
    inject_method: str | None = None,
    start: int | None = None,
    patience: float = PATIENCE_SECONDS,
    progress: Callable[[str], None] = lambda text: None,
) -> AttachOutcome:
    """Make sure that a probe listens in process ``pid``.

    Without ``inject_method`` (auto, pep768, ptrace) the process is only examined. Before anything
    is written to it, an entry is added to this user's audit log.
    """
    ladder = look(pid, start)
    if ladder.best.name == "probe":
        return AttachOutcome(True, "probe", "", ladder.text())
    if inject_method is None or ladder.uid is None:
        return AttachOutcome(False, "outside", ladder.rungs[-1].code or "not_asked", ladder.text())
    try:
        consent = ladder.consent(inject_method)
    except CannotInject as error:
        return AttachOutcome(False, "outside", error.code, ladder.refusal(error.why, error.next))
    audit(
        f"inject {consent.method} into pid {pid} (start {consent.start}, {consent.user}): "
        f"{consent.command}"
    )
    try:
        done = inject(pid, ladder.start, consent.method, patience, progress)
    except CannotInject as error:
        audit(f"inject pid {pid}: {error.code}: {error.why}")
        return AttachOutcome(False, "outside", error.code, ladder.refusal(error.why, error.next))
    audit(f"inject pid {pid}: done, {duration_text(done.ready_seconds)}")
    stopped_text = (
        f"Its main thread paused {duration_text(done.stop_seconds)}. "
        if done.stop_seconds is not None
        else ""
    )
    text = (
        f"The probe is in pid {pid} ({done.method}). "
        f"{stopped_text}{consent.undo[0].upper()}{consent.undo[1:]}"
    )
    return AttachOutcome(True, done.method, "", text, dict(vars(done)))


def audit_path() -> Path:
    return paths.state_folder() / "attach.log"


def audit(line: str) -> None:
    """Append a line to the log of what this user's gpuscope has written to other processes.

    A log that cannot be written is no error.
    """
    path = audit_path()
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MAX_AUDIT_BYTES:
            path.replace(path.with_suffix(".log.1"))
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(
                f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} uid {os.getuid()} {text}\n"
            )
    except OSError:
        pass
