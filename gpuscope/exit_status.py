"""The exit codes of every verb.

Scripts rely on these numbers, so none is ever given another meaning.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Iterable, Literal, Tuple

FailOn = Literal["warning", "problem", "never"]
FAIL_ON: Tuple[FailOn, ...] = ("warning", "problem", "never")
"""The lowest severity that makes the exit code other than 0, as ``--fail-on`` takes it."""


class ExitStatus(IntEnum):
    """What a verb's exit code says.

    ``gpuscope run`` is the exception: it ends as its child does.
    """

    OK = 0
    """All is well; for predict: it fits."""
    WARNINGS = 1
    """There are warnings; for predict: it is too close."""
    PROBLEMS = 2
    """There are problems; for predict: it does not fit."""
    UNCHECKED = 3
    """What was asked for could not be checked."""
    STALLED = 10
    """For wait: the training no longer makes steps."""
    NOT_FINITE = 11
    """For wait: the training's loss is not a number, or infinite."""
    SLOWER = 12
    """For wait --slower: the training's steps take longer than before."""
    USAGE = 64
    """The command line is not valid (EX_USAGE in sysexits.h)."""
    CRASHED = 70
    """gpuscope itself failed (EX_SOFTWARE in sysexits.h)."""
    TIMED_OUT = 124
    """For wait: the time limit was reached; coreutils' timeout returns the same."""
    INTERRUPTED = 130
    """Interrupted by Ctrl-C; shells return the same."""
    NO_READER = 141
    """The reader of the output went away, as head does; shells return the same."""

    def __str__(self) -> str:
        """Return the number as text.

        Versions of Python differ in what a member of an enumeration prints.
        """
        return str(self.value)

    def __format__(self, form: str) -> str:
        """Return the number in the form that was asked for."""
        return format(self.value, form)


def of_severities(severities: Iterable[str], fail_on: FailOn = "warning") -> ExitStatus:
    """Return the exit code for everything that was found.

    A problem outweighs what could not be checked ("unchecked"), and that outweighs a warning.
    """
    found = set(severities)
    if "problem" in found and fail_on != "never":
        return ExitStatus.PROBLEMS
    if "unchecked" in found:
        return ExitStatus.UNCHECKED
    return ExitStatus.WARNINGS if "warning" in found and fail_on == "warning" else ExitStatus.OK
