"""The colours of the parts of a step, which screens and reports share.

A colour is named by its token in a theme, which is also its class in a report.
"""

from __future__ import annotations

from collections.abc import Sequence

from .step_time import SPLIT

SPLIT_TOKENS = dict(
    zip(SPLIT, ("cached", "outside", "allocated", "series3", "series6", "other"), strict=True)
)
"""The colours of the parts that the probe's marks split a step into.

Those of series 2, 4 and 1 stand under their names as layers of memory, which have patterns of
their own without colour.
"""
HUES = ("allocated", "series3", "outside", "cached", "series5", "series6")
"""Colours that rows of a time ledger may have; all others share that of ``other``."""
USUAL = {
    "forward": "allocated",
    "backward": "series3",
    "optimizer": "outside",
    "input": "cached",
    "communication": "series5",
    "read": "series6",
    "unattributed": "driver",
}
REST = "other"


def tokens_of_rows(names: Sequence[str]) -> dict[str, str]:
    """Return the colour of each of these rows of a ledger, the longest of which is first."""
    named = [name for name in names if name != "unattributed"][: len(HUES)]
    taken = {name: USUAL[name] for name in named if name in USUAL}
    free = [hue for hue in HUES if hue not in taken.values()]
    taken |= {name: free.pop(0) for name in named if name not in taken}
    return {
        name: USUAL["unattributed"] if name == "unattributed" else taken.get(name, REST)
        for name in names
    }
