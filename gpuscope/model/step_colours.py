"""The colours of the parts of a step, which screens and reports share.

A colour is named by its token in a theme, which is also its class in a report.
"""

from __future__ import annotations

from collections.abc import Iterable

from .step_time import SPLIT

REST = "other"
"""The colour of all parts that have none of their own, together."""
TOKENS = {
    "input": "cached",
    "forward": "allocated",
    "backward": "series3",
    "optimizer": "series6",
    "communication": "series5",
    "read": "outside",
    "copy": "driver",
    "collection": "series7",
    "checkpoint": "series8",
    "unattributed": "unread",
}
"""The colour of each part of a step, wherever and beside whatever it stands.

Those of series 2, 4 and 1 stand under their names as layers of memory, which have patterns of
their own without colour. What is not attributed is a texture, as memory is that was not read.
"""
LOOK_TOKENS = {
    "kernels": "allocated",
    "communication": "series5",
    "copies": "driver",
    "idle": "cached",
    "rest": REST,
}
"""The colour of each kind of row of a look at what the GPU does."""
SAME = {"h2d": "copy", "compute": "forward"}
"""What the probe's marks call parts that the ledger has under another name.

To them forward and backward are one.
"""


def token_of(part: str) -> str:
    """Return the colour of a part of a step, under either of its names."""
    return TOKENS.get(SAME.get(part, part), REST)


def tokens_of_rows(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each of these rows of a ledger."""
    return {name: token_of(name) for name in names}


SPLIT_TOKENS = tokens_of_rows(SPLIT)
"""The colours of the parts that the probe's marks split a step into."""
