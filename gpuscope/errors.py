"""The error that a user reads: what happened, why, and what to do next."""

from __future__ import annotations

from . import __version__
from .exit_status import ExitStatus


class UserError(Exception):
    """Something that gpuscope cannot do, with the reason and what the user can do next.

    Each part is a sentence without a name of ours in it; ``why`` and ``next`` may be empty.
    ``code`` is one word for JSON documents. Rooms derive their own errors from it to be caught
    apart, not to add other words. A verb that does not catch it ends with ``exit_status``, after
    the command line has printed it.
    """

    exit_status: ExitStatus = ExitStatus.UNCHECKED

    def __init__(self, what: str, why: str = "", next: str = "", code: str = "") -> None:  # noqa: A002
        super().__init__(what, why, next)
        self.what = what
        self.why = why
        self.next = next
        self.code = code

    @property
    def sentence(self) -> str:
        """The parts that there are in one line."""
        said = " ".join(filter(None, (self.what, self.why)))
        return f"{said.rstrip('.')}: {self.next}" if self.next else said

    def __str__(self) -> str:
        """Return the parts that there are, each in a line of its own."""
        lines = [self.what]
        if self.why:
            lines.append(f"Why: {self.why}")
        if self.next:
            lines.append(f"Next: {self.next}")
        return "\n".join(lines)


class UsageError(UserError):
    """Words on the command line, or settings, that mean nothing together.

    The command's help says what they may be.
    """

    exit_status = ExitStatus.USAGE


def other_format(
    name: str, found: object, known: int, by: object = "", instead: str = ""
) -> UserError:
    """Return the error of a file of the format ``found``, where ``known`` is the one we read.

    ``by`` is the version that wrote it, as the file says. ``instead`` is another way out than that
    version.
    """
    maker = f", written by gpuscope {str(by)[:40]}" if by else ""
    return UserError(
        f"{name} has format {str(found)[:40]}{maker}.",
        f"This is gpuscope {__version__}, which reads format {known}.",
        f"use the gpuscope that wrote it{f'; or {instead}' if instead else ''}",
        "other_format",
    )
