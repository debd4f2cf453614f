"""Read trainings in a recording (or a black box) as entries to compare the lab's runs with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ....errors import UserError
from ....lab.ledger import Entry, entry_of
from ....probe.steps import median_interval
from ....store.past_file import Reader, frames_in, reader_of
from ....store.records import Record
from ....store.stream import NO_REASON, Stream
from ....store.view import NOT_SENT
from ....text.numbers import number
from ....text.process_name import short_script
from ....wire.clean import clean
from ....wire.frames import Sample, TrainerDef, Unknown

SOURCE = "recording"
WINDOW = 64
"""The window of the probe's medians in steps (``probe.steps.WINDOW``).

Readings that are this many steps apart share no step.
"""
WARMUP_STEPS = 5
"""The first steps, which do not count for the speed, as in the lab."""
MAX_READINGS = 20_000
CURVE_POINTS = 200
MAX_LINES = 5_000_000
MAX_TRAININGS = 512


class RecordedError(UserError):
    """The file cannot be read, or it does not say which training is meant."""


@dataclass(frozen=True, slots=True)
class RecordedTraining:
    """One job of a recording. ``pids`` are those of its ranks: any of them names it."""

    pids: tuple[int, ...]
    title: str
    steps: int
    entry: Entry


def comparand(path: Path, pid: int | None = None, samples: int | None = None) -> RecordedTraining:
    """Return the training of a recording. Raises :class:`RecordedError`.

    If there are several, the pid of one rank names the training. ``samples`` is the number of
    samples per step, if the user gives it.
    """
    found = trainings(path, samples)
    name = clean(path.name, 80)
    if pid is not None:
        chosen = [training for training in found if pid in training.pids]
        if not chosen:
            raise RecordedError(
                f"{name} contains no training with pid {pid}.\n{_listed(path, found)}"
            )
        return chosen[0]
    stepping = [training for training in found if training.steps] or found
    if len(stepping) == 1:
        return stepping[0]
    what = (
        f"{name} contains {len(stepping)} trainings: name one."
        if stepping
        else f"{name} contains no training."
    )
    raise RecordedError(f"{what}\n{_listed(path, found)}".rstrip())


def _listed(path: Path, found: Iterable[RecordedTraining]) -> str:
    return "\n".join(
        f"  {clean(str(path))}:{t.pids[0]}    {t.title}, {t.steps:,} steps" for t in found
    )


def trainings(path: Path, samples: int | None = None) -> list[RecordedTraining]:
    """Return every training in the file, in the order in which they began.

    Raises :class:`RecordedError` for a file that is not a recording. Of a file that is cut or
    damaged, the intact part is used.
    """
    reader = reader_of(path)
    if not reader.header:
        raise RecordedError(
            reader.problem.text if reader.problem else f"{clean(str(path))} is not a recording"
        )
    jobs: dict[str, list[_Rank]] = {}
    for rank in _ranks(reader):
        jobs.setdefault(rank.definition.job or rank.key, []).append(rank)
    return [_training(path, ranks, samples) for ranks in jobs.values()]


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Rank:
    """The recorded figures of one trainer."""

    key: str
    definition: TrainerDef
    host: dict[str, Any]
    device: Record | None = None
    first: int | None = None  # step number at the first reading that counts
    last: int = 0
    began: float = 0.0  # when the step ``first`` had ended, in seconds of the host's clock
    ended: float = 0.0
    at: float | None = None
    # (step number, median, 95th percentile)
    windows: list[tuple[int, float, float | None]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    peaks: dict[int, tuple[float | None, float | None]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def _ranks(reader: Reader) -> list[_Rank]:
    streams: dict[int, Stream] = {}
    seen: dict[tuple[int, str], _Rank] = {}
    for line, frame in frames_in(islice(reader.lines(), MAX_LINES)):
        stream = streams.setdefault(line.source, Stream(str(line.source), 0))
        stream.apply(frame, line.rx)
        if not isinstance(frame, Sample):
            continue
        for record in stream.registry.of("trainer"):
            if record.gone is None and record.readings:
                key = (line.source, record.key)
                if key not in seen and len(seen) < MAX_TRAININGS:
                    seen[key] = _Rank(record.key, record.definition, {})
                if key in seen:
                    _read(seen[key], record, stream)
    return list(seen.values())


def _read(rank: _Rank, record: Record, stream: Stream) -> None:
    """Take the newest readings of a trainer."""
    rank.definition = record.definition
    rank.host = _host(stream)
    rank.at = stream.wall(stream.last_m) if stream.last_m is not None else None
    _memory(rank, record, stream)
    step = _number(record, "step")
    for column in ("step_seconds", "loss", "loader_wait_seconds", "step"):
        reading = record.readings.get(column, NOT_SENT)
        if isinstance(reading, Unknown) and reading not in (NOT_SENT, NO_REASON):
            rank.reasons[column] = reading.text
    if step is None or step <= WARMUP_STEPS or record.seconds is None:
        return
    now, count = record.seconds - (_number(record, "step_age_seconds") or 0.0), int(step)
    if rank.first is None:
        rank.first, rank.began = count, now
    if count <= rank.last:
        return
    rank.last, rank.ended = count, now
    middle = _number(record, "step_seconds")
    before = rank.windows[-1][0] if rank.windows else WARMUP_STEPS
    if middle is not None and middle > 0:
        if count - before >= WINDOW or len(rank.windows) == 0:
            rank.windows.append((count, middle, _number(record, "step_seconds_p95")))
            rank.waits += _value_if_known(record, "loader_wait_seconds")
        elif len(rank.windows) == 1 and rank.windows[0][0] < WARMUP_STEPS + WINDOW:
            # A later definition that contains more.
            rank.windows[0] = (count, middle, _number(record, "step_seconds_p95"))
    rank.shares += _share(rank)
    rank.losses += [(count, loss) for loss in _value_if_known(record, "loss")]
    for values in (rank.windows, rank.waits, rank.shares, rank.losses):
        if len(values) > MAX_READINGS:
            del values[::2]


def _memory(rank: _Rank, record: Record, stream: Stream) -> None:
    for alloc in record.parts.values():
        if alloc.kind != "alloc" or alloc.definition.ordinal < 0:
            continue
        old = rank.peaks.get(alloc.definition.ordinal, (None, None))
        new = (_number(alloc, "peak_allocated_bytes"), _number(alloc, "peak_reserved_bytes"))
        both = [
            max((value for value in pair if value is not None), default=None)
            for pair in zip(old, new, strict=True)
        ]
        rank.peaks[alloc.definition.ordinal] = (both[0], both[1])
        rank.device = stream.registry.device_of(alloc) or rank.device


def _share(rank: _Rank) -> list[float]:
    return _value_if_known(rank.device, "tensor_active_percent") if rank.device is not None else []


def _number(record: Record, column: str) -> float | None:
    return number(record.readings.get(column))


def _value_if_known(record: Record, column: str) -> list[float]:
    value = _number(record, column)
    return [] if value is None else [value]


def _host(stream: Stream) -> dict[str, Any]:
    host, hello = stream.registry.host.definition, stream.hello
    facts = {
        "host": hello.host if hello else None,
        "driver": host.driver_version,
        "cuda_driver": host.cuda_driver_version,
    }
    return {name: value for name, value in facts.items() if value}


# ── the document ──────────────────────────────────────────────────────────────────────────────────


def _training(path: Path, ranks: list[_Rank], samples: int | None) -> RecordedTraining:
    ranks = sorted(ranks, key=lambda rank: (rank.definition.rank or 0, rank.key))
    lead = max(ranks, key=lambda rank: len(rank.windows))  # the rank with the most windows of steps
    definition = lead.definition
    script = (
        clean(short_script(definition.script)) if definition.script else f"pid {definition.pid}"
    )
    steps = lead.last - lead.first if lead.first is not None else 0
    document = _document(ranks, lead, steps, samples)
    environment = {
        **lead.host,
        **({"python": definition.python_version} if definition.python_version else {}),
    }
    pids = tuple(rank.definition.pid for rank in ranks)
    label = f"{path.name}:{pids[0]} {script}"
    entry = entry_of(document, at=lead.at, source=SOURCE, label=label, environment=environment)
    return RecordedTraining(
        pids, script + (f", {len(ranks)} ranks" if len(ranks) > 1 else ""), steps, entry
    )


def _document(ranks: list[_Rank], lead: _Rank, steps: int, samples: int | None) -> dict[str, Any]:
    """Return the keys of the lab's own document, as far as a recording can tell."""
    unknown: dict[str, str] = {}
    cuda = any(rank.peaks or rank.definition.cuda for rank in ranks)
    device = lead.device.definition.name if lead.device is not None else None
    values: dict[str, Any] = {
        "device": "cuda" if cuda else "cpu",
        "device_name": device,
        "torch_version": lead.definition.torch_version,
        "world_size": lead.definition.world_size or len(ranks),
        "samples_per_step": samples,
        "steps": steps,
        "step_seconds": _steps(lead, steps),
        "samples_per_second": None,
        "warmup_seconds": None,
        "input_seconds": median(lead.waits) if lead.waits else None,
        "tensor_active_percent": fmean(shares)
        if (shares := [s for rank in ranks for s in rank.shares])
        else None,
        **_peaks(ranks),
        "ranks": [
            {"rank": rank.definition.rank, "pid": rank.definition.pid, **_peaks([rank])}
            for rank in ranks
        ],
        "loss_by_step": _thin(lead.losses) or None,
        "loss_curve": [[step * samples, loss] for step, loss in _thin(lead.losses)]
        if samples
        else None,
        "error": None,
    }
    took = lead.ended - lead.began
    if samples and steps and took > 0:
        values["samples_per_second"] = steps * samples / took
    no_batch = "a recording does not contain the samples per step: use --samples-per-step N"
    unknown["samples_per_second"] = no_batch if not samples else "no steps were recorded"
    unknown["samples_per_step"] = no_batch
    unknown["warmup_seconds"] = "a recording does not contain when the training began"
    unknown["step_seconds"] = (
        lead.reasons.get("step_seconds") or lead.reasons.get("step") or "no steps were recorded"
    )
    no_loss = lead.reasons.get("loss") or "the recording has no loss"
    unknown["loss_by_step"] = no_loss
    unknown["loss_curve"] = no_loss if not lead.losses else no_batch
    unknown["input_seconds"] = lead.reasons.get("loader_wait_seconds") or "not in the recording"
    unknown["tensor_active_percent"] = "the driver reported none" if cuda else "it ran on a CPU"
    for key in ("peak_allocated_bytes", "peak_reserved_bytes"):
        unknown[key] = (
            "torch counts no memory on a CPU" if not cuda else "the probe read no allocator"
        )
    unknown["device_name"] = "not in the recording which GPU the trainer used"
    rows = [
        {"path": key, "code": "not_recorded", "reason": why}
        for key, why in unknown.items()
        if values[key] is None
    ]
    return {**values, "unknown": rows}


def _steps(rank: _Rank, steps: int) -> dict[str, Any] | None:
    """Return the median of the probe's medians over ``WINDOW`` steps each, and its interval.

    The windows do not share steps, so their order statistics give a confidence interval.
    """
    if not rank.windows:
        return None
    medians = [middle for _, middle, _ in rank.windows]
    tails = [tail for _, _, tail in rank.windows if tail is not None]
    low, high = median_interval(medians) or (None, None)
    return {
        "median": median(medians),
        "p95": median(tails) if tails else None,
        "low": low,
        "high": high,
        "count": steps,
    }


def _peaks(ranks: list[_Rank]) -> dict[str, int | None]:
    """Return the peaks of the rank that had most, of all its devices together."""
    found: dict[str, int | None] = {}
    for position, key in enumerate(("peak_allocated_bytes", "peak_reserved_bytes")):
        sums = []
        for rank in ranks:
            parts = [peak for pair in rank.peaks.values() if (peak := pair[position]) is not None]
            if parts:
                sums.append(int(sum(parts)))
        found[key] = max(sums, default=None)
    return found


def _thin(points: list[tuple[int, float]]) -> list[list[float]]:
    """Return at most ``CURVE_POINTS``, evenly spaced, the last one among them."""
    every = -(-len(points) // CURVE_POINTS) or 1
    return [[step, loss] for step, loss in list(_from_the_end(points, every))[::-1]]


def _from_the_end(points: list[tuple[int, float]], every: int) -> Iterator[tuple[int, float]]:
    return (points[index] for index in range(len(points) - 1, -1, -every))
