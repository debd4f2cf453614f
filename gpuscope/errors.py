"""The error that a user reads: what happened, why, and what to do next."""

from __future__ import annotations

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
