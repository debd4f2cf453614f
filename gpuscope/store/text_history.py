"""Keep the values of an entity's text columns over time.

Only changes are kept, because a text stays the same for many samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

KEPT = 256
"""Limit of the changes that are kept per entity; the oldest are dropped first. They take 60 kB at
most, and a trainer has a few changes an hour.
"""


class Words:
    """The changes of one entity's text columns.

    Times are seconds on the host's monotonic clock, and only grow.
    """

    __slots__ = ("_changes", "_last")

    def __init__(self, kept: int = KEPT) -> None:
        self._changes: deque[tuple[float, str, str | None]] = deque(maxlen=kept)
        self._last: dict[str, str | None] = {}

    def note(self, seconds: float, column: str, word: str | None) -> None:
        """Note that ``column`` is ``word`` from now on; None: it is unknown or no longer sent."""
        if self._last.get(column) != word:
            self._last[column] = word
            self._changes.append((seconds, column, word))

    def at(self, seconds: float) -> Mapping[str, str]:
        """Return the texts at a moment.

        A column is None if its changes of that time are no longer kept.
        """
        then: dict[str, str | None] = {}
        for when, column, word in self._changes:
            if when > seconds:
                break
            then[column] = word
        return {column: word for column, word in then.items() if word is not None}
