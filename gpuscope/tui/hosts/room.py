"""How the rows below a list of hosts are shared out: to GPUs, to jobs and to charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FRAME = 3
"""The rows of the frame and the heading of a table."""
LEAST_ROWS, MANY_ROWS = 4, 7
"""The least rows of a table, and so many are enough of a long one."""
CHART_ROWS = 9
"""The least rows of the charts of a host."""
LEAST_JOB_ROWS = 6
"""The rows of the jobs before charts get any: the worst three."""


class Room(NamedTuple):
    """The rows of each table with its frame, 0 for one that has no room.

    ``several`` says that the GPUs of all hosts are listed, as far as they fit.
    """

    devices: int = 0
    several: bool = False
    jobs: int = 0
    charts: int = 0


def least_device_rows(sizes: Sequence[int]) -> int:
    """Return the least rows of a table of GPUs, by the number of GPUs of each host."""
    return max(LEAST_ROWS, min(most_device_rows(sizes), MANY_ROWS))


def most_device_rows(sizes: Sequence[int]) -> int:
    """Return the rows of a table with the GPUs of the largest host, 0 where none has a GPU."""
    most = max(sizes, default=0)
    return most + FRAME if most else 0


def room_below(free: int, sizes: Sequence[int], jobs: int, wide: bool) -> Room:
    """Return how ``free`` rows are shared out.

    ``sizes`` are the numbers of GPUs of the hosts, and ``jobs`` that of their jobs. A terminal that
    is not ``wide`` has no jobs and no charts. The GPUs of one host come before jobs, and those of
    all where they fit; charts come before a long list of jobs.
    """
    most, of_all = most_device_rows(sizes), sum(sizes) + FRAME
    many = sum(size > 0 for size in sizes) > 1
    wanted = jobs + FRAME if jobs and wide else 0
    together = many and of_all + wanted <= free
    devices = of_all if together else min(free, most)
    if most and devices < least_device_rows(sizes):
        return Room()  # the hosts themselves need all rows
    rest = free - devices
    if wide and rest >= CHART_ROWS + min(wanted, LEAST_JOB_ROWS):
        listed = min(wanted, rest - CHART_ROWS)
        return Room(devices, together, listed, rest - listed)
    listed = min(wanted, rest) if rest >= LEAST_ROWS else 0
    if many and not together and rest - listed >= LEAST_ROWS:
        return Room(min(devices + rest - listed, of_all), True, listed)
    return Room(devices, together, listed)
