"""Store each stack once, and choose the frame that represents it.

Torch's pickles have one dictionary for each distinct frame, and a list of them for each allocation.
Reading every frame of every list would take longer than all the rest. Because a training repeats
itself, a stack is mostly followed by the same one as before; this guess costs one comparison of two
lists that share their frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..wire.clean import clean
from ..wire.code_owner import OWN, PACKAGE, owner
from .model import MAX_FRAMES, Frame, StackRow, Stacks

Place = tuple[str, int, str]
"""File, line, function."""
NO_STACK = -1
MAX_TEXT = 300


class StackTable:
    """Assign numbers to stacks.

    It compares identities, so a frame's dictionary must live as long as the table or never occur
    again.
    """

    def __init__(self) -> None:
        self.places: list[tuple[Place, ...]] = []
        self.malformed = 0
        # By stack: a list that may be compared with any other, or None.
        self._examples: list[object] = []
        self._follows: dict[int, tuple[int, object]] = {}
        self._last = NO_STACK
        self._of_identities: dict[tuple[int, ...], int] = {}
        self._of_places: dict[tuple[Place, ...], int] = {}
        self._place: dict[int, Place] = {}

    def next(self, frames: object) -> int:
        """Return what :meth:`index` does, for the stacks of a trace in their order."""
        guess = self._follows.get(self._last)
        if guess is not None and guess[1] == frames:
            self._last = guess[0]
            return guess[0]
        stack = self.index(frames)
        if stack >= 0 and self._examples[stack] is not None:
            self._follows[self._last] = (stack, self._examples[stack])
        self._last = stack
        return stack

    def index(self, frames: object) -> int:
        """Return the number of the stack ``frames``, or ``NO_STACK``.

        ``frames`` is a list of frame dictionaries, innermost first.
        """
        if not isinstance(frames, (list, tuple)):
            self.malformed += frames is not None
            return NO_STACK
        if not frames:
            return NO_STACK
        identities = tuple(map(id, frames))
        found = self._of_identities.get(identities)
        if found is None:
            places = tuple(map(self._read, frames))
            found = self._of_places.setdefault(places, len(self.places))
            if found == len(self.places):
                self.places.append(places)
                self._examples.append(frames if _is_plain(frames) else None)
            self._of_identities[identities] = found
        return found

    def _read(self, frame: Any) -> Place:
        place = self._place.get(id(frame))
        if place is None:
            one = frame if isinstance(frame, dict) else {}
            file, line, function = one.get("filename"), one.get("line"), one.get("name")
            place = (
                file[:MAX_TEXT] if isinstance(file, str) else "",
                line if isinstance(line, int) and -(1 << 31) < line < 1 << 31 else 0,
                function[:MAX_TEXT] if isinstance(function, str) else "",
            )
            self._place[id(frame)] = place
        return place

    def row(self, stack: int, size: int, count: int) -> StackRow:
        """Return a stack for an answer, with clean strings and at most ``MAX_FRAMES`` frames."""
        places = self.places[stack] if stack >= 0 else ()
        return StackRow(
            size,
            count,
            frames_of(places),
            headline(places[:MAX_FRAMES]),
            max(0, len(places) - MAX_FRAMES),
            stack,
        )

    def top(self, sums: Mapping[int, Iterable[int]], count: int) -> Stacks:
        """Return the ``count`` largest ``sums`` (stack → bytes, blocks) as rows, and the rest."""
        rows = sorted(
            ((size, number, stack) for stack, (size, number) in sums.items()),
            key=lambda row: (-row[0], row[2]),
        )
        known = [row for row in rows if row[2] >= 0]
        unknown = [row for row in rows if row[2] < 0]
        rest = known[count:]
        return Stacks(
            rows=[self.row(stack, size, number) for size, number, stack in known[:count]],
            other_bytes=sum(row[0] for row in rest),
            other_count=sum(row[1] for row in rest),
            other_stacks=len(rest),
            unknown_bytes=sum(row[0] for row in unknown),
            unknown_count=sum(row[1] for row in unknown),
        )


def _is_plain(frames: Iterable[Any]) -> bool:
    """Say whether comparing this object takes constant time.

    Nested containers that each contain the next one twice would take exponential time.
    """
    plain = (str, int)
    return isinstance(frames, list) and all(
        isinstance(frame, dict) and all(isinstance(value, plain) for value in frame.values())
        for frame in frames
    )


def frames_of(places: tuple[Place, ...]) -> list[Frame]:
    return [
        Frame(clean(file, MAX_TEXT), line, clean(function, MAX_TEXT))
        for file, line, function in places[:MAX_FRAMES]
    ]


def headline(places: tuple[Place, ...]) -> int:
    """Return the index of the innermost frame in the user's own code.

    This is the first frame outside torch, the interpreter and other installed packages; failing
    that the first outside torch and the interpreter; failing that 0.
    """
    owners = [owner(file) for file, _, _ in places]
    return next((owners.index(one) for one in (OWN, PACKAGE) if one in owners), 0)
