"""This module makes entries of the log of what probes and agents report."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...store.view import by_id
from .log_entry import LogEntry, name_of_job

if TYPE_CHECKING:
    from ...store.view import HostView, JobView
    from ...wire.frames import Event


class Words(NamedTuple):
    """Which group an event belongs to, the word for it, and how grave it is."""

    group: str
    word: str
    token: str


WORDS = {
    "oom": Words("memory", "OOM", "bad"),
    "retry": Words("memory", "retry", "warn"),
    "resumed": Words("jobs", "resumed", "ok"),
    "phase": Words("jobs", "phase", "muted"),
    "xid": Words("gpu", "XID", "bad"),
    "attach": Words("probe", "attached", "ok"),
    "detach": Words("probe", "detached", "muted"),
    "problem": Words("probe", "problem", "warn"),
    "gap": Words("probe", "gap", "warn"),
    "dropped": Words("probe", "samples lost", "warn"),
    "skip": Words("jobs", "skipped", "muted"),
    "note": Words("probe", "note", "muted"),
}
"""``gone`` and ``stall`` are not among them. The end of a job has an entry with its reason and its
last loss; for a hang the doctor makes the entry, because it knows which rank waits for which.
"""
OOM_STATES = {
    "withdrawn": Words("memory", "survived", "warn"),
    "unconfirmed": Words("memory", "OOM?", "warn"),
}


def event_entry(
    host: HostView, event: Event, job: JobView | None, offset: float
) -> LogEntry | None:
    """Return the entry of an event, None where another entry covers it.

    ``job`` is that of the trainer which the event is about; ``offset`` leads from the host's
    monotonic clock to its wall clock.
    """
    words = WORDS.get(event.e)
    if words is None or (event.e == "note" and "how" in event.data):
        return None  # the last words of a trainer are in the entry of its job's end
    if event.e == "oom":
        words = OOM_STATES.get(str(event.data.get("state", "")), words)
    device = by_id(host.devices, event.id)
    place: tuple[object, ...] = ()
    if job is not None:
        rank = next((t.definition.rank for t in job.trainers if t.id == event.id), None)
        who = name_of_job(job) if rank is None else f"{job.title} rank {rank}"
        place = ("job", job.key)
    elif device is not None:
        who, place = f"GPU {device.definition.index}", ("device", device.key)
    else:
        who = host.name
    serial = f"e{event.m}/{event.id}/{event.e}"
    at = offset + event.m / 1e9
    text = event.text.rstrip(".")
    key = job.key if job is not None else ""
    return LogEntry(at, words.group, words.word, who, text, words.token, serial, place, key)
