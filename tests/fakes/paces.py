"""A made-up job of four ranks of which one becomes a tenth slower.

Not measured.
"""

from __future__ import annotations

import random
from statistics import fmean

from gpuscope.model.step_time import SPLIT
from gpuscope.wire import frames as f
from tests.fakes import clocks, jobs

LATE = 240.0
"""From then on rank 3 works longer."""
STEPS = 32
"""A reading is the mean of so many measured steps, two of them a second."""


def job(seconds: float = LATE + 60.0, times: float = 1.1, minutes: int = 0) -> list[f.Frame]:
    """Four ranks that step together for so long; at last rank 3 works ``times`` as long.

    ``minutes`` of their ledgers are told too, in which no rank differs.
    """
    dice = random.Random(3)
    frames = jobs.ranks(4, seconds)
    recent: dict[int, list[float]] = {rank: [] for rank in range(4)}
    for frame in frames:
        for row in frame.t if isinstance(frame, f.Sample) else ():
            rank, now = row[0] - 300, frame.q / 2
            work = 0.3 * (1 + 0.03 * dice.gauss(0, 1))
            work *= times if rank == 3 and now >= LATE else 1.0
            recent[rank] = [*recent[rank][-STEPS + 1 :], work]
            parts = dict.fromkeys(SPLIT, 0.0)
            parts |= {"compute": fmean(recent[rank]), "input": 0.01}
            parts["communication"] = max(0.0, 0.4 - parts["compute"])
            for name, value in parts.items():
                row[1 + f.TRAINER_COLUMNS.index(f"{name}_seconds")] = value
    for rank in range(4):
        for number in range(minutes):
            frames.append(clocks.minute(300 + rank, number, minutes, checkpoint=0.0))
    return frames
