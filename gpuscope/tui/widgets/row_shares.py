"""Share the rows of a column among its panels, by one rule for all screens.

A box is as high as its text. Rows that are left over go to lists that would be cut, then to charts,
which say more in more rows; a list keeps what nothing else can use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Want(NamedTuple):
    """The rows that a panel can use, with its frame.

    ``rows`` are those of its whole text. With fewer than ``least`` it says too little and is not
    shown; None is all of them. A chart grows beyond ``rows``, up to ``most``.
    """

    rows: int
    least: int | None = None
    most: int = 0


def share_rows(room: int, wants: Sequence[Want]) -> list[int]:
    """Return the rows of each panel, 0 where it is not shown. The first ones come first."""
    given = [0] * len(wants)
    for at, want in enumerate(wants):
        least = want.rows if want.least is None else min(want.least, want.rows)
        if 0 < least <= room:
            given[at] = least
            room -= least
    for whole in (True, False):
        for at, want in enumerate(wants):
            wanted = want.rows if whole else max(want.most, want.rows)
            more = min(wanted - given[at], room) if given[at] else 0
            given[at] += more
            room -= more
    return given
