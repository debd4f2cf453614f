"""This module makes lines of a host's jobs.

Mine come first and in full, those of other users take one line each, and what has ended says
its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ...model.device_state import Kind
from ...model.device_trainings import told_input
from ...model.job_ends import NOTHING_SENT, counts_text, end_of, gravest_of, job_end
from ...model.job_order import worst_first
from ...model.job_state import (
    JobState,
    Judged,
    broken_states,
    job_state,
    judge_devices,
    on_sound_devices,
)
from ...model.lost_loss import worst_told
from ...model.memory_room import TIGHT_BYTES, MemoryRoom, rooms
from ...model.pace import Pace, pace_of, seconds_left
from ...model.ranks import pid_of, running
from ...model.reading_age import old_seconds
from ...model.stalls import is_overdue, worst_rank
from ...model.step_parts import StepParts, step_parts
from ...store.view import Entity, HistoryOf, HostView, JobView, TrainerView, no_history
from ...text.ranges import interval_text, ranges_text
from ...text.styled import Line, Piece
from ...text.units import (
    age_text,
    ago_text,
    brief_age_text,
    brief_duration_text,
    brief_left_text,
    bytes_text,
    count_text,
    percent_text,
    sizes_text,
)
from ...wire.frames import Unknown
from ..shell.keymap import key_of
from ..theme import UNICODE
from ..widgets.text import DASH
from .job_notes import (
    GROWTH,
    broken_line,
    end_notes,
    input_token,
    log_lines,
    loss_lines,
    running_notes,
)
from .wide_job_cells import wide_cells

USER = "user:"
"""Begins the key of a line that stands for all jobs of another user."""
SURE_ETA_SECONDS, SURE_ETA_STEPS = 60.0, 30
"""A shorter time left is shown only after so many steps."""
LOSS_CELLS, INPUT_CELLS = 8, 6
NO_MARKS: Mapping[str, Kind] = MappingProxyType({})
NO_STEP = "no step"
"""Stands for the step time while no step ends; how long ago the last one did is the step age."""


@dataclass(frozen=True, slots=True)
class JobLine:
    """What the list shows of one job.

    ``cells`` are by column of ``job_list.HEADINGS``, ``notes`` are the lines below the job.
    ``entity`` is what Enter opens, None for a group.
    """

    key: str
    cells: dict[str, Piece]
    notes: list[Line] = field(default_factory=list)
    entity: Entity | None = field(default=None, compare=False)
    span: Line = field(default_factory=list)
    """Drawn instead of the cells after "job" where a line has no inside to tell of."""
    over: bool = False
    """It has ended: what has no column is left out."""
    folds: bool = False
    """It stands for the jobs that ended, whose own lines follow."""
    split: StepParts | None = None
    """Where the time of a step goes, drawn below where there is room."""
    kind: Kind = "ok"
    """How grave the state of the job is; a sign before its name says so."""
    broken: bool = False
    """It runs on a device that no program can rely on."""


def job_lines(
    host: HostView,
    mine_only: bool = False,
    text: str = "",
    more: Mapping[str, Line] | None = None,
    history: HistoryOf = no_history,
    sent: Mapping[int, str] = NOTHING_SENT,
    marks: Mapping[str, Kind] = NO_MARKS,
) -> list[JobLine]:
    """Return the lines of all jobs, mine first.

    Before several that ended stands a line that folds them. With ``text`` only the jobs that
    contain it are listed. ``more`` holds further notes by the key of the job, ``sent`` what was
    done here to end a process, by its pid. ``marks`` say how grave what is found of a job is.
    """
    jobs = worst_first(host)
    mine = [job for job in jobs if job.mine]
    others = [job for job in jobs if not job.mine]
    judged = judge_devices(host, history)
    lines = [_line(host, job, history, sent, judged) for job in mine]
    if not mine_only:
        alone = len(others) <= 1
        lines += (
            [_line(host, job, history, sent, judged) for job in others]
            if alone
            else list(_by_user(host, others))
        )
    lines = [
        replace(line, kind=_gravest(line.kind, [[("", marks[line.key])]]))
        if line.key in marks
        else line
        for line in lines
    ]
    for line in lines if more else ():
        if more and line.key in more and not line.over:
            heads = [note[0][0] for note in line.notes]  # what a forecast rests on comes last
            at = heads.index(GROWTH) if GROWTH in heads else len(heads)
            line.notes.insert(at, more[line.key])
    living, ended = _parted(lines, {job.key: pid_of(job) for job in host.jobs})
    if text:
        needle = text.casefold()
        return [line for line in (*living, *ended) if needle in _text(line).casefold()]
    return [*living, *_folded(host, ended, sent)]


def _parted(
    lines: list[JobLine], pids: Mapping[str, int | None]
) -> tuple[list[JobLine], list[JobLine]]:
    """Return the lines of what runs, the gravest first, and of what ended, in one line each.

    What ended is in the order of the keys in ``pids``: the newest comes first.
    """
    order = list(pids)
    ended = sorted((line for line in lines if line.over), key=lambda line: order.index(line.key))
    short = [
        replace(
            line,
            cells={name: line.cells[name] for name in ("job", "gpu")},
            span=line.notes[0],
            notes=[],
        )
        for line in ended
    ]
    alive = [line for line in lines if not line.over]
    return sorted(
        _told_apart(alive, pids), key=lambda line: ("bad", "warn", line.kind).index(line.kind)
    ), short


def _told_apart(lines: Sequence[JobLine], pids: Mapping[str, int | None]) -> Iterable[JobLine]:
    """Yield the lines, those that have one name with the pid of their job behind it."""
    named = Counter(line.cells["job"][0] for line in lines)
    for line in lines:
        name, token = line.cells["job"]
        if named[name] > 1 and (pid := pids.get(line.key)) is not None:
            line = replace(line, cells={**line.cells, "job": (f"{name} ({pid})", token)})
        yield line


def _folded(host: HostView, ended: Sequence[JobLine], sent: Mapping[int, str]) -> list[JobLine]:
    """Return the lines of what ended, behind one that stands for all where there are several.

    What lives on without its probe is not among them, and comes first. The keys ask the newest of
    those that ended, and nothing that lives.
    """
    ends = {job.key: (end_of(job), job_end(job, sent)) for job in host.jobs}
    over = [(line, *ends[line.key]) for line in ended]
    alive = [line for line, _, end in over if end is None or end.word == "left"]
    over = [one for one in over if one[0] not in alive]
    if len(over) < 2:
        return [*alive, *(line for line, _, _ in over)]
    times = [
        gone.wall_seconds
        for _, gone, _ in over
        if gone is not None and gone.wall_seconds is not None
    ]
    how = [end for _, _, end in over if end is not None]
    ago = ""
    if times and host.wall_seconds is not None:
        ago = f", the last {ago_text(host.wall_seconds - max(times))}"
    cells = {"job": (f"{len(over)} ended while watched{ago}: ", "muted"), "gpu": ("", "text")}
    span: Line = [(counts_text(how), gravest_of(how))]
    first = over[0][0].entity
    fold = JobLine("ended:", cells, [], first, span, over=True, folds=True)
    return [*alive, fold, *(line for line, _, _ in over)]


def _text(line: JobLine) -> str:
    pieces = [*line.cells.values(), *line.span, *(piece for note in line.notes for piece in note)]
    return " ".join(text for text, _ in pieces)


def _by_user(host: HostView, jobs: Iterable[JobView]) -> Iterable[JobLine]:
    users: dict[str, list[JobView]] = {}
    for job in jobs:
        if end_of(job) is None:
            users.setdefault(job.user or "someone", []).append(job)
    for user, own in users.items():
        indices = sorted({index for job in own for index in devices_of(host, job)})
        sizes = [size for job in own if (size := bytes_on_devices(job)) is not None]
        used = (
            f"{'≥ ' if len(sizes) < len(own) else ''}{bytes_text(sum(sizes))}"
            if sizes
            else "memory unknown"
        )
        trained = sum(bool(job.trainers) for job in own)
        count = count_text(len(own), "job")
        span = [
            (f"{count} · {used}", "text"),
            (f" · {trained} with a probe" if trained else " · no probe", "muted"),
        ]
        yield JobLine(
            f"{USER}{user}",
            {"job": (user, "muted"), "gpu": (ranges_text(indices), "muted")},
            span=span,
        )


def _line(
    host: HostView, job: JobView, history: HistoryOf, sent: Mapping[int, str], judged: Judged
) -> JobLine:
    gone, state = end_of(job), job_state(host, job, history, judged)
    broken = broken_states(host, job, judged)
    trainers = running(job.trainers)
    indices = devices_of(host, job)
    where = (
        ranges_text(indices)
        if indices
        else "cpu"
        if trainers and not any(t.definition.cuda for t in trainers)
        else "–"
    )
    title = job.title + (f" ×{len(trainers)}" if len(trainers) > 1 else "")
    title += "" if job.mine or not job.user else f" ({job.user})"
    cells: dict[str, Piece] = {
        "job": (title, "faint" if gone else "title" if job.mine else "text"),
        "gpu": (where, "text"),
    }
    if not trainers:
        process = job.processes[0] if job.processes else None
        notes = end_notes(host, job, sent)
        if not notes:
            lost = loss_lines(host, job, history)
            notes = [*broken_line(broken), *lost, *log_lines(job)]
        kind = _gravest(state.kind, notes)
        return JobLine(
            job.key,
            cells,
            notes,
            process,
            _outside(host, job),
            over=gone is not None,
            kind=kind,
            broken=bool(broken),
        )
    found = rooms(host.devices, trainers, history, ended=True)
    pace, sound = pace_of(trainers), on_sound_devices(host, trainers, judged)
    cells |= _trainer_cells(host, trainers, sound, pace, state, history) | _memory(host, found)
    if gone:
        cells = {name: (text, "faint") for name, (text, _) in cells.items()}
    notes = end_notes(host, job, sent)
    if not notes:
        notes = [*broken_line(broken), *running_notes(host, job, trainers, sound, found, history)]
    worst, _ = worst_rank(job.trainers)
    line = JobLine(
        job.key,
        cells,
        notes,
        worst or trainers[0],
        over=gone is not None,
        kind=_gravest(state.kind, notes),
        broken=bool(broken),
    )
    return line if pace.stopped else replace(line, split=step_parts(sound, host, history))


def _gravest(kind: Kind, notes: Sequence[Line]) -> Kind:
    """Return how grave a job is by its state and by what stands below it."""
    tokens = {note[0][1] for note in notes}
    return "bad" if "bad" in (kind, *tokens) else "warn" if "warn" in (kind, *tokens) else kind


def _trainer_cells(
    host: HostView,
    trainers: list[TrainerView],
    sound: list[TrainerView],
    pace: Pace,
    state: JobState,
    history: HistoryOf,
) -> dict[str, Piece]:
    """Return what the columns say of the steps.

    ``sound`` are the trainers on no broken device. There is no rate while no step ends, and no ETA
    for a job that will not get there as it is.
    """
    etas = [n for t in trainers if (n := seconds_left(t)) is not None and _is_sure(t, n)]
    of_epoch = any(t.readings.get("progress_of") == "epoch" for t in trainers)
    shares = [s for t in sound if (s := told_input(t)[0]) is not None]
    late = pace.stopped or any(is_overdue(t) for t in trainers)
    step, age = pace.seconds, pace.age_seconds
    if pace.stopped:
        shares = []
    if pace.stopped or state.kind == "bad":
        etas = []
    cells: dict[str, Piece] = {
        "step": (pace.steps_text, "text") if pace.steps_text else DASH,
        "pace": (NO_STEP, "warn")
        if pace.stopped and age is not None
        else (brief_duration_text(step), "text")
        if step is not None
        else DASH,
        "age": (step_age_text(age), "warn" if late else "muted") if age is not None else DASH,
        "eta": (_eta_text(max(etas), of_epoch), "muted") if etas else DASH,
        "loss": loss_piece(host, trainers) or DASH,
        "input": (_input(shares), input_token(host, sound, history)) if shares else DASH,
    }
    return cells | wide_cells(trainers)


def _is_sure(trainer: TrainerView, eta: float) -> bool:
    """Tell whether a time left means something: not that of the first steps of a short run."""
    return eta >= SURE_ETA_SECONDS or (trainer.number("step") or 0.0) >= SURE_ETA_STEPS


def _input(shares: Sequence[float]) -> str:
    """Return the shares of the ranks, from the least to the most where they differ."""
    most, least = percent_text(max(shares)), percent_text(min(shares))
    between = interval_text(least, most).replace(" %–", "–")
    return between if len(between) <= INPUT_CELLS else most


def loss_piece(host: HostView, trainers: Iterable[TrainerView]) -> Piece | None:
    """Return the loss of the first of these that tells one; a NaN of any comes before it.

    One that stays NaN or infinite has the colour of what is bad.
    """
    trainers = list(trainers)
    lost = worst_told(host, trainers)
    if lost is not None:
        return lost.value, "bad" if lost.lasts else "text"
    losses = (n for t in trainers if (n := t.number("loss")) is not None)
    return next(((loss_text(loss), "text") for loss in losses), None)


def loss_text(loss: float) -> str:
    """Return a loss in at most eight cells, with four digits where these fit."""
    text = f"{loss:#.4g}"
    return text if len(text) <= LOSS_CELLS else f"{loss:.2g}"


def _eta_text(seconds: float, of_epoch: bool) -> str:
    """Return the time left in the run, or, labelled so, in the epoch."""
    text = brief_left_text(seconds)
    return f"epoch {text.replace(' ', '')}" if of_epoch else text


def step_age_text(seconds: float) -> str:
    """Return how long ago the last step ended.

    Steps are short: below a second the age is told like their duration.
    """
    return brief_duration_text(seconds) if seconds < 1 else brief_age_text(seconds)


def _memory(host: HostView, found: Sequence[MemoryRoom]) -> dict[str, Piece]:
    """Return the memory of the rank that runs out first, as far as it is known.

    It says what that rank had allocated at most in its last steps, what it has reserved now, and
    what it can still get. Of what was held long ago nothing follows for now: a training takes its
    memory within seconds. What is left follows from what is free on the GPU as well.
    """
    known = [room for room in found if room.fullest.number("reserved_bytes") is not None]
    if not known:
        return {"memory": DASH, "left": DASH}
    allocator, left = known[0].fullest, known[0].headroom_bytes
    allocated, reserved = allocator.number("allocated_bytes"), allocator.number("reserved_bytes")
    text = sizes_text(allocated, reserved or 0.0)
    if old_seconds(host, known[0].allocator) is not None:
        then = (f"{UNICODE.about}{bytes_text(left)}", "faint") if left is not None else DASH
        return {"memory": DASH, "left": then}
    tight = left is not None and left < TIGHT_BYTES
    return {
        "memory": (text, "text"),
        "left": (bytes_text(left), "warn" if tight else "text") if left is not None else DASH,
    }


def _outside(host: HostView, job: JobView) -> Line:
    """Return what can be said of a job without a probe: memory, load, age."""
    out: Line = []
    used = bytes_on_devices(job)
    if used is not None:
        out.append((f"{bytes_text(used)} · ", "text"))
    out.append(("no probe", "faint"))
    if host.link.state != "replay":
        out += [(" · ", "faint"), (key_of("attach"), "accent"), (": attach", "muted")]
    load = [n for p in job.processes if (n := p.number("cpu_percent")) is not None]
    if load:
        out.append((f" · CPU {percent_text(sum(load) / 100)}", "muted"))
    starts = [p.definition.start_time for p in job.processes if p.definition.start_time is not None]
    if starts and host.wall_seconds is not None:
        out.append((f" · since {age_text(max(0.0, host.wall_seconds - min(starts)))}", "muted"))
    return out


def bytes_on_devices(job: JobView) -> float | None:
    """Bytes the driver says the processes of a job hold, None where it does not say."""
    readings = [u.reading("used_bytes") for p in job.processes for u in p.uses if u.gone is None]
    known = [
        float(r) for r in readings if isinstance(r, (int, float)) and not isinstance(r, Unknown)
    ]
    return sum(known) if known else None


def devices_of(host: HostView, job: JobView) -> list[int]:
    """Return the indices of the devices a job uses."""
    ids = {a.gpu for t in job.trainers for a in t.allocators} | {
        u.gpu for p in job.processes for u in p.uses
    }
    return sorted(d.definition.index for d in host.devices if d.id in ids)
