"""Bring the clocks of a job's hosts together.

Logs say the time of their host without a zone; error files and flight recorders count seconds
since 1970. Ranks that take part in the same collective pass it at about the same moment, so the
difference of the times at which they did is the difference of their clocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from .model import Job, Rank
from .read_elastic import Listed

QUARTER_HOUR = 900
LEAST_OFFSET = 1.0
"""Clocks that differ by fewer seconds are left as they are."""
LEAST_CALLS = 5
MOST_CALLS = 400


def align(job: Job, listed: Sequence[Listed]) -> None:
    """Shift the times of logs to the zone of the error files, then each host to the first one."""
    _shift_zone(job, listed)
    by_host: defaultdict[str, list[Rank]] = defaultdict(list)
    for rank in job.ranks.values():
        if rank.number >= 0:
            by_host[rank.host].append(rank)
    hosts = sorted(by_host, key=lambda host: min(rank.number for rank in by_host[host]))
    if len(hosts) < 2:
        return
    reference = _times(by_host[hosts[0]])
    for host in hosts[1:]:
        there = _times(by_host[host])
        differences = sorted(there[key] - reference[key] for key in reference.keys() & there.keys())
        if len(differences) < LEAST_CALLS:
            continue
        offset = median(differences)
        spread = (differences[(3 * len(differences)) // 4] - differences[len(differences) // 4]) / 2
        if abs(offset) >= max(LEAST_OFFSET, 3 * spread):
            job.offsets[host] = (offset, spread)
            for rank in by_host[host]:
                _shift(rank, -offset)
            for moment in job.moments:
                if moment.host == host and moment.time is not None:
                    moment.time -= offset


def _times(ranks: Sequence[Rank]) -> dict[tuple[str, int], float]:
    """Return when the first of these ranks passed each of its last collectives."""
    found: dict[tuple[str, int], float] = {}
    for rank in ranks:
        for group, calls in rank.calls.items():
            for call in calls[-MOST_CALLS:]:
                at = call.completed or call.created
                if at is not None and not call.point_to_point and call.done:
                    key = (group, call.number)
                    found[key] = min(at, found.get(key, at))
    return found


def _shift_zone(job: Job, listed: Sequence[Listed]) -> None:
    """Shift the times of logs where torchrun's list shows that they are of another zone.

    It lists the time that an error file holds in seconds since 1970 by the clock of its host.
    """
    exact = {
        rank.number: failure.time
        for rank in job.ranks.values()
        for failure in rank.failures
        if failure.time is not None and failure.source.endswith(".json")
    }
    shifts = [
        round((exact[item.rank] - item.time) / QUARTER_HOUR) * QUARTER_HOUR
        for item in listed
        if item.time is not None and exact.get(item.rank) is not None and item.error_file
    ]
    shift = median(shifts) if shifts else 0
    if not shift:
        return
    for rank in job.ranks.values():
        _shift(rank, shift, of_logs=True)
    for moment in job.moments:
        moment.time = None if moment.time is None else moment.time + shift


def _shift(rank: Rank, seconds: float, of_logs: bool = False) -> None:
    """Shift every time of a rank, or only those that its logs say."""
    for name in ("begin", "last", "step_time"):
        at = getattr(rank, name)
        if at is not None:
            setattr(rank, name, at + seconds)
    for failure in rank.failures:
        if failure.time is not None and not (of_logs and failure.source.endswith(".json")):
            failure.time += seconds
    for moment in rank.moments:
        if moment.time is not None:
            moment.time += seconds
    if rank.exit is not None and rank.exit.time is not None:
        rank.exit.time += seconds
    for calls in rank.calls.values() if not of_logs else ():
        for call in calls:
            call.created = None if call.created is None else call.created + seconds
            call.completed = None if call.completed is None else call.completed + seconds
