"""Memory in use that no process holds which the driver names: how much of it is worth a word.

NVML tells the memory in use and, for each process, what it holds. The difference is somebody's whom
the list lacks (a process of another container, or one that does not end), or the driver's own. From
driver 510 on NVML tells the driver's own reserve apart; before, it counts as in use.
"""

from __future__ import annotations

from typing import Optional, Sequence

UNOWNED_BYTES = 256 << 20
"""From here on it is somebody's: a CUDA context, the least that a program on a GPU holds, takes
more. Less is rounding, and readings that were not taken at one moment.
"""
UNOWNED_WITH_RESERVE_BYTES = 1 << 30
"""The same where the driver's reserve counts as in use. On an H200 that reserve is 0.6 GiB."""


def unowned_bytes(
    used: float, held: Sequence[Optional[float]], reserve_is_told: bool
) -> Optional[float]:
    """Return the bytes that nobody holds, 0 where they are too few to say so.

    It is None where a process's share is not known.
    """
    known = [size for size in held if size is not None]
    if len(known) < len(held):
        return None
    rest = used - sum(known)
    return (
        rest if rest > (UNOWNED_BYTES if reserve_is_told else UNOWNED_WITH_RESERVE_BYTES) else 0.0
    )
