"""The lines below a job: what a user should know of it, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...model.device_state import Kind
from ...model.device_trainings import starving, starving_warns, told_input
from ...model.growth import trend_of
from ...model.job_ends import NOTHING_SENT, end_of, ending_text, job_end, last_state
from ...model.job_state import WELL, JobState
from ...model.late_rank import late_rank
from ...model.lost_loss import lost_loss
from ...model.memory_room import MemoryRoom, alarm
from ...model.ranks import name_of, subject_of
from ...model.reading_age import old_seconds
from ...model.slowdown import of_trainers
from ...model.stalls import find_stall, is_ending, worst_rank
from ...model.step_time import SLOWER, slower_than_before
from ...store.view import HistoryOf, HostView, JobView, TrainerView, by_id
from ...text.clock import clock_text
from ...text.styled import Line
from ...text.units import age_text, bytes_text, percent_text
from .event_rows import DAY, at_text

if TYPE_CHECKING:
    from ..background.finding_history import Case

IDLE_SECONDS, OLD_LOG_SECONDS = 60.0, 60.0
ON_JOB_LINES = frozenset((
    "stall.all_in_collective", "stall.loader", "stall.ranks_differ", "stall.alone",
    "live.memory_grows", "live.input_bound", "ranks.straggler", "ranks.slow_input",
    "live.slower", "loss.fp16", "loss.diverged", "loss.sudden", "loss.turned",
))  # fmt: skip
"""Causes of findings that a job's line names too."""
LOST = "device.lost"
"""The cause of a finding that the line of the device's job names too."""
GROWTH = "growth: "
"""Begins the line on what the time until the memory runs out rests on."""


def broken_line(states: Sequence[JobState]) -> list[Line]:
    """Return in a line which devices of a job are broken, and how; none where none is.

    It does not repeat what a device says in its own row.
    """
    out: Line = []
    for state in states:
        out += [(f"{' · ' if out else ''}{state.word}: ", state.kind), (state.where, "text")]
    return [out] if out else []


def state_lines(state: JobState | None) -> list[Line]:
    """Return in a line what is wrong with a job, none where it is well."""
    if state is None or state == WELL:
        return []
    return [[(f"{state.word}: ", state.kind), (state.text, "text")]]


def first_steps(
    host: HostView, cases: Sequence[Case], live: bool, most: int | None = None
) -> dict[str, Line]:
    """Return what to do first about each job whose trouble its own lines name, by its key.

    ``live`` says that the jobs can still be asked. ``most`` is for how many jobs there is room;
    those with a problem, before which the others go, always have it.
    """
    from .next_step import next_lines

    named = ON_JOB_LINES | {LOST}
    told = [case for case in cases if case.grave and case.finding.cause in named]
    bad = [case for case in told if case.finding.severity == "problem"]

    def firsts(cases: Sequence[Case]) -> dict[str, Line]:
        found = (
            (job.key, next(iter(next_lines(host, job, cases, live)), None)) for job in host.jobs
        )
        return {key: line for key, line in found if line is not None} if cases else {}

    if most is None or len(bad) == len(told):
        return firsts(told)
    steps, others = firsts(bad), firsts(told)
    rest = [key for key in others if key not in steps][: max(0, most - len(steps))]
    return steps | {key: others[key] for key in rest}


def marks_of(host: HostView, cases: Sequence[Case]) -> dict[str, Kind]:
    """Return how grave the worst is that the Doctor finds of each job, by the job's key.

    What the row of a GPU marks is not among it, nor how a job ended.
    """
    from ...doctor.finding import SEVERITY_TOKENS
    from ...doctor.live import job_of
    from ...doctor.live_states import OF_A_STATE

    out: dict[str, Kind] = {}
    for case in cases:
        found = case.finding
        if case.grave and not case.dead and found.cause not in OF_A_STATE:
            job = job_of(found, host)
            if job is not None:
                bad = "bad" in (SEVERITY_TOKENS[found.severity], out.get(job.key))
                out[job.key] = "bad" if bad else "warn"
    return out


def end_notes(host: HostView, job: JobView, sent: Mapping[int, str] = NOTHING_SENT) -> list[Line]:
    """Return when and why a job ended, in a line; none where it has not.

    The time has its date if that was on another day. ``sent`` holds, by pid, what was done here
    to end a process.
    """
    gone, end = end_of(job), job_end(job, sent)
    if gone is None or end is None:
        return []
    at, now = "", host.wall_seconds
    if gone.wall_seconds is not None:
        today = clock_text(now if now is not None else gone.wall_seconds, DAY)
        at = f" at {at_text(gone.wall_seconds, today)}"
    return [
        [
            (end.phrase, end.kind),
            (f"{at}{f': {end.text}' if end.text else ''}", "muted"),
            ("".join(f" · {part}" for part in last_state(job)), "faint"),
        ]
    ]


def running_notes(
    host: HostView,
    job: JobView,
    trainers: list[TrainerView],
    sound: list[TrainerView],
    found: Sequence[MemoryRoom],
    history: HistoryOf,
) -> list[Line]:
    """Return what a user should know of a running job, the worst first.

    ``trainers`` are those of its ranks that live, and ``sound`` those of them on no broken device.
    What is only slow waits for what is wrong.
    """
    notes: list[Line] = []
    if is_ending(job.trainers):
        return [ending_note(job)]
    stall = find_stall(job.trainers)
    if stall is not None:
        notes.append(
            [("waiting: ", "muted") if stall.busy else ("stalled: ", "bad"), (stall.text, "text")]
        )
    notes += loss_lines(host, job, history)
    if stall is None:
        worst, reason = worst_rank(trainers)
        if worst is not None:
            notes.append([("worst: ", "muted"), (reason, "muted")])
    notes += [line for room in found[:1] for line in growth_lines(host, room, len(trainers))]
    return notes or _slow(host, sound, history) or _unread(host, found)


def _unread(host: HostView, found: Sequence[MemoryRoom]) -> list[Line]:
    """Return since when the memory of the rank that runs out first was not read, if for long."""
    age = old_seconds(host, found[0].allocator) if found else None
    return [] if age is None else [[("memory: ", "muted"), (f"read {age_text(age)} ago", "muted")]]


def loss_lines(host: HostView, job: JobView, history: HistoryOf) -> list[Line]:
    """Return since when the loss of a running job is NaN, in a line; none where it is not."""
    found = lost_loss(host, job, history)
    return [[(found.what, "bad"), (f" {found.brief}", "text")]] if found is not None else []


def ending_note(job: JobView) -> Line:
    """Return the line of a job whose ranks end one after another."""
    return [("ending: ", "muted"), (ending_text(job.trainers), "text")]


def growth_lines(host: HostView, room: MemoryRoom, ranks: int) -> list[Line]:
    """Return two lines that say when a rank's memory runs out, and what that rests on.

    There are none where that is unknown.
    """
    ends, trend = room.runs_out, trend_of(room.allocator)
    if ends is None or trend is None or room.headroom_bytes is None:
        return []
    definition = room.trainer.definition
    device = by_id(host.devices, room.allocator.gpu)
    on = f"GPU {device.definition.index}, " if device else ""
    who = name_of(room.trainer) if ranks > 1 else subject_of(room.trainer)
    place = f" ({on}pid {definition.pid})" if ranks > 1 else ""
    pace = f"{bytes_text(room.headroom_bytes)} headroom, +{bytes_text(trend.slope)} per step"
    pace += f" (over {trend.steps:.0f} steps)."
    live = "Live tensors grow: empty_cache() cannot help."
    return [
        [
            ("memory: ", alarm(room) or "muted"),
            (f"{who} runs out in {ends.text}", "text"),
            (place, "muted"),
        ],
        [(GROWTH, "faint"), (f"{pace} {live}", "muted")],
    ]


def input_lines(host: HostView, trainers: Sequence[TrainerView], history: HistoryOf) -> list[Line]:
    """Return who waits for data how long, in a line; none where nobody does."""
    found = most_starving(host, trainers, history)
    if found is None:
        return []
    share, trainer = found
    name = f"{name_of(trainer)} " if len(trainers) > 1 else ""
    text = f"{name}waits for data {percent_text(share)} of {told_input(trainer)[1]}"
    return [[("input: ", input_token(host, trainers, history)), (text, "muted")]]


def most_starving(
    host: HostView, trainers: Sequence[TrainerView], history: HistoryOf
) -> tuple[float, TrainerView] | None:
    """Return the trainer that waits for the largest share of its step, with that share."""
    shares = [(share, t) for t in trainers if (share := starving(host, t, history)) is not None]
    return max(shares, key=lambda entry: entry[0], default=None)


def input_token(host: HostView, trainers: Sequence[TrainerView], history: HistoryOf) -> str:
    """Return how grave the wait for input is, as the doctor takes it."""
    found = most_starving(host, trainers, history)
    warns = found is not None and starving_warns(host, found[1], found[0], history)
    return "warn" if warns else "muted"


def _slow(host: HostView, trainers: Sequence[TrainerView], history: HistoryOf) -> list[Line]:
    """Return what keeps a job slower than it need be, the first that applies.

    It has the colour of a warning only where the doctor warns of it.
    """
    waiting = input_lines(host, trainers, history)
    if waiting:
        return waiting
    late = late_rank(trainers, history, host)
    if late is not None:
        return [[("straggler: ", "warn" if late.warns else "muted"), (late.brief, "muted")]]
    slowdown = of_trainers(trainers, host, history)
    if slowdown is not None:
        return [[("pace: ", "muted"), (slowdown.brief, "muted")]]
    times = slower_than_before(trainers)
    if times is not None and times >= SLOWER:
        return [[("pace: ", "muted"), (f"{times:.1f}× slower than an hour ago", "muted")]]
    ooms = sum(a.number("ooms") or 0 for t in trainers for a in t.allocators)
    if ooms:
        text = f"torch counted {ooms:.0f} out-of-memory errors"
        return [[("memory: ", "muted"), (text, "muted")]]
    phases = {phase for t in trainers if isinstance(phase := t.reading("phase"), str)}
    return [[("phase: ", "faint"), ("evaluating", "muted")]] if phases == {"eval"} else []


def log_lines(job: JobView) -> list[Line]:
    """Return what the end of a job's log says, and since when nothing was computed.

    The line says that it comes from the log.
    """
    out: Line = []
    for process in job.processes[:1]:
        step, total, loss = (process.number(name) for name in ("log_step", "log_total", "log_loss"))
        words = (
            [f"step {step:,.0f}" + (f" of {total:,.0f}" if total is not None else "")]
            if step is not None
            else []
        )
        words += [f"loss {loss:.4g}"] if loss is not None else []
        epoch = process.number("log_epoch")
        words[:0] = [f"epoch {epoch:,.0f}"] if words and epoch is not None else []
        if words:
            age = process.number("log_age_seconds")
            ago = f", {age_text(age)} ago" if age is not None and age >= OLD_LOG_SECONDS else ""
            out.append((f"{', '.join(words)} (from its log{ago})", "text"))
        idle = process.number("idle_seconds")
        if idle is not None and idle >= IDLE_SECONDS:
            out.append((f"{' · ' if out else ''}idle for at least {age_text(idle)}", "warn"))
    return [out] if out else []
