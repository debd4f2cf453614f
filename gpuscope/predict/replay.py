"""Replay a recorded history of the allocator, unchanged and under other settings.

The question is whether the training would have fit under the other settings. The history is first
replayed unchanged, with the addresses that the driver gave. The simulation should then reach the
recorded peak of reserved memory, and the difference is taken as the error of the other replay.
Under other settings the requests are the same, but the addresses are not. Blocks that were live
before the first entry are then placed by the simulator, because the history does not show how they
came there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import UserError
from ..model.allocator_settings import AllocatorSettings
from ..model.allocator_settings import recorded as settings_of
from ..text.units import bytes_text, window_text
from .allocator import OutOfMemory, Simulated, TooLong
from .allocator_blocks import rounded, segment_size
from .replay_events import AT_THE_END, RecordedTrace, recorded
from .replay_run import as_it_was, otherwise
from .trace import PhaseMark

if TYPE_CHECKING:
    from ..snapshot.history import History
    from ..snapshot.model import SnapshotDevice, Summary
    from ..snapshot.reader import Reading

PLACED = 0.99
"""The share of the blocks that must get their recorded address if the rules and the beginning are
known. In 339 histories of real trainings, recorded from before the first allocation, all blocks
did.
"""
ADDRESSES_PERCENT = 0.4
"""The error in percent of the reserved peak if the driver's addresses matter and are not known: 95
% of the same histories, simulated without their addresses, were within it. Expandable segments have
addresses of their own.
"""
SECONDS = 60.0
"""A real trace takes a second or two for each half a million entries; a hostile one could take
hours.
"""
MOST_ENTRIES = 3_000_000
"""This many entries take about ten seconds."""


@dataclass(frozen=True, slots=True)
class ReplayNote:
    """A reason why the answer is less certain.

    ``code`` is before, no_segments, lost, differs, not_reproduced, ends, capacity or private.
    """

    code: str
    text: str


@dataclass(slots=True)
class ReplayedOom:
    """An out-of-memory error in the trace.

    ``served`` says whether the request gets its block under the other settings.
    """

    entry: int
    requested_bytes: int
    served: bool
    failure: OutOfMemory | None


@dataclass(slots=True)
class Replayed:
    """The recorded allocator is ``before``, the one with ``settings`` is ``after``.

    ``identity_error_percent`` compares the simulated reserved peak of the recorded allocator with
    the recorded peak. ``same_addresses`` is the share of the blocks that the simulation placed at
    their recorded address. ``error_percent`` is the error of ``after``'s peaks: that of the
    identity, and, under other settings, that of unknown addresses and of memory that was free
    before the first entry, since nobody knows how much of it there would have been.
    """

    device: int
    settings: AllocatorSettings
    recorded_settings: AllocatorSettings
    before: Simulated
    after: Simulated
    recorded_peak_reserved_bytes: int
    identity_error_percent: float
    same_addresses: float | None
    error_percent: float
    capacity_bytes: int | None
    capacity_source: str
    """"asked", "oom" (reserved + free at the error), "retry" (a lower bound; the driver refused
    more), or "".
    """
    exact: bool
    """Whether the trace begins with the first allocation."""
    before_bytes: int
    outcomes: list[ReplayedOom] = field(default_factory=list)
    notes: list[ReplayNote] = field(default_factory=list)
    entries: int = 0
    """The number of entries in the trace."""
    needed_bytes: int = 0
    """What the recorded allocator would have reserved if its last failed request had been served;
    0: none failed.
    """
    peak_entry: int = -1
    """The entry of the trace at which ``after`` reserves the most."""
    reproduced: bool | None = None
    """Whether the requests that failed fail again when replayed as recorded, within the capacity
    that the error names. None if it names none.
    """
    verdict: str | None = None
    """fits, too_close (the error decides) or does_not_fit: whether every request is served within
    the capacity. None without a capacity, if the recorded error cannot be reproduced, and if the
    file has no segments.
    """

    @property
    def error_bytes(self) -> int:
        return int(self.error_percent / 100 * self.recorded_peak_reserved_bytes)


class CannotReplay(UserError):
    """The trace cannot be replayed. The text says why."""


def replay_device(
    reading: Reading,
    device: SnapshotDevice,
    settings: Callable[[AllocatorSettings], AllocatorSettings],
    capacity_bytes: int | None = None,
    failed: tuple[int, int | None] | None = None,
    seconds: float = SECONDS,
) -> Replayed:
    """Replay the history of one device of an open snapshot.

    ``settings`` changes the settings that were in force. ``failed`` is as in :func:`replay`. Raises
    :class:`CannotReplay`, and what the reader raises.
    """
    if device.trace is None:
        raise CannotReplay(
            "the history of allocations was off when it was taken: there is nothing to replay"
        )
    if device.trace.entries > MOST_ENTRIES:
        raise CannotReplay(
            f"its trace has {device.trace.entries:,} entries; {MOST_ENTRIES:,} are replayed at most"
        )
    own = settings_of(_settings(reading.summary))
    free = {mark.index: mark.free_bytes for mark in device.trace.marks if mark.action == "oom"}
    marks = [
        PhaseMark(mark.index, mark.text)
        for mark in device.trace.marks
        if mark.action == "user_defined" and mark.text
    ]
    found = replay(
        reading.history(device.device),
        own,
        settings(own),
        capacity_bytes,
        free,
        marks,
        failed,
        seconds,
    )
    found.device = device.device
    return found


def _settings(summary: Summary) -> dict[str, str]:
    """Return the settings of the snapshot, or those in the record of an out-of-memory error."""
    recorded = {key: str(value) for key, value in summary.settings.items()}
    prefix = "settings."
    more = {
        key.removeprefix(prefix): str(value)
        for key, value in summary.record.items()
        if key.startswith(prefix)
    }
    return {**more, **recorded}


def replay(
    history: History,
    recorded_settings: AllocatorSettings,
    settings: AllocatorSettings,
    capacity_bytes: int | None = None,
    free_at: Mapping[int, int | None] | None = None,
    marks: Sequence[PhaseMark] = (),
    failed: tuple[int, int | None] | None = None,
    seconds: float = SECONDS,
) -> Replayed:
    """Replay a recorded trace.

    ``free_at``: what the driver had free at each out-of-memory entry. ``failed``: the size of a
    request that failed after the last entry, and what was free then. Raises :class:`CannotReplay`.
    """
    for one in (recorded_settings, settings):
        if not one.native:
            raise CannotReplay(
                "backend:cudaMallocAsync is the driver's own allocator, whose rules are unknown"
            )
    deadline = time.monotonic() + seconds
    found = recorded(history, recorded_settings, free_at, marks, failed)
    try:
        return _replayed(history, found, recorded_settings, settings, capacity_bytes, deadline)
    except TooLong:
        raise CannotReplay(
            f"replaying its {len(history.code):,} entries takes longer than {window_text(seconds)}"
        ) from None


def _replayed(
    history: History,
    found: RecordedTrace,
    recorded_settings: AllocatorSettings,
    settings: AllocatorSettings,
    capacity_bytes: int | None,
    deadline: float,
) -> Replayed:
    capacity, source = _capacity(found, recorded_settings)
    before, same = as_it_was(found, recorded_settings, deadline)
    wanted, origin = (capacity, source) if capacity_bytes is None else (capacity_bytes, "asked")
    after = otherwise(found, settings, recorded_settings, wanted, deadline)
    truth = found.peak_reserved_bytes
    missed = 100 * abs(before.peak_reserved_bytes - truth) / truth if truth else 0.0
    uncounted = 0 if settings == recorded_settings else found.before_free_bytes
    unknown = 0.0 if settings == recorded_settings or settings.expandable else ADDRESSES_PERCENT
    result = Replayed(
        device=0,
        settings=settings,
        recorded_settings=recorded_settings,
        before=before,
        after=after,
        recorded_peak_reserved_bytes=truth,
        identity_error_percent=missed,
        same_addresses=same,
        error_percent=missed + unknown + (100 * uncounted / truth if truth else 0.0),
        capacity_bytes=wanted,
        capacity_source=origin,
        exact=history.known and found.before_bytes == 0 and not found.lost,
        before_bytes=found.before_bytes,
        outcomes=_outcomes(found, after),
        entries=len(history.code),
        needed_bytes=_needed(found, recorded_settings),
        peak_entry=_entry(found, after.peak_reserved_at.event),
    )
    if source == "oom":
        again = otherwise(found, recorded_settings, recorded_settings, capacity, deadline)
        result.reproduced = found.failures[-1].block in {one.block for one in again.ooms}
    if (
        wanted is not None
        and history.known
        and (result.reproduced is not False or origin == "asked")
    ):
        result.verdict = "fits" if after.fits else "does_not_fit"
        if result.error_bytes:
            moved = wanted - result.error_bytes if after.fits else wanted + result.error_bytes
            if otherwise(found, settings, recorded_settings, moved, deadline).fits != after.fits:
                result.verdict = "too_close"
    result.notes = _notes(found, history, result)
    return result


def _capacity(found: RecordedTrace, settings: AllocatorSettings) -> tuple[int | None, str]:
    """Return what the driver could give this allocator in total, as far as the trace shows."""
    for failed in reversed(found.failures):
        free = failed.free_bytes
        size = rounded(found.trace.sizes[failed.block], settings)
        if free is not None and free < segment_size(size, settings):
            return failed.reserved_bytes + free, "oom"
    if found.failures or any(not release.by_hand for release in found.releases):
        return found.peak_reserved_bytes, "retry"
    return None, ""


def _needed(found: RecordedTrace, settings: AllocatorSettings) -> int:
    if not found.failures:
        return 0
    last = found.failures[-1]
    return last.reserved_bytes + segment_size(
        rounded(found.trace.sizes[last.block], settings), settings
    )


def _entry(found: RecordedTrace, event: int) -> int:
    return found.entries[event] if 0 <= event < len(found.entries) else -1


def _outcomes(found: RecordedTrace, after: Simulated) -> list[ReplayedOom]:
    failures = {one.block: one for one in after.ooms}
    return [
        ReplayedOom(
            one.entry,
            found.trace.sizes[one.block],
            one.block not in failures,
            failures.get(one.block),
        )
        for one in found.failures
    ]


def _notes(found: RecordedTrace, history: History, result: Replayed) -> list[ReplayNote]:
    notes = []
    if not history.known:
        text = (
            "not exact: the file lacks some segments, so the replay starts with an empty allocator"
        )
        notes.append(ReplayNote("no_segments", text))
    elif found.before_bytes:
        text = (
            f"not exact: {bytes_text(found.before_bytes)} were reserved before the trace's "
            "first entry (recording began later, or its ring is full and the oldest entries are "
            "gone); their layout under other settings is a guess: closely packed"
        )
        notes.append(ReplayNote("before", text))
    if found.lost:
        text = f"{found.lost:,} entries contradict the rest of the trace and are ignored"
        notes.append(ReplayNote("lost", text))
    if result.identity_error_percent > 1:
        text = (
            f"replayed as recorded, the peak of reserved differs by "
            f"{result.identity_error_percent:.1f} %: rules or settings differed from the file's"
        )
        notes.append(ReplayNote("differs", text))
    elif result.same_addresses is not None and result.same_addresses < PLACED:
        text = (
            f"replayed as recorded, {100 * result.same_addresses:.0f} % of the blocks get the "
            f"same addresses: the trace does not explain the others"
        )
        notes.append(ReplayNote("differs", text))
    if result.reproduced is False:
        text = (
            "replayed as recorded, the failed request succeeds: it did not fail for lack of "
            "memory in this pool, so the effect of other settings is unknown"
        )
        notes.append(ReplayNote("not_reproduced", text))
    if found.failures and found.failures[-1].entry >= len(history.code) - AT_THE_END:
        text = "requests after the error are not in the trace, and may have needed more"
        notes.append(ReplayNote("ends", text))
    if result.capacity_source == "retry":
        text = (
            "the GPU's capacity is not in the trace: "
            f"{bytes_text(found.peak_reserved_bytes)} were reserved, so that is assumed; "
            f"--capacity sets it"
        )
        notes.append(ReplayNote("capacity", text))
    if found.pools:
        text = (
            f"{len(found.pools):,} blocks are in private pools (CUDA graphs), which serve no "
            f"other request here either"
        )
        notes.append(ReplayNote("private", text))
    return notes
