"""The error that a user reads: what happened, why, and what to do next."""

from __future__ import annotations

import os

from .exit_status import ExitStatus
from .wire.clean import clean

_SUFFIXES = (".py", ".gsr", ".box", ".pickle", ".pkl", ".json", ".log", ".txt", ".gz")
"""Endings by which a word that is no path otherwise is meant as a file."""


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


class MissingFile(UserError):
    """A file that the user names is not there. Every verb says so in the same line."""

    def __init__(self, path: str) -> None:
        folder = os.path.dirname(path) or os.curdir
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder) or os.curdir
        what = f"there is no file {clean(path)}. Check the path: ls {clean(folder)}"
        super().__init__(f"{what} lists what is there.", code="missing")


class MissingScript(MissingFile):
    """The same where the file was to be started: nothing was, and the command line is wrong."""

    exit_status = ExitStatus.USAGE


def is_missing_file(word: str) -> bool:
    """Return whether a word of the command line is meant as a file, and there is none."""
    meant = os.sep in word or word.endswith(_SUFFIXES)
    return meant and "://" not in word and not os.path.lexists(word)
