"""Judges an allocator snapshot, or the record of an out-of-memory error.

The rules find fragmentation, leaks with the lines that cause them, evaluations that keep a graph,
and idle private pools.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..text.numbers import number
from ..text.units import GIB, MIB, bytes_text, count_text, percent_text
from ..wire.clean import clean
from . import postmortem_oom, postmortem_replay
from .finding import Abstained, Evidence, Finding, Report
from .postmortem_oom import WORDINGS

if TYPE_CHECKING:
    from ..snapshot.model import SnapshotDevice, StackRow, Summary, TimelineEvent
    from ..snapshot.reader import Reading

Place = tuple[str, int]
"""A source file and a line number in it."""
TOP = 40
QUARTERS = ("25%", "50%", "75%")
LEAK_SHARE, LEAK_BYTES = 0.05, 4 * MIB
"""What a leak keeps in each quarter of the history: a share of what is allocated, and bytes."""
EVEN = 3.0
"""A leak grows in each quarter alike, up to this factor, because it never stops.

What is loaded once shows in one quarter only.
"""
SPLIT_SHARE = 0.25
POOL_SHARE, POOL_BYTES = 0.20, 1 * GIB
_ONCE = re.compile(r"torch/optim/|torch/nn/modules/module\.py:.* _apply$|torch/serialization\.py")
_EVALUATES = re.compile(
    r"(?:^|_)(?:eval|evaluate|evaluation|valid|validate|validation|test|inference|infer|predict)(?:$|_)",
    re.I,
)
EVALUATION_SHARE = 0.5


def examine(path: Path) -> Report:
    """Return the file's findings, and as a problem what is wrong with the file.

    A child process of ``snapshot.reader`` reads it, with limited memory and time.
    """
    from ..snapshot.limits import for_files
    from ..snapshot.reader import SnapshotError, open_snapshot

    name = clean(path.name, 100)
    try:
        limit, timeout = for_files(str(path))
        with open_snapshot(path, limit, timeout, TOP) as reading:
            return judge(reading, name)
    except SnapshotError as error:
        return Report(problems=(f"{name}: {error.what}",))


def judge(reading: Reading, name: str) -> Report:
    """Return the findings of a file that is open already."""
    summary = reading.summary
    found: list[Finding | Abstained] = []
    failed = False
    for device in summary.devices:
        facts = _oom_facts(summary, device)
        failed |= facts is not None
        leaks = _leaks_if_known(reading, device)
        evaluated = [*_evaluation(device, facts is not None)]
        found += [*leaks, *evaluated]
        if facts is not None:
            found += postmortem_replay.with_replay(
                reading, device, facts, postmortem_oom.judge(facts)
            )
        else:
            found += _fragmentation(summary, device)
        found += _private_pools(device, facts is not None)
        if device.trace is None and facts is not None:
            found.append(WORDINGS.abstained("no-history", device=device.device))
    if not summary.devices and summary.record.get("kind") == "oom":
        found += postmortem_oom.judge(_facts_of_record(summary, None))
    return Report(
        findings=tuple(one for one in found if isinstance(one, Finding)),
        abstained=tuple(one for one in found if isinstance(one, Abstained)),
        examined=(
            f"{name} ({'record of an out-of-memory error' if failed else 'allocator snapshot'})",
        ),
        problems=tuple(
            f"{name}: {note.text}"
            for note in summary.notes
            if note.code in ("truncated", "damaged", "memory")
        ),
    )


# ── an out-of-memory error in it ──────────────────────────────────────────────────────────────────


def _oom_facts(summary: Summary, device: SnapshotDevice) -> postmortem_oom.OomFacts | None:
    """Returns the facts of the error on record, or of the last one in the trace, if any."""
    if summary.record.get("kind") == "oom" and summary.record.get("device") in (
        device.device,
        None,
    ):
        return _facts_of_record(summary, device)
    marks = (
        [mark for mark in device.trace.marks if mark.action == "oom"]
        if device.trace is not None
        else []
    )
    if not marks or not _is_at_the_end(device, marks[-1]):
        return None
    mark = marks[-1]
    return _facts_of_blocks(
        device, summary, requested=mark.size_bytes, free=mark.free_bytes, total=None
    )


def _is_at_the_end(device: SnapshotDevice, mark: TimelineEvent) -> bool:
    """Returns whether so little happened since that the file has the blocks of that moment."""
    return device.trace is not None and device.trace.entries - mark.index <= max(
        50, device.trace.entries // 50
    )


def _facts_of_record(summary: Summary, device: SnapshotDevice | None) -> postmortem_oom.OomFacts:
    requested, free, total = (
        number(summary.record.get(f"{what}_bytes")) for what in ("requested", "free", "total")
    )
    if device is not None and device.segments and device.complete:
        return _facts_of_blocks(device, summary, requested, free, total)
    allocated, reserved, split = (
        number(summary.record.get(f"statistics.{what}_bytes.all.current"))
        for what in ("allocated", "reserved", "inactive_split")
    )
    cached = reserved - allocated if reserved is not None and allocated is not None else None
    return postmortem_oom.OomFacts(
        requested=requested,
        free=free,
        total=total,
        allocated=allocated,
        reserved=reserved,
        inactive_split=split,
        cached=cached,
        settings=_settings(summary),
        where=_where(summary, device),
        source="record",
    )


def _facts_of_blocks(
    device: SnapshotDevice,
    summary: Summary,
    requested: float | None,
    free: float | None,
    total: float | None,
) -> postmortem_oom.OomFacts:
    totals, found = device.totals, device.fragmentation
    optimizer = sum(row.bytes for row in device.stacks.rows if _is_optimizer(row))
    return postmortem_oom.OomFacts(
        requested=requested,
        free=free,
        total=total,
        allocated=totals.allocated_bytes,
        reserved=totals.reserved_bytes,
        inactive_split=totals.inactive_split_bytes,
        cached=found.free_bytes,
        largest_free=found.largest_free_bytes,
        private_idle=found.private_free_bytes,
        optimizer=optimizer or None,
        settings=_settings(summary),
        where=_where(summary, device),
        source="record" if summary.record else "snapshot",
    )


def _settings(summary: Summary) -> str:
    if summary.settings.get("expandable_segments") == "True":
        return "expandable_segments:True"
    return " ".join(
        str(value) for key, value in summary.record.items() if key.startswith("settings.")
    )


def _where(summary: Summary, device: SnapshotDevice | None) -> str:
    number = summary.record.get("device") if device is None else device.device
    at = (
        f", {summary.stack[summary.headline].place}"
        if len(summary.stack) > summary.headline
        else ""
    )
    return f"cuda:{number}{at}"


# ── a leak ────────────────────────────────────────────────────────────────────────────────────────


def _leaks_if_known(reading: Reading, device: SnapshotDevice) -> list[Finding]:
    """Returns the leaks, none where the history has no quarters or its reader gave up."""
    from ..snapshot.reader import SnapshotError

    try:
        return [*_leaks(reading, device)]
    except SnapshotError:
        return []


def _leaks(reading: Reading, device: SnapshotDevice) -> Iterator[Finding]:
    """Yields findings on lines of which every quarter of the history leaves as much behind."""
    trace = device.trace
    if trace is None or trace.actions.get("free_completed", 0) < 0.3 * trace.actions.get(
        "alloc", 0
    ):
        return  # where hardly anything is freed, a model is being built and not trained yet
    kept: dict[Place, list[float]] = {}
    graph: dict[Place, set[tuple[Place, ...]]] = {}
    for index, moment in enumerate(QUARTERS):
        for place, (amount, stacks) in _bytes_kept_since(reading, device.device, moment).items():
            kept.setdefault(place, [0.0, 0.0, 0.0])[index] = amount
            graph.setdefault(place, set()).update(stacks)
    allocated = max(1, device.totals.allocated_bytes)
    for (file, line), (after25, after50, after75) in sorted(
        kept.items(), key=lambda item: -item[1][0]
    ):
        second, third = after25 - after50, after50 - after75
        if min(second, third) < max(LEAK_SHARE * allocated, LEAK_BYTES) or max(
            second, third
        ) > EVEN * min(second, third):
            continue
        yield _leak_finding(
            device,
            f"{file.rsplit('/', 1)[-1]}:{line}",
            second,
            third,
            after25,
            len(graph[file, line]),
        )


def _bytes_kept_since(
    reading: Reading, device: int, moment: str
) -> dict[Place, tuple[float, set[tuple[Place, ...]]]]:
    """Return by source line what was allocated after ``moment`` and is still live at the end.

    Each line has its bytes, and the stacks that allocated them.
    """
    out: dict[Place, tuple[float, set[tuple[Place, ...]]]] = {}
    for row in reading.between(device, moment, "end", 200).stacks.rows:
        if not row.frames or _is_once(row):
            continue
        frame = row.frames[min(row.headline, len(row.frames) - 1)]
        amount, stacks = out.get((frame.file, frame.line), (0.0, set()))
        stacks.add(tuple((one.file, one.line) for one in row.frames[: row.headline + 1]))
        out[frame.file, frame.line] = amount + row.bytes, stacks
    return out


def _is_once(row: StackRow) -> bool:
    return any(
        _ONCE.search(f"{frame.file}:{frame.line} {frame.function}")
        for frame in row.frames[: row.headline + 1]
    )


def _is_optimizer(row: StackRow) -> bool:
    return any("torch/optim/" in frame.file for frame in row.frames)


def _leak_finding(
    device: SnapshotDevice, at: str, second: float, third: float, total: float, stacks: int
) -> Finding:
    evidence = [
        Evidence(
            f"allocated there and still live: {bytes_text(second)} from the second quarter of "
            f"the history, {bytes_text(third)} from the third, {bytes_text(total)} in all after "
            "the first",
            "snapshot",
        ),
        Evidence(
            f"of {bytes_text(device.totals.allocated_bytes)} allocated on cuda:{device.device}",
            "snapshot",
        ),
    ]
    if stacks >= 3:
        evidence.append(
            Evidence(
                f"the blocks come from {stacks} operations below that line: a whole graph is "
                "kept, not one tensor",
                "snapshot",
            )
        )
        name = "snapshot.graph_kept"
    else:
        name = "snapshot.tensors_kept"
    return WORDINGS.finding(
        name,
        {"place": at, "kept": bytes_text(second + third)},
        severity="warning",
        confidence="likely",
        where=f"{at}, cuda:{device.device}",
        rank=2.5,
        evidence=tuple(evidence),
    )


def _evaluation(device: SnapshotDevice, failed: bool) -> Iterator[Finding]:
    """Yield a finding where most live memory was allocated inside an evaluation function.

    It is the graph for a backward pass that never comes.
    """
    if not failed:
        return
    inside = [
        row
        for row in device.stacks.rows
        if any(_EVALUATES.search(frame.function) for frame in row.frames)
    ]
    held = sum(row.bytes for row in inside if not _is_once(row))
    if held < EVALUATION_SHARE * max(1, device.totals.allocated_bytes):
        return
    frame = next(frame for frame in inside[0].frames if _EVALUATES.search(frame.function))
    share = percent_text(held / device.totals.allocated_bytes)
    live = bytes_text(device.totals.allocated_bytes)
    text = (
        f"{bytes_text(held)} of {live} live ({share}) were made in {frame.function} ({frame.place})"
    )
    yield WORDINGS.finding(
        "snapshot.evaluation",
        {"function": frame.function, "held": bytes_text(held)},
        rank=2.4,
        evidence=(Evidence(text, "snapshot"),),
        where=f"{frame.place}, cuda:{device.device}",
    )


# ── without an error ──────────────────────────────────────────────────────────────────────────────


def _fragmentation(summary: Summary, device: SnapshotDevice) -> Iterator[Finding]:
    """Yield a finding on free memory that is split into small pieces.

    It is ``info``, because memory always looks like this between two peaks of a step.
    """
    totals, found = device.totals, device.fragmentation
    if (
        not totals.reserved_bytes
        or totals.inactive_split_bytes < SPLIT_SHARE * totals.reserved_bytes
    ):
        return
    evidence = [
        Evidence(
            f"inactive split {bytes_text(totals.inactive_split_bytes)} of "
            f"{bytes_text(totals.reserved_bytes)} reserved "
            f"({percent_text(totals.inactive_split_bytes / totals.reserved_bytes)}): free, in "
            "segments partly in use",
            "snapshot",
        ),
        Evidence(
            f"{bytes_text(found.free_bytes)} free in {count_text(found.free_blocks, 'piece')}, the "
            f"largest {bytes_text(found.largest_free_bytes)}: a larger request needs new memory",
            "snapshot",
        ),
    ]
    peak = (
        device.trace.peak.allocated_bytes
        if device.trace is not None and device.trace.peak is not None
        else None
    )
    if peak is not None:
        evidence.append(
            Evidence(f"at the peak of the history {bytes_text(peak)} were in use", "snapshot")
        )
    expandable = "expandable_segments:True" in _settings(summary)
    yield WORDINGS.finding(
        "snapshot.fragmentation.expandable" if expandable else "snapshot.fragmentation",
        {"free": bytes_text(totals.inactive_split_bytes), "device": device.device},
        evidence=tuple(evidence),
        where=f"cuda:{device.device}",
        rank=0.5,
    )


def _private_pools(device: SnapshotDevice, failed: bool) -> Iterator[Finding]:
    """Yield a finding on much idle memory in private pools.

    After an out-of-memory error, the rule on that error covers this.
    """
    idle = device.fragmentation.private_free_bytes
    if failed or idle < POOL_BYTES or idle < POOL_SHARE * device.totals.reserved_bytes:
        return
    names = ", ".join(
        f"pool {pool.name}: {bytes_text(pool.reserved_bytes)} reserved, "
        f"{bytes_text(pool.allocated_bytes)} in use"
        for pool in device.pools
        if pool.private
    )
    yield WORDINGS.finding(
        "snapshot.private_pools",
        {"idle": bytes_text(idle)},
        where=f"cuda:{device.device}",
        evidence=(Evidence(names[:400], "snapshot"),),
    )
