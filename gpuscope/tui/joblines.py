"""From a host's jobs to lines: mine first and in full, other users' one line each, what ended with its reason."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..store.view import AllocView, Entity, Gone, HostView, JobView, TrainerView
from ..wire.frames import Unknown
from .accounting import headroom
from .cells import age_text, gib, percent, seconds_text
from .verdict import STARVED, loader_share, ranges
from .widgets.jobs import DASH

Piece = tuple[str, str]
ENDED_SHOWN = 3
"""The log has all of them."""


@dataclass(frozen=True, slots=True)
class JobLine:
    """``cells`` by column of ``widgets.jobs.HEADINGS``; ``notes`` are lines below it; ``entity`` is what Enter opens,
    None for a group."""

    key: str
    cells: dict[str, Piece]
    notes: list[list[Piece]] = field(default_factory=list)
    entity: Entity | None = field(default=None, compare=False)
    span: list[Piece] = field(default_factory=list)
    """Drawn instead of the cells after "job" where a line has no inside to tell of."""
    over: bool = False
    """It has ended: what has no column is left out."""


def job_lines(host: HostView, mine_only: bool = False, text: str = "") -> list[JobLine]:
    """All lines, mine first. With ``text`` only those that contain it."""
    mine = [job for job in host.jobs if job.mine]
    others = [job for job in host.jobs if not job.mine]
    lines = [_line(host, job) for job in mine]
    if not mine_only:
        lines += [_line(host, job) for job in others] if len(others) <= 1 else list(_by_user(host, others))
    lines = _with_few_ended(lines)
    if text:
        needle = text.casefold()
        lines = [line for line in lines if needle in _text(line).casefold()]
    return lines


def _with_few_ended(lines: list[JobLine]) -> list[JobLine]:
    """What ended comes last, the newest first and in full, a few more in a line each."""
    running, ended = [line for line in lines if not line.over], [line for line in lines if line.over]
    ended = ended[::-1]
    short = [
        JobLine(line.key, {"job": line.cells["job"], "gpu": line.cells["gpu"]}, [], line.entity, line.notes[0], True)
        for line in ended[1:ENDED_SHOWN]
    ]
    return [*running, *ended[:1], *short]


def _text(line: JobLine) -> str:
    pieces = [*line.cells.values(), *line.span, *(piece for note in line.notes for piece in note)]
    return " ".join(text for text, _ in pieces)


def _by_user(host: HostView, jobs: Iterable[JobView]) -> Iterable[JobLine]:
    users: dict[str, list[JobView]] = {}
    for job in jobs:
        if ended(job) is None:
            users.setdefault(job.user or "someone", []).append(job)
    for user, own in users.items():
        indices = sorted({index for job in own for index in devices_of(host, job)})
        sizes = [size for job in own if (size := held(job)) is not None]
        used = f"{'≥ ' if len(sizes) < len(own) else ''}{gib(sum(sizes))} GiB" if sizes else "memory not told"
        trained = sum(bool(job.trainers) for job in own)
        count = f"{len(own)} job{'s' * (len(own) > 1)}"
        span = [
            (f"{count} · {used}", "text"),
            (f" · {trained} with a probe" if trained else " · no probe", "muted"),
        ]
        yield JobLine(f"user:{user}", {"job": (user, "muted"), "gpu": (ranges(indices), "muted")}, span=span)


def _line(host: HostView, job: JobView) -> JobLine:
    gone = ended(job)
    trainers = [t for t in job.trainers if t.gone is None] or list(job.trainers)
    indices = devices_of(host, job)
    where = ranges(indices) if indices else "cpu" if trainers and not any(t.definition.cuda for t in trainers) else "–"
    title = job.title + (f" ×{len(trainers)}" if len(trainers) > 1 else "")
    title += "" if job.mine or not job.user else f" ({job.user})"
    cells: dict[str, Piece] = {
        "job": (title, "faint" if gone else "title" if job.mine else "text"),
        "gpu": (where, "text"),
    }
    if not trainers:
        process = job.processes[0] if job.processes else None
        return JobLine(job.key, cells, _end_notes(gone), process, _outside(host, job), gone is not None)
    cells |= _training(trainers) | _memory(host, trainers)
    if gone:
        cells = {name: (text, "faint") for name, (text, _) in cells.items()}
    notes = _end_notes(gone) or _notes(job, trainers)
    return JobLine(job.key, cells, notes, job.worst or trainers[0], over=gone is not None)


def ended(job: JobView) -> Gone | None:
    """Why a job is over; None while anything of it lives."""
    members: list[Entity] = list(job.trainers) or list(job.processes)
    gone = [entity.gone for entity in members]
    last = [g for g in gone if g is not None]
    return max(last, key=lambda g: g.monotonic_seconds) if last and len(last) == len(gone) else None


def _end_notes(gone: Gone | None) -> list[list[Piece]]:
    if gone is None:
        return []
    at = time.strftime("%H:%M:%S", time.localtime(gone.wall_seconds))
    return [[("ended ", "warn"), (f"{at}: {gone.reason}", "muted"), (" · last state kept", "faint")]]


def _training(trainers: list[TrainerView]) -> dict[str, Piece]:
    steps = [n for t in trainers if (n := t.number("step")) is not None]
    paces = [n for t in trainers if (n := t.number("step_seconds")) is not None]
    ages = [n for t in trainers if (n := t.number("step_age_seconds")) is not None]
    etas = [n for t in trainers if (n := t.number("eta_seconds")) is not None]
    losses = [n for t in trainers if (n := t.number("loss")) is not None]
    shares = [
        s
        for t in trainers
        if (s := loader_share(t.number("loader_wait_seconds"), t.number("step_seconds"))) is not None
    ]
    stale = bool(ages and paces and max(ages) > 10 * max(paces) and max(ages) > 5)
    cells: dict[str, Piece] = {
        "step": (f"{min(steps):,.0f}", "text") if steps else DASH,
        "pace": (seconds_text(max(paces)), "text") if paces else DASH,
        "age": (_short_age(max(ages)), "warn" if stale else "muted") if ages else DASH,
        "eta": (age_text(max(etas)), "muted") if etas else DASH,
        "loss": (f"{losses[0]:#.4g}", "text") if losses else DASH,
        "input": (percent(max(shares) * 100), "warn" if max(shares) >= STARVED else "muted") if shares else DASH,
    }
    return cells


def _short_age(seconds: float) -> str:
    return seconds_text(seconds) if seconds < 1 else age_text(seconds)


def _memory(host: HostView, trainers: list[TrainerView]) -> dict[str, Piece]:
    """Of the rank with the least room."""
    rooms: list[tuple[float, AllocView]] = []
    for trainer in trainers:
        for allocator in trainer.allocators:
            reserved = allocator.number("reserved_bytes")
            if reserved is not None:
                left = headroom(host, allocator)
                rooms.append((left if left is not None else float("inf"), allocator))
    if not rooms:
        return {"memory": DASH, "left": DASH}
    left, allocator = min(rooms, key=lambda room: room[0])
    allocated, reserved = allocator.number("allocated_bytes"), allocator.number("reserved_bytes")
    text = f"{gib(allocated) if allocated is not None else '–'}/{gib(reserved or 0)} GiB"
    tight = left < 4 * (1 << 30)
    return {
        "memory": (text, "text"),
        "left": (f"{gib(left)} GiB", "warn" if tight else "text") if left != float("inf") else DASH,
    }


def _notes(job: JobView, trainers: list[TrainerView]) -> list[list[Piece]]:
    if job.worst is not None and job.worst_reason:
        return [[("worst: ", "warn"), (job.worst_reason, "muted")]]
    shares = [
        (s, t)
        for t in trainers
        if (s := loader_share(t.number("loader_wait_seconds"), t.number("step_seconds"))) is not None
    ]
    if shares:
        share, trainer = max(shares, key=lambda entry: entry[0])
        if share >= STARVED:
            rank = trainer.definition.rank
            name = f"rank {rank} " if rank is not None and len(trainers) > 1 else ""
            return [[("input: ", "warn"), (f"{name}waits for its data {percent(share * 100)} of the step", "muted")]]
    ooms = sum(a.number("ooms") or 0 for t in trainers for a in t.allocators)
    if ooms:
        return [[("memory: ", "warn"), (f"torch counted {ooms:.0f} out-of-memory errors", "muted")]]
    return []


def _outside(host: HostView, job: JobView) -> list[Piece]:
    """What can be said of a job without a probe: memory, load, age."""
    out: list[Piece] = []
    used = held(job)
    if used is not None:
        out.append((f"{gib(used)} GiB", "text"))
    load = [n for p in job.processes if (n := p.number("cpu_percent")) is not None]
    if load:
        out.append((f" · CPU {percent(sum(load))}", "muted"))
    starts = [p.definition.start_time for p in job.processes if p.definition.start_time is not None]
    if starts and host.wall_seconds is not None:
        out.append((f" · since {age_text(max(0.0, host.wall_seconds - min(starts)))}", "muted"))
    out.append((" · inside: no probe" if out else "inside: no probe", "faint"))
    return out


def held(job: JobView) -> float | None:
    """Bytes the driver says the processes of a job hold, None where it does not say."""
    readings = [u.reading("used_bytes") for p in job.processes for u in p.uses if u.gone is None]
    known = [float(r) for r in readings if isinstance(r, (int, float)) and not isinstance(r, Unknown)]
    return sum(known) if known else None


def devices_of(host: HostView, job: JobView) -> list[int]:
    """The indices of the devices a job uses."""
    ids = {a.gpu for t in job.trainers for a in t.allocators} | {u.gpu for p in job.processes for u in p.uses}
    return sorted(d.definition.index for d in host.devices if d.id in ids)
