"""The error that says why a probe cannot be put into a process, and what to do next."""

from __future__ import annotations

from ..errors import UserError

# Codes. What an agent answers to a request to inject, and what a rung of the ladder says.
GONE, REFUSED, DISABLED, UNSUPPORTED, BUSY, FAILED, TRACED = (
    "gone", "refused", "disabled", "unsupported", "busy", "failed", "traced",
)  # fmt: skip


class CannotInject(UserError):
    """A process that no probe can be put into, and what would unlock more.

    ``code`` is one of the above, and ``next`` is the command, "" for none.
    """

    def __init__(self, code: str, why: str, following: str = "") -> None:
        super().__init__("No probe can be put into this process.", why, following, code)


NEXT_RUN = (
    "Next run, no root:  gpuscope enable     (undo: gpuscope disable)     or     gpuscope run "
    "train.py"
)
