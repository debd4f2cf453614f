"""Keep what an entity's readings in words were over time.

Only their changes are kept, since a word stays for many samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

KEPT = 256
"""Changes kept per entity, the oldest given up first: some 60 kB at most, and a trainer has a few
an hour.
"""


class Words:
    """Changes of one entity's words.

    Times are seconds on the host's monotonic clock, and only grow.
    """

    __slots__ = ("_changes", "_last")

    def __init__(self, kept: int = KEPT) -> None:
        self._changes: deque[tuple[float, str, str | None]] = deque(maxlen=kept)
        self._last: dict[str, str | None] = {}

    def note(self, seconds: float, column: str, word: str | None) -> None:
        """``column`` says ``word`` from now on; None: it is unknown, or not said any more."""
        if self._last.get(column) != word:
            self._last[column] = word
            self._changes.append((seconds, column, word))

    def at(self, seconds: float) -> Mapping[str, str]:
        """Return the words at a moment.

        None for a column whose changes of that time are no longer kept.
        """
        then: dict[str, str | None] = {}
        for when, column, word in self._changes:
            if when > seconds:
                break
            then[column] = word
        return {column: word for column, word in then.items() if word is not None}
