"""Compute how much used memory belongs to no process in the driver's list.

NVML reports the memory in use and what each process holds. The difference belongs to a process that
the list lacks (in another container, or one that cannot end), or to the driver. From driver 510 on,
NVML reports the driver's own reserve separately; before, it counts as in use.
"""

from __future__ import annotations

from typing import Optional, Sequence

UNOWNED_BYTES = 256 << 20
"""Bytes from which on the difference belongs to a process.

A CUDA context, the least that a program on a GPU holds, takes more. A smaller difference comes from
rounding and from readings that were not taken at the same moment.
"""
UNOWNED_WITH_RESERVE_BYTES = 1 << 30
"""The same limit where the driver's reserve counts as in use; it is 0.6 GiB on an H200."""


def unowned_bytes(
    used: float, held: Sequence[Optional[float]], reserve_is_known: bool
) -> Optional[float]:
    """Return the bytes that no listed process holds; 0 if they are below the limit.

    The result is None where the memory of a process is not known.
    """
    known = [size for size in held if size is not None]
    if len(known) < len(held):
        return None
    rest = used - sum(known)
    return (
        rest if rest > (UNOWNED_BYTES if reserve_is_known else UNOWNED_WITH_RESERVE_BYTES) else 0.0
    )
