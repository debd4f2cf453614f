"""How the lab's panels share the rows of the terminal: comparison, loss, runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

VIEWS = ("ab", "loss", "runs")
"""The panels at the right: A against B, the loss, the table of runs. In the order in which they get
rows.
"""
LEAST = {"ab": 11, "loss": 7, "runs": 5}
"""Rows without which a panel says too little to stand there."""
COMFORT = {"ab": 11, "loss": 10, "runs": 8}
"""The same in a high terminal."""
HIGH = 30
SENTENCE = 4
"""Rows for what a comparison lacks, where there are no two runs to compare."""
MOST_LOSS, LEAST_PACE = 22, 9
"""A chart of losses of more rows leaves the others to the pace of the run in progress."""


def least(room: int) -> dict[str, int]:
    """Return the rows each panel gets at least where there are ``room``."""
    return COMFORT if room >= HIGH else LEAST


def panels_that_fit(
    room: int, first: str, wanted: Mapping[str, bool], pair: bool = True
) -> list[str]:
    """Return the panels there is room for.

    ``first`` is among them in any case, then come those that have anything to show. Without a
    ``pair`` of runs the comparison is a sentence.
    """
    rows = LEAST if pair else {**LEAST, "ab": SENTENCE}
    shown, left = [first], room - rows[first]
    for name in VIEWS:
        if name not in shown and wanted[name] and left >= rows[name]:
            shown.append(name)
            left -= rows[name]
    return shown


def heights_of(
    shown: Sequence[str], natural: int, room: int, runs: int, pace: bool = False
) -> dict[str, int | str]:
    """Return the height of each panel.

    The comparison takes what it needs (``natural``), the table what its ``runs`` need; the loss
    grows, else the table, else the comparison. There is a chart of the ``pace``, where that is
    known, below a loss that is high.
    """
    grows = next(name for name in ("loss", "runs", "ab") if name in shown)
    heights: dict[str, int | str] = dict.fromkeys(shown, "1fr")
    if "ab" in shown and grows != "ab":
        heights["ab"] = natural
    if "runs" in shown and grows == "loss":
        table = max(LEAST["runs"], min(runs + 3, room - natural - least(room)["loss"]))
        heights["runs"], left = table, room - natural - table
        if pace and left >= MOST_LOSS + LEAST_PACE:
            heights["pace"] = min(left - MOST_LOSS, left // 2)
    return heights


def heights_spread(natural: int, room: int, runs: int, pace: bool) -> dict[str, int | str]:
    """Return the height of each panel where the curves stand beside the comparison.

    The table takes what its ``runs`` need, up to a third of the ``room``. Below the loss stands the
    ``pace`` of the run in progress, or the loss over time.
    """
    table = max(LEAST["runs"], min(runs + 3, room // 3))
    second = "pace" if pace else "time"
    heights: dict[str, int | str] = {"ab": natural, "loss": "1fr", second: (room - table) // 2}
    if room - table - natural >= LEAST["runs"]:
        heights["chosen"] = "1fr"
    return {**heights, "runs": table}
