"""Why a probe cannot be put into a running process, in words for people: what happened, why, and the next command."""

from __future__ import annotations

# Codes. What an agent answers to a request to inject, and what a rung of the ladder says.
GONE, REFUSED, DISABLED, UNSUPPORTED, BUSY, FAILED, TRACED = (
    "gone", "refused", "disabled", "unsupported", "busy", "failed", "traced",
)  # fmt: skip


class CannotInject(Exception):
    """``code`` is one of the above, ``why`` a sentence, ``next`` the command that would unlock more, "" for
    none."""

    def __init__(self, code: str, why: str, following: str = "") -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.next = following


NEXT_RUN = "Next run, no root:  gpuscope enable     (undo: gpuscope disable)     or     gpuscope run python train.py"
