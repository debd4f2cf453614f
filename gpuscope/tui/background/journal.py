"""The journal of what happened to the hosts that are looked at, each thing once.

It follows the pictures of a host: jobs that start and end, findings that open and close, and what
the probes and the driver report. Times are the wall clock of the host, so in a replay those of the
recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...doctor.finding import SEVERITY_TOKENS
from ...model.alerts import Alerts
from ...model.alerts_settings import AlertSettings
from ...model.device_state import silence
from ...model.job_ends import End, end_of, job_end, last_state, lived_text, start_of
from ...model.stalls import find_stall
from ...store.view import by_key
from ...text.ranges import compact_ranges, ranges_text, spans
from ...text.units import window_text
from .event_entry import event_entry
from .log_entry import PROBE_LOST, RUNNING, WORDS, LogEntry, name_of_job

if TYPE_CHECKING:
    from ...store.view import HostView, JobView
    from ...wire.frames import Event
    from .finding_history import Case

KEPT = 1000
"""How many entries are kept for one host; the oldest are dropped first."""
OLD_SECONDS = 12 * 3600.0
"""What ended longer ago than this when it was first seen gets no entry."""
TOGETHER_SECONDS = 15.0
RETRIES_SECONDS = 600.0
"""How long retries that follow each other are one entry; they may come in every step."""
MOST_RANGES = 4
"""How many ranges of a job's pids are listed; the text says if there are more."""
END_TOKENS = {"ok": "ok", "muted": "muted", "warn": "warn", "bad": "bad"}


GRAVE_DEVICES = AlertSettings(throttle=True, ecc=True, for_seconds=3.0)


class _Retries(NamedTuple):
    """Retries of one allocator that follow each other: their first entry, times in ns, number."""

    entry: LogEntry
    first: int
    last: int
    times: int


class Journal:
    """What happened on one host.

    ``entries`` are in no order; :func:`~gpuscope.tui.shared.event_rows.shown` sorts them.
    """

    def __init__(self) -> None:
        self.entries: dict[str, LogEntry] = {}
        self._events: object = None
        self._jobs: dict[str, tuple[int, End | None, float | None]] = {}
        self._undated: set[str] = set()
        """Jobs whose start time is not known yet."""
        self._cases: dict[int, bool] = {}
        self._alike: dict[tuple[str, str, str], tuple[LogEntry, set[str]]] = {}
        """By word, pitfall and job the last entry of a finding, and the places it stands for."""
        self._retries: dict[int, _Retries] = {}
        self._alerts = Alerts(GRAVE_DEVICES)
        self._silent: dict[str, str] = {}
        self.changes = 0
        """Counts the changes of the entries, so that others see whether there are any."""

    def look(self, host: HostView, cases: Sequence[Case], stopped: Mapping[int, str]) -> None:
        """Add what is new in a picture and in the doctor's findings."""
        now = host.wall_seconds
        if now is None or host.sampled_seconds is None:
            return
        for job in host.jobs:
            self._job(host, job, now, stopped)
        if host.events is not self._events:
            self._events = host.events
            self._take_events(host)
        self._find(host, cases, now)
        self._devices(host, now)

    def add(self, entry: LogEntry) -> None:
        """Keep an entry; one with a known serial replaces that."""
        if self.entries.get(entry.serial) != entry:
            self.entries[entry.serial] = entry
            self.changes += 1
            if len(self.entries) > KEPT + KEPT // 8:
                oldest = sorted(self.entries.values(), key=lambda one: one.wall_seconds)
                for one in oldest[: len(self.entries) - KEPT]:
                    del self.entries[one.serial]

    def show(self, entries: dict[str, LogEntry]) -> None:
        """Show these instead, which somebody else keeps: those of a moment of a recording."""
        if entries is not self.entries:
            self.entries = entries
            self.changes += 1

    # ── jobs ──

    def _job(self, host: HostView, job: JobView, now: float, stopped: Mapping[int, str]) -> None:
        members = len(job.trainers) or len(job.processes)
        over, end = end_of(job), job_end(job, stopped)
        known = self._jobs.get(job.key)
        state = (members, end, over.wall_seconds if over is not None else None)
        if known == state and f"j/{job.key}" not in self._undated:
            return
        started = start_of(host, job)
        if known == state and started is None:
            return
        self._jobs[job.key] = state
        (self._undated.add if started is None else self._undated.discard)(f"j/{job.key}")
        who = name_of_job(job)
        if known is None and over is not None and now - (over.wall_seconds or 0.0) > OLD_SECONDS:
            return
        place = ("job", job.key) if job.trainers else ()
        for process in job.processes if job.trainers else ():
            self._forget(process.key, but=job.key)
        seen = self.entries.get(f"j/{job.key}")
        at = started if started is not None else seen.wall_seconds if seen is not None else now
        word = "started" if started is not None else RUNNING
        text = about_job(host, job)
        self.add(LogEntry(at, "jobs", word, who, text, "text", f"j/{job.key}", place, job.key))
        serial = f"j/{job.key}/end"
        if over is None or end is None:
            if self.entries.pop(serial, None) is not None:  # it is back: it was out of sight
                self.changes += 1
            return
        when = over.wall_seconds if over.wall_seconds is not None else now
        how = ": ".join(part for part in (end.how, end.text) if part)
        text = " · ".join(part for part in (how, *last_state(job), lived_text(host, job)) if part)
        token = END_TOKENS[end.kind]
        word = PROBE_LOST if end.word == "left" else end.word
        self.add(LogEntry(when, "jobs", word, who, text, token, serial, place, job.key))

    def _forget(self, key: str, but: str) -> None:
        """Remove the entries of a process from before its probe appeared, which its job has now."""
        for name in (key, f"process {key}"):
            for serial in (f"j/{name}", f"j/{name}/end") if name != but else ():
                self.changes += self.entries.pop(serial, None) is not None

    # ── what is reported ──

    def _take_events(self, host: HostView) -> None:
        offset = (host.wall_seconds or 0.0) - (host.sampled_seconds or 0.0)
        jobs: dict[int, JobView] = {}
        for job in host.jobs:
            for trainer in job.trainers:
                jobs[trainer.id] = job
                jobs.update((allocator.id, job) for allocator in trainer.allocators)
        for event in host.events:
            entry = event_entry(host, event, jobs.get(event.id), offset)
            if entry is not None and event.e == "retry":
                self._retried(event, entry)
            elif entry is not None and not self._is_repeated_by_another_rank(entry):
                self.add(entry)

    def _retried(self, event: Event, entry: LogEntry) -> None:
        """Keep the retries of one allocator that follow each other as one entry."""
        before, times = self._retries.get(event.id), event.data.get("count")
        times = times if isinstance(times, int) else 1
        if before is not None and event.m <= before.last:
            return  # it is counted already
        now = _Retries(entry, event.m, event.m, times)
        if (
            before is not None
            and event.m - before.last < TOGETHER_SECONDS * 1e9
            and event.m - before.first < RETRIES_SECONDS * 1e9
        ):
            now = before._replace(last=event.m, times=before.times + times)
            lasted = window_text(round((now.last - now.first) / 1e9))
            subject, _, happened = now.entry.text.partition(": ")
            subject = subject.partition(" was full ")[0]
            entry = replace(
                now.entry, text=f"{subject} was full {now.times} times in {lasted}: {happened}"
            )
        self._retries[event.id] = now
        self.add(entry)

    def _is_repeated_by_another_rank(self, entry: LogEntry) -> bool:
        """Return whether another rank of the job has reported the same: they go on together."""
        return entry.word == "resumed" and any(
            one.word == entry.word
            and one.job == entry.job
            and one.serial != entry.serial
            and abs(one.wall_seconds - entry.wall_seconds) < TOGETHER_SECONDS
            for one in self.entries.values()
        )

    def _find(self, host: HostView, cases: Iterable[Case], now: float) -> None:
        offset = now - (host.sampled_seconds or 0.0)
        there = set()
        for case in cases:
            if case.kind != "live" or case.since is None:
                continue
            there.add(case.number)
            if self._cases.get(case.number) == case.past:
                continue
            began = case.number not in self._cases
            self._cases[case.number] = case.past
            finding = case.finding
            if began or not case.past:
                before = " · already there" if case.before else ""
                text = finding.title + before
                token = SEVERITY_TOKENS[finding.severity]
                word = WORDS[finding.severity][0]
                self._add_finding(host, case, word, text, token, case.since + offset)
            if case.past and not self._end_is_obvious(host, case):
                word = WORDS[finding.severity][1]
                self._add_finding(host, case, word, finding.title, "ok", now)
        for number in [one for one in self._cases if one not in there]:
            del self._cases[number]

    @staticmethod
    def _end_is_obvious(host: HostView, case: Case) -> bool:
        """Return whether the end of a finding goes without saying.

        The trainer has said that it goes on, or it has ended. While it hangs, what is found by its
        steps is found no more, and that is no recovery.
        """
        job = by_key(host.jobs, case.job)
        return case.finding.pitfall.startswith("hang-") or (
            job is not None and (end_of(job) is not None or find_stall(job.trainers) is not None)
        )

    def _add_finding(
        self, host: HostView, case: Case, word: str, text: str, token: str, at: float
    ) -> None:
        finding = case.finding
        job = by_key(host.jobs, case.job)
        who = name_of_job(job) if job is not None else finding.where
        alike = (word, finding.pitfall, case.job) if case.job else None
        before = self._alike.get(alike) if alike is not None else None
        if before is not None and at - before[0].wall_seconds < TOGETHER_SECONDS:
            first, wheres = before
            wheres.add(finding.where)
            if len(wheres) > 1:
                self.add(replace(first, text=f"{first.text} (and {len(wheres) - 1} more like it)"))
            return
        serial = f"f/{finding.pitfall}/{finding.where}/{word}/{at:.0f}"
        place = ("finding", finding.pitfall, finding.where)
        entry = LogEntry(at, "findings", word, who, text, token, serial, place, case.job)
        if alike is not None:
            self._alike[alike] = (entry, {finding.where})
        self.add(entry)

    def _devices(self, host: HostView, now: float) -> None:
        for alert in self._alerts.look(host):
            fired = alert.state == "fired"
            text = alert.text.removeprefix(f"{alert.subject}: ").removeprefix("throttled: ")
            word = {"throttle": "throttled", "ecc": "ECC"}[alert.kind] if fired else "normal again"
            serial = f"g/{alert.kind}/{alert.key}/{alert.state}/{now:.0f}"
            place = ("device", alert.key)
            token = "warn" if fired else "ok"
            self.add(LogEntry(now, "gpu", word, alert.subject, text, token, serial, place))
        for device in host.devices:
            found = silence(device.readings) if device.gone is None else None
            word = "gone" if device.gone is not None else found.word if found is not None else ""
            if device.sampled_seconds is None and word == "unknown":
                continue
            before = self._silent.get(device.key, "")
            if word == before:
                continue
            self._silent[device.key] = word
            who, place = f"GPU {device.definition.index}", ("device", device.key)
            serial = f"g/silent/{device.key}/{word}/{now:.0f}"
            if word:
                text = (
                    device.gone.reason if device.gone is not None else getattr(found, "reason", "")
                )
                token = "warn" if word == "unknown" else "bad"
            else:
                word, text, token = "back", "it answers again", "ok"
            self.add(LogEntry(now, "gpu", word, who, text, token, serial, place))

    def of_job(self, key: str | None, until: float | None = None) -> list[LogEntry]:
        """Return what happened to a job, the newest first; without a key, to all of the host."""
        own = [
            one
            for one in self.entries.values()
            if key in (None, one.job) and (until is None or one.wall_seconds <= until + 0.5)
        ]
        return sorted(own, key=lambda entry: entry.wall_seconds, reverse=True)

    def of_group(self, group: str) -> list[LogEntry]:
        """Return what happened of one kind, the newest first."""
        return self.newest((group,))

    def newest(self, groups: Sequence[str]) -> list[LogEntry]:
        """Return what happened of these kinds, the newest first."""
        own = [one for one in self.entries.values() if one.group in groups]
        return sorted(own, key=lambda entry: entry.wall_seconds, reverse=True)

    def like(self, entry: LogEntry) -> list[LogEntry]:
        """Return what happened to the same job, or else to the same GPU, the newest first."""
        if entry.job:
            return self.of_job(entry.job)
        own = [one for one in self.entries.values() if not one.job and one.who == entry.who]
        return sorted(own, key=lambda one: one.wall_seconds, reverse=True)


# ── words ──


def about_job(host: HostView, job: JobView) -> str:
    """Return what a job is: its user, its processes, its GPUs."""
    pids = sorted(one.definition.pid for one in job.trainers or job.processes)
    ranges = compact_ranges(pids, MOST_RANGES).replace(",", ", ")
    shown = f"{ranges} and more" if len(spans(pids)) > MOST_RANGES else ranges
    ids = {a.gpu for t in job.trainers for a in t.allocators} | {
        u.gpu for p in job.processes for u in p.uses
    }
    gpus = [d.definition.index for d in host.devices if d.id in ids]
    where = f"GPU {ranges_text(gpus)}" if gpus else ""
    parts = (f"pid {shown}" if pids else "", where, f"by {job.user}" if job.user else "")
    probe = "" if job.trainers else "no probe"
    return " · ".join(part for part in (*parts, probe) if part)
