"""What an entry of the log is about: its job or its GPU as it is now, and what the doctor says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model.device_state import judge
from ...model.job_ends import end_of, last_state
from ...text.process_name import shown_command
from ...text.units import age_text, bytes_text, duration_text
from ..background.journal import about_job
from ..background.log_entry import (
    NO_LONGER,
    PROBE_LOST,
    RUNNING,
    SOLVED,
    WARNING_GONE,
    LogEntry,
    name_of_job,
)

if TYPE_CHECKING:
    from ...store.view import DeviceView, HostView, JobView
    from ..background.finding_history import Case

Fact = tuple[str, str]
"""A label and its text."""
MEANS = {
    ("jobs", RUNNING): "it was running before gpuscope started: its own start is not known",
    ("jobs", "killed"): "a signal ended it; if the kernel's OOM killer sent it, dmesg says so",
    ("jobs", PROBE_LOST): "its process goes on; its steps are no longer known",
    ("memory", "OOM"): "an allocation failed; on a full GPU any further one will",
    ("memory", "survived"): "an allocation failed, and the training went on",
    ("memory", "retry"): "cudaMalloc failed: torch emptied its cache and tried again, which makes "
    "the step slow",
    ("gpu", "hung"): "the driver's call has not returned: every reading of this GPU is old",
    ("gpu", "lost"): "the driver no longer reaches the GPU: what ran on it cannot go on",
    ("gpu", "throttled"): "its clocks are lowered: steps take longer while this lasts",
    ("probe", "attached"): "from here on its steps, its memory and its stacks can be read",
    ("probe", "detached"): "from here on its steps are no longer known",
    ("probe", "gap"): "readings of this time are missing",
    ("probe", "samples lost"): "readings of this time are missing",
    ("findings", SOLVED): "the readings no longer show it",
    ("findings", WARNING_GONE): "the readings no longer show it",
    ("findings", NO_LONGER): "the readings no longer show it, or cannot, as while a training hangs",
}
"""What an entry means for the user's training, by group and word."""


_RANK = re.compile(r"rank \d+$")


def means(entry: LogEntry) -> str:
    """Return what happened in plain words, "" where its text says it all."""
    return MEANS.get((entry.group, entry.word), "")


def job_of(entry: LogEntry, host: HostView | None) -> JobView | None:
    """Return the job that an entry is about, while it is known."""
    jobs = host.jobs if host is not None else ()
    return next((job for job in jobs if job.key == entry.job), None) if entry.job else None


def device_of(entry: LogEntry, host: HostView | None) -> DeviceView | None:
    """Return the GPU that an entry is about."""
    devices = host.devices if host is not None else ()
    key = entry.place[1] if entry.place[:1] == ("device",) else None
    name = entry.place[2] if entry.place[:1] == ("finding",) and len(entry.place) > 2 else None
    return next((d for d in devices if d.key == key or f"GPU {d.definition.index}" == name), None)


def facts_of_job(job: JobView, host: HostView) -> list[Fact]:
    """Return what a job is and how it is now."""
    about = " · ".join(part for part in (name_of_job(job), about_job(host, job)) if part)
    processes = {t.process for t in job.trainers} | {p.id for p in job.processes}
    commands = (p.definition.command for p in host.processes if p.id in processes)
    command, now = next(filter(None, commands), None), _job_now(job)
    out = [("Job", about)]
    out += [("Command", shown_command(command))] if command else []
    return [*out, ("Now", now)] if now else out


def _job_now(job: JobView) -> str:
    """Return what a job does now, "" if it has ended, because its entry says how."""
    if end_of(job) is not None:
        return ""
    if not job.trainers:
        return "runs without a probe: its steps are not known"
    first = job.trainers[0]
    steps, ages = first.number("step_seconds"), first.number("step_age_seconds")
    parts = [*last_state(job)]
    parts += [f"{duration_text(steps)} a step"] if steps else []
    parts += [f"last step {age_text(ages)} ago"] if ages is not None and ages >= 1 else []
    return " · ".join(parts) or "runs"


def facts_of_device(device: DeviceView, host: HostView) -> list[Fact]:
    """Return what a GPU is and its state now."""
    d = device.definition
    total, used = d.total_bytes, device.number("used_bytes")
    parts = [d.name, bytes_text(total) if total else "", d.uuid or ""]
    state = judge(host, device)
    now = [f"{state.word}: {state.reason}" if state.reason else state.word]
    now += (
        [f"{bytes_text(used)} of {bytes_text(total)} in use"] if used is not None and total else []
    )
    users = [f"{j.title} of {j.user}" for j in host.jobs if _runs_on(j, device)]
    out = [("GPU", " · ".join(filter(None, parts))), ("Now", " · ".join(now))]
    return [*out, ("Users", ", ".join(users))] if users else out


def _runs_on(job: JobView, device: DeviceView) -> bool:
    uses = {a.gpu for t in job.trainers for a in t.allocators if t.gone is None}
    uses |= {u.gpu for p in job.processes for u in p.uses if p.gone is None}
    return device.id in uses


def findings_on(
    entry: LogEntry, device: DeviceView | None, cases: Sequence[Case]
) -> tuple[Case | None, list[Case]]:
    """Return the case that an entry is about, and those that hold now of its job, rank or GPU."""
    own = next((case for case in cases if entry.place[1:] == _place(case)), None)
    where = f"GPU {device.definition.index}" if device is not None else ""
    rank = match[0] if (match := _RANK.search(entry.who)) else ""
    of_job = [case for case in cases if entry.job and case.job == entry.job]
    if rank:
        of_job = [one for one in of_job if rank in one.finding.where.split(", ")]
    here = [case for case in cases if where and case.finding.where == where]
    return own, [case for case in (*of_job, *here) if case is not own and not case.past]


def _place(case: Case) -> tuple[object, ...]:
    return (case.finding.pitfall, case.finding.where)
