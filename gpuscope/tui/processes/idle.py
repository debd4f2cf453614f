"""This module tells since when a process runs no kernel.

It goes by the process's own share of its devices where the driver tells it, else by the
devices' load, else by its CPU time. It knows no widget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...model.device_state import IDLE_PERCENT
from ...store.view import DeviceView, HistoryOf, ProcView, UseView
from ...text.units import short_age_text

FORGET_SECONDS = 30.0
"""Readings of a use that are farther apart were not watched in between: its history is asked again.
"""


class Idle(NamedTuple):
    """For how long a process has been idle.

    ``seconds`` is 0.0 where it works, or nothing is known. ``more`` says that it was so already
    when somebody began to look.
    """

    seconds: float
    more: bool

    @property
    def text(self) -> str:
        """Return the time in few characters, as "≥16m", "" where it works."""
        return f"{'≥' if self.more else ''}{short_age_text(max(self.seconds, 1.0))}" if self else ""

    def __bool__(self) -> bool:
        return self.seconds > 0


BUSY = Idle(0.0, False)


class _Since(NamedTuple):
    looked: float
    began: float
    more: bool


class Idleness:
    """What remembers since when each use of a device is idle.

    The history of a use is long, and is read once.
    """

    def __init__(self) -> None:
        self._since: dict[int, _Since] = {}

    def of_use(self, use: UseView, history: HistoryOf) -> Idle | None:
        """None where the driver does not tell its share."""
        share, now = use.number("sm_percent"), use.sampled_seconds
        if share is None or now is None:
            return None
        if share >= IDLE_PERCENT:
            self._since.pop(use.id, None)
            return BUSY
        known = self._since.get(use.id)
        if known is None or not 0 <= now - known.looked < FORGET_SECONDS:
            known = _since(use.id, "sm_percent", now, history)
        self._since[use.id] = known._replace(looked=now)
        return Idle(max(now - known.began, 1.0), known.more)

    def of_device(self, device: DeviceView, history: HistoryOf) -> Idle:
        """Return how idle a device is by its load."""
        load, now = device.number("utilization_percent"), device.sampled_seconds
        if load is None or now is None or load >= IDLE_PERCENT:
            return BUSY
        found = _since(device.id, "utilization_percent", now, history)
        since = device.number("idle_since_seconds")  # by the agent there, which was first
        began = min(found.began, since) if found.more and since else found.began
        return Idle(max(now - began, 1.0), found.more)

    def of_process(
        self,
        process: ProcView,
        uses: Sequence[UseView],
        devices: Mapping[int, Idle],
        history: HistoryOf,
        wall: float | None,
    ) -> Idle:
        """Return how idle a process is that has these uses of devices.

        ``uses`` are those that live, ``devices`` says how idle each is, by id, and ``wall``
        what time it is on its host. No process is idle for longer than it runs.

        No kernel on any of its devices means that it runs none either. Beside others that work,
        its own share tells; where the driver tells none, its CPU does, which a process that
        feeds a GPU needs.
        """
        found, start = (
            self._of_process(process, uses, devices, history),
            process.definition.start_time,
        )
        age = wall - start if wall is not None and start is not None else None
        return Idle(max(age, 1.0), False) if age is not None and 0 < age < found.seconds else found

    def _of_process(
        self,
        process: ProcView,
        uses: Sequence[UseView],
        devices: Mapping[int, Idle],
        history: HistoryOf,
    ) -> Idle:
        states = [devices.get(use.gpu, BUSY) for use in uses]
        if states and all(states):
            return min(states)
        own = [self.of_use(use, history) for use in uses]
        known = [one for one in own if one is not None]
        if known and len(known) == len(own):
            return min(known) if all(known) else BUSY
        seconds = process.number("idle_seconds")
        return (
            Idle(seconds, True) if seconds is not None and seconds >= 1 and not any(known) else BUSY
        )


def _since(entity: int, column: str, now: float, history: HistoryOf) -> _Since:
    past = history(entity, column, None)
    first = len(past)
    while first and (load := past.values[first - 1]) is not None and load < IDLE_PERCENT:
        first -= 1
    began = past.seconds[first] if first < len(past) else now
    return _Since(now, began, first == 0 or past.values[first - 1] is None)
