"""Make the chapter of a host: what happened on it, from a store that has read it.

It is a recording, a black box, or what a running viewer has seen. Devices, jobs and findings are
judged by the same functions that the screens use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..doctor.finding import Report
from ..doctor.report import summary
from ..model.device_state import judge, mute
from ..model.device_trainings import told_input
from ..model.job_ends import end_of, end_text, job_end
from ..model.lost_loss import lost_loss
from ..model.pace import counts_of
from ..model.ranks import name_of, running
from ..model.stalls import find_stall
from ..model.step_colours import SPLIT_TOKENS
from ..model.step_time import SPLIT, measured_step, shares_of, words_of
from ..store.view import Gone, HistoryOf, HostView, JobView, TrainerView, by_key
from ..text.clock import clock_text
from ..text.units import DASH, amount_text, bytes_text, count_text, duration_text, percent_text
from ..wire.frames import Event
from . import environment, findings, memory, time_rows, timelines
from .content import (
    BarRow,
    Chapter,
    Code,
    Figure,
    Figures,
    Part,
    Section,
    Sentences,
    Table,
    Timeline,
    Tone,
    Waterfall,
)
from .documents import Document
from .timelines import Span, zone_text

if TYPE_CHECKING:
    from ..store.store import Store

MAX_JOBS = 24
MAX_RANKS = 64
MAX_EVENTS = 300
BEFORE_THE_END_SECONDS = 0.5
"""How long before its end a trainer that has ended is shown."""
TOLD = frozenset(
    ("oom", "retry", "stall", "resumed", "problem", "gap", "dropped", "skip", "note", "gone")
)
"""Kinds of events that are listed; samples, attaching and phases are not."""
TONES: dict[str, Tone] = {"problem": "bad", "warning": "warn"}
STACK = ("at ", "called at ")
"""How notes of a black box begin that are lines of the trainer's last stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A host and what is known of its past.

    ``at`` returns the host as it was at a moment of its monotonic clock, and ``begin`` is the
    oldest known one. ``times`` are documents of ``gpuscope why``, one for each job whose time is
    known. ``report`` is what the doctor has found, None where another chapter has it. ``hosts`` is
    how many hosts the page has.
    """

    host: HostView
    history: HistoryOf
    at: Callable[[float], HostView | None]
    begin: float
    report: Report | None
    times: Sequence[Document] = ()
    hosts: int = 1

    @classmethod
    def of(cls, store: Store, host: HostView, history: HistoryOf, **more: Any) -> Watched:
        """Return what a store knows of a host, with ``more`` of these fields."""
        oldest = store.oldest_seconds(host.key)
        begin = oldest if oldest is not None else host.sampled_seconds or 0.0
        at = partial(store.host_at, host.key)
        return cls(host=host, history=history, at=at, begin=begin, **more)


def chapter(watched: Watched, title: str, kind: str, problems: Sequence[str] = ()) -> Chapter:
    host = watched.host
    span = _span(watched)
    when = _when(span)
    sections = [_happened(watched, span)]
    found = watched.report
    if found is not None and (found.findings or found.problems or found.abstained):
        sections.append(replace(findings.section(found, when), lead=""))
    for document in watched.times:
        sections += time_rows.sections(document, named=len(watched.times) > 1)
    sections += [_step(watched, when)] if not watched.times else []
    sections.append(_memory(watched, span))
    sections.append(_over_time(watched, span))
    sections.append(_devices(watched, span))
    sections.append(_events(watched, span))
    sections.append(environment.section(host, when))
    return Chapter(
        title, kind, [one for one in sections if one.parts], _facts(host, span), problems
    )


def _span(watched: Watched) -> Span:
    host = watched.host
    end = host.sampled_seconds if host.sampled_seconds is not None else watched.begin
    begin = min(watched.begin, end)
    wall = None if host.wall_seconds is None else host.wall_seconds - (end - begin)
    buckets = timelines.buckets_for(host, watched.history, watched.hosts)
    return Span(begin, end, wall, buckets)


def _when(span: Span) -> str:
    if span.wall is None:
        return duration_text(span.seconds)
    first = clock_text(span.wall, "%Y-%m-%d %H:%M:%S")
    return f"{first} to {clock_text(span.wall + span.seconds)}"


def _facts(host: HostView, span: Span) -> list[tuple[str, str]]:
    facts = [("Host", host.name), ("Time", _when(span)), ("Length", duration_text(span.seconds))]
    if span.wall is not None:
        facts.append(("Time zone", zone_text(span.wall)))
    if host.badge:
        facts.append(("Data", host.badge))
    return facts


# ── what happened ──


def _happened(watched: Watched, span: Span) -> Section:
    host = watched.host
    jobs = [job for job in host.jobs if job.trainers]
    ended = [job for job in jobs if end_of(job) is not None]
    trainers = sum(len(job.trainers) for job in jobs)
    ranks = f"{count_text(trainers, 'rank')}, {len(ended)} of {len(jobs)} ended"
    figures = [Figure("trainings", str(len(jobs)), ranks)]
    if host.devices or host.nvml is not None:
        figures.insert(0, Figure("GPUs", str(len(host.devices)), _models(host)))
    found = watched.report
    for severity, tone in TONES.items():
        if found is not None:
            count = sum(one.severity == severity for one in found.findings)
            figures.append(Figure(f"{severity}s", str(count), "", tone if count else "ok"))
    parts: list[Part] = [Figures(figures, source="probe, NVML, gpuscope doctor", when=_when(span))]
    if jobs:
        parts.append(_jobs(host, jobs[:MAX_JOBS], span))
    stack = [event.text for event in host.events if event.e == "note"]
    lines = [text for text in stack if text.startswith(STACK)]
    if lines:
        parts.append(Code("The stack of its last exception", lines, source="black box"))
    ends = _ends(ended)
    if ends:
        parts.append(Sentences(ends))
    return Section("What happened", parts, summary(found) if found is not None else "")


def _models(host: HostView) -> str:
    names = [device.definition.name or "unknown model" for device in host.devices]
    if not names:
        return host.nvml.text if host.nvml is not None else ""
    return ", ".join(dict.fromkeys(names))


def _ends(jobs: Sequence[JobView]) -> list[str]:
    found = []
    for job in jobs:
        end = job_end(job)
        if end is not None and end.text:
            found.append(f"{job.title}: {end.phrase}. {end.text.rstrip('.')}.")
    return found


def _jobs(host: HostView, jobs: Sequence[JobView], span: Span) -> Table:
    head = ("Training", "Ranks", "State", "Step", "Step time", "Input", "Loss", "Peak memory")
    rows = [_job_row(host, job, span) for job in jobs]
    tones: dict[int, Tone] = {
        number: "bad"
        for number, job in enumerate(jobs)
        if (end := job_end(job)) is not None and end.kind == "bad"
    }
    return Table(
        "Trainings", head, rows, (1, 3, 4, 5, 6, 7),
        ("Step time is of the slowest rank; input and peak memory are the largest of a rank.",),
        tones, source="probe", when=f"the last readings, by {span.text_at(span.end)}",
    )  # fmt: skip


def _job_row(host: HostView, job: JobView, span: Span) -> tuple[str, ...]:
    over, end = end_of(job), job_end(job)
    lost = lost_loss(host, job)
    living = "stalled" if find_stall(job.trainers) is not None else "runs"
    if lost is not None and living == "runs":
        living = lost.text
    state = living if over is None else end.phrase if end is not None else "ended"
    if over is not None:
        state += f" at {span.text_at(over.monotonic_seconds)}"
    steps = counts_of(job.trainers).values()
    slowest = max(job.trainers, key=lambda one: one.number("step_seconds") or 0.0)
    step, loss = slowest.number("step_seconds"), _loss(job)
    share = max(
        (told for t in job.trainers if (told := told_input(t)[0]) is not None), default=None
    )
    peaks = [
        value
        for one in job.trainers
        for allocator in one.allocators
        if (value := allocator.number("peak_allocated_bytes")) is not None
    ]
    return (
        job.title,
        str(len(job.trainers)),
        state,
        f"{min(steps):,.0f}" if steps else DASH,
        duration_text(step) if step is not None else DASH,
        percent_text(share) if share is not None else DASH,
        f"{loss:.4g}" if loss is not None else lost.value if lost is not None else DASH,
        bytes_text(max(peaks)) if peaks else DASH,
    )


def _loss(job: JobView) -> float | None:
    return next((v for one in job.trainers if (v := one.number("loss")) is not None), None)


# ── time, of a recording without the ledger of its trainers' time ──


def _step(watched: Watched, when: str) -> Section:
    parts: list[Part] = []
    for job in [job for job in watched.host.jobs if job.trainers][: timelines.MAX_JOBS]:
        shares, step = shares_of(job.trainers), measured_step(job.trainers)
        if step is None:
            continue
        words = words_of(shares)
        bars = [
            BarRow(
                words[name],
                duration_text(step * shares[name]),
                shares[name],
                SPLIT_TOKENS[name],
            )
            for name in SPLIT
            if name in shares
        ]
        title = f"{job.title}: a step, as a mean over {len(job.trainers)} ranks"
        whole = BarRow("a step", duration_text(step), 1.0)
        parts.append(
            Waterfall(title, bars, whole, source="probe", when=f"the last steps of {when}")
        )
    lead = "The parts of the last steps." if parts else ""
    return Section("Where the time goes", parts, lead)


# ── memory ──


def _memory(watched: Watched, span: Span) -> Section:
    parts: list[Part] = []
    for job in [job for job in watched.host.jobs if job.trainers][: timelines.MAX_JOBS]:
        moment, then = _before_its_end(watched, job)
        if then is None:
            continue
        past = by_key(then.jobs, job.key)
        found = memory.of_job(then, past, watched.history) if past is not None else []
        when = f"at {span.text_at(moment)}"
        for rank, table in found[:1]:
            title = f"{job.title}, {rank}, {table.title}"
            parts.append(replace(table, title=title, when=when))
        every = memory.side_by_side(found[:MAX_RANKS], f"Every rank of {job.title}", when)
        parts += [every] if every is not None else []
    return Section(
        "Where the memory is", parts, "Of each training, the rank that has most reserved."
    )


def _before_its_end(watched: Watched, job: JobView) -> tuple[float, HostView | None]:
    """Return the last moment at which a job was seen to run, and the host as it was then."""
    over, host = end_of(job), watched.host
    if over is None:
        return host.sampled_seconds or watched.begin, host
    moment = over.monotonic_seconds - BEFORE_THE_END_SECONDS
    return moment, watched.at(moment)


# ── over time ──


def _over_time(watched: Watched, span: Span) -> Section:
    host, history = watched.host, watched.history
    trainers = [one for job in host.jobs for one in job.trainers]
    marks = timelines.marks_of(host, trainers, span)
    parts: list[Timeline] = list(timelines.of_devices(host, history, span, marks))
    jobs = [job for job in host.jobs if job.trainers]
    for job in jobs[: timelines.MAX_JOBS]:
        own = timelines.marks_of(host, job.trainers, span)
        for chart in timelines.of_trainers(host, job.trainers, history, span, own):
            title = f"{chart.title} of {job.title}" if len(jobs) > 1 else chart.title
            parts.append(replace(chart, title=title))
    cpu = timelines.of_host(host, history, span, marks)
    parts += [cpu] if cpu is not None else []
    return Section("Over time", parts)


# ── devices, events ──


def _devices(watched: Watched, span: Span) -> Section:
    host = watched.host
    rows: list[list[str]] = []
    tones: dict[int, Tone] = {}
    for at, device in enumerate(host.devices):
        state = judge(host, device, watched.history)
        silent = mute(device) is not None  # then its readings are of before
        number_of = (lambda _: None) if silent else device.number
        used, total = number_of("used_bytes"), device.definition.total_bytes
        cells = [
            memory.device_name(device),
            _with_unit(number_of("utilization_percent"), " %"),
            _with_unit(number_of("tensor_active_percent"), " %"),
            f"{amount_text(used)} / {amount_text(total)}" if used is not None and total else DASH,
            _with_unit(number_of("temperature_celsius"), " °C"),
            _with_unit(number_of("power_watts"), " W"),
            f"{state.word}: {state.reason}" if state.reason else state.word,
        ]
        rows.append(cells)
        if state.kind in ("warn", "bad"):
            tones[at] = state.kind
    if not rows:
        return Section("GPUs", [])
    head = ("GPU", "Load", "Tensor cores", "Used / total GiB", "Temperature", "Power", "State")
    table = Table(
        "", head, rows, (1, 2, 3, 4, 5), (), tones, source="NVML", when=span.text_at(span.end)
    )
    parts: list[Part] = [table]
    ranks = _ranks(host, span)
    if ranks is not None:
        parts.append(ranks)
    return Section("GPUs and ranks", parts, "The last readings.")


def _with_unit(value: float | None, unit: str) -> str:
    return DASH if value is None else f"{value:.0f}{unit}"


def _ranks(host: HostView, span: Span) -> Table | None:
    trainers = [(job, one) for job in host.jobs for one in job.trainers]
    if len(trainers) < 2:
        return None
    steps = {t.key: t.number("step") for t in host.trainers}
    for job in host.jobs:
        steps |= counts_of(running(job.trainers))
    rows = [_rank_row(job, one, steps.get(one.key)) for job, one in trainers[:MAX_RANKS]]
    notes = [f"{len(trainers) - MAX_RANKS} more are left out."] * (len(trainers) > MAX_RANKS)
    head = ("Rank", "Training", "PID", "Step", "Step time", "95th percentile", "Waits at")
    return Table(
        "Ranks", head, rows, (2, 3, 4, 5), notes, source="probe",
        when=span.text_at(span.end), folded=len(rows) > 16,
    )  # fmt: skip


def _rank_row(job: JobView, one: TrainerView, step: float | None) -> tuple[str, ...]:
    seconds, p95 = one.number("step_seconds"), one.number("step_seconds_p95")
    at = one.reading("stall_at")
    return (
        name_of(one),
        job.title,
        str(one.definition.pid),
        f"{step:,.0f}" if step is not None else DASH,
        duration_text(seconds) if seconds is not None else DASH,
        duration_text(p95) if p95 is not None else DASH,
        at if isinstance(at, str) and at else DASH,
    )


def _events(watched: Watched, span: Span) -> Section:
    host = watched.host
    names = {
        one.id: name_of(one) if len(host.jobs) < 2 else f"{job.title}, {name_of(one)}"
        for job in host.jobs
        for one in job.trainers
    }
    names |= {a.id: names[one.id] for one in host.trainers for a in one.allocators}
    names |= {one.id: f"GPU {one.definition.index}" for one in host.devices}
    told = (
        (
            span.text_at(event.m / 1e9),
            names.get(event.id, "host").replace(" ", "\N{NO-BREAK SPACE}"),
            event.e,
            _text_of(event),
        )
        for event in host.events
        if event.e in TOLD
        and (event.e != "gone" or event.id in names)
        and not event.text.startswith(STACK)
    )
    rows = list(dict.fromkeys(told))  # a trainer goes with each of its allocators
    if not rows:
        return Section("Events", [])
    notes = [f"{len(rows) - MAX_EVENTS} earlier ones are left out."] * (len(rows) > MAX_EVENTS)
    table = Table(
        "", ("Time", "Of", "Event", "What"), rows[-MAX_EVENTS:], (), notes, source="probe, agent",
        folded=len(rows) > 40,
    )  # fmt: skip
    return Section("Events", [table])


def _text_of(event: Event) -> str:
    """Return what happened; of an end how it came, as everywhere."""
    return end_text(Gone(0.0, None, event.text)) if event.e == "gone" else event.text
