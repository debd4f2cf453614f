"""The error that says why a probe cannot be put into a process, and what to do next."""

from __future__ import annotations

from ..errors import UserError

# Codes for what an agent answers to a request to inject, and for why a way into a process is
# closed.
GONE, REFUSED, DISABLED, UNSUPPORTED, BUSY, FAILED, TRACED = (
    "gone", "refused", "disabled", "unsupported", "busy", "failed", "traced",
)  # fmt: skip


class CannotInject(UserError):
    """A process that no probe can be put into, with what would change that.

    ``code`` is one of the codes above. ``next`` is the command to run, "" if there is none.
    """

    def __init__(self, code: str, why: str, following: str = "") -> None:
        super().__init__("No probe can be put into this process.", why, following, code)


NEXT_RUN = (
    "Next run, no root:  gpuscope enable     (undo: gpuscope disable)     or     gpuscope run "
    "train.py"
)
