"""Gather the chapters of a report: recognise what each target is, and read it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..doctor import report as reports
from ..doctor import table
from ..doctor.finding import Report
from ..doctor.redaction import DocumentRedactor
from ..errors import UserError
from ..lab.ledger import RunLedger
from ..missing_file import MissingFile, is_missing_file
from ..report import findings, prediction, runs, time_rows, tuning
from ..report.content import Chapter
from ..report.documents import rows, text
from ..report.host import Watched
from ..report.host import chapter as host_chapter
from ..report.redacted import names_of, redacted
from ..text.clock import clock_text
from ..text.units import MIB
from ..wire.clean import clean
from ..wire.files import open_regular
from . import past_trainers, trainer_times

if TYPE_CHECKING:
    from ..store.store import Store

HEAD_BYTES = 64 << 10
SQLITE = b"SQLite format 3\0"
MAX_ENTRIES = 400
MAX_HOSTS = 8
DATE = "%Y-%m-%d %H:%M:%S"
MAX_DOCUMENT_BYTES = 64 * MIB
ALL_SECONDS = 7 * 86400.0
"""The most that is read of a recording; the store keeps 12 hours of it."""
WINDOW_SECONDS = 3600.0
TIMEOUT_SECONDS = 60.0
_GROUP = re.compile(r"[A-Za-z0-9][\w.-]{2,199}")
"""Names of groups of runs in the ledger, as sweeps and searches make them."""
DOCUMENTS: Mapping[str, tuple[frozenset[str], Callable[[Mapping[str, Any], str], Chapter]]] = {
    "why": (frozenset(("rows", "window_seconds", "causes")), time_rows.chapter),
    "doctor": (frozenset(("findings", "examined", "exit_code")), findings.chapter),
    "predict": (frozenset(("peak_allocated_bytes", "what_if", "doubts")), prediction.chapter),
    "tune": (frozenset(("group", "baseline", "best", "candidates")), tuning.chapter),
    "lab sweep": (frozenset(("group", "cells", "remarks")), runs.sweep),
    "lab runs compare": (frozenset(("comparisons",)), runs.comparison),
    "lab runs": (frozenset(("runs",)), runs.chapter),
    "lab": (frozenset(("config", "steps", "loss_first", "warmup_seconds")), runs.single),
}
"""By verb: keys that its JSON document has, and what makes a chapter of it."""


class NoReport(UserError):
    """A target that no report can be made of."""


def chapters(target: str, redact: bool = False) -> list[Chapter]:
    """Return the chapters of one target. Raises NoReport and other UserErrors."""
    redactor = DocumentRedactor()
    found = [_with_file_time(one, target) for one in _chapters(target, redactor)]
    return [redacted(one, redactor) for one in found] if redact else found


def _with_file_time(one: Chapter, target: str) -> Chapter:
    """Return a chapter that says when its file was written, which a document itself does not."""
    try:
        written = os.stat(target).st_mtime
    except (OSError, ValueError):
        return one
    return replace(one, facts=[*one.facts, ("File written", clock_text(written, DATE))])


def _chapters(target: str, redactor: DocumentRedactor) -> list[Chapter]:
    if target == "-":
        return [
            _document(sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1), "standard input", redactor)
        ]
    path = Path(target)
    if not os.path.lexists(path) and _GROUP.fullmatch(target):
        found = _group(target)
        if found is not None:
            return [found]
    if is_missing_file(target):
        raise MissingFile(target)
    name = clean(path.name or target, 200)
    if path.is_dir():
        return [_examined(target, name, redactor)]
    try:
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NoReport(
            f"{clean(target, 200)}: cannot be read.", f"{why}.", "gpuscope report --help"
        ) from None
    if not head:
        raise NoReport(f"{name}: it is empty.", "", "gpuscope report --help    what it takes")
    from ..doctor.file_kinds import kind_of

    kind = kind_of(head)
    if kind in ("recording", "box"):
        return _recorded(path, name, kind, redactor)
    if kind == "snapshot":
        return [_snapshot(path, name)]
    if head.startswith(SQLITE):
        return [_ledger(path, name)]
    if head.lstrip()[:1] in (b"{", b"["):
        with open_regular(path) as file:
            return [_document(file.read(MAX_DOCUMENT_BYTES + 1), name, redactor)]
    return [_examined(target, name, redactor)]


def _judged(target: str) -> Report:
    """Return what the doctor finds in a target."""
    from .commands.doctor.targets import examine

    return reports.finish(examine([target], False, TIMEOUT_SECONDS), table.load())


def _examined(target: str, name: str, redactor: DocumentRedactor) -> Chapter:
    """Return the chapter of what only the doctor can read: a log, a script, a folder."""
    found = _judged(target)
    if found.problems and not found.findings:
        why, _, instead = " ".join(found.problems).partition(" Next: ")
        instead = instead or "gpuscope report --help    what it takes"
        raise NoReport(f"{name}: no report can be made of it.", why, instead)
    for one in found.exhibits:
        redactor.hide_hosts_of(one.document)
    return findings.of_report(found, name)


# ── recordings ──


def _recorded(path: Path, name: str, kind: str, redactor: DocumentRedactor) -> list[Chapter]:
    past = past_trainers.read(path, ALL_SECONDS)
    hosts = [
        (key, host)
        for key in past.store.sources
        if (host := past.store.host(key)) is not None and host.sampled_seconds is not None
    ]
    if not hosts:
        raise NoReport(
            f"{name}: no report can be made of it.",
            past.problem or "It has no complete sample.",
            "gpuscope record FILE    makes a recording",
        )
    for _, host in hosts:
        for what, word in names_of(host):
            redactor.hide(what, word)
    found = _judged(str(path))
    words = "Black box of a trainer" if kind == "box" else "Recording"
    words += f". Its end: {past.ended}" if past.ended else ""
    problems = [f"Only a part of the file could be read: {past.problem}"] if past.problem else []
    if len(hosts) > MAX_HOSTS:
        problems.append(f"{len(hosts) - MAX_HOSTS} of its {len(hosts)} hosts are left out.")
    shown = hosts[:MAX_HOSTS]
    made = partial(_of_source, past.store, len(shown))
    if len(shown) == 1:
        return [made(found, name, words, problems, shown[0][0])]
    titles = [f"{name}: {host.name}" for _, host in shown]
    return [
        made(found if place == 0 else None, title, words, problems if place == 0 else (), key)
        for place, ((key, _), title) in enumerate(zip(shown, titles, strict=True))
    ]


def _of_source(
    store: Store,
    hosts: int,
    report: Report | None,
    title: str,
    kind: str,
    problems: Sequence[str],
    key: str,
) -> Chapter:
    """Return the chapter of a host in a store."""
    host = store.host(key)
    assert host is not None
    history = trainer_times.history_of(store, key)
    times = trainer_times.documents(host, history, WINDOW_SECONDS)
    watched = Watched.of(store, host, history, report=report, times=times, hosts=hosts)
    return host_chapter(watched, title, kind, problems)


# ── snapshots, the ledger ──


def _snapshot(path: Path, name: str) -> Chapter:
    from ..report.snapshot import chapter
    from ..snapshot.limits import for_files
    from ..snapshot.reader import open_snapshot

    limit, seconds = for_files(str(path))
    with open_snapshot(path, limit, seconds) as reading:
        summary = reading.summary
    return chapter(summary, _judged(str(path)), name)


def _ledger(path: Path, name: str) -> Chapter:
    entries = RunLedger(path).entries(limit=MAX_ENTRIES)
    if not entries:
        raise NoReport(
            f"{name}: the ledger has no runs.", "", "gpuscope lab --headless --steps 100"
        )
    return runs.of_entries(entries, name)


def _group(group: str) -> Chapter | None:
    """Return the chapter of a sweep or a search of the user's ledger, None where it has none."""
    ledger = RunLedger()
    entries = ledger.entries(limit=None, group=group)
    if not entries:
        return None
    if ledger.plan(group) is not None:
        from ..lab import tables
        from ..lab.sweep import stored

        plan = stored(ledger, group)
        return runs.sweep(tables.as_json(plan, tables.results(plan, entries)), group)
    return runs.of_entries(entries, group)


# ── documents ──


def _document(data: bytes, name: str, redactor: DocumentRedactor) -> Chapter:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise NoReport(f"{name}: it is too large for a document of gpuscope.")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NoReport(
            f"{name}: it is no JSON document.", f"{clean(str(error), 200)}.",
            "the verbs write one with --json, such as gpuscope why --json > why.json",
        ) from None  # fmt: skip
    if isinstance(document, dict):
        for keys, make in DOCUMENTS.values():
            if keys <= document.keys():
                for job in rows(document.get("jobs")):
                    for row in rows(job.get("ranks")):
                        redactor.hide("host", text(row.get("host")))
                return make(document, name)
    raise NoReport(
        f"{name}: no report can be made of this document.",
        "It is of no verb that gpuscope report knows.",
        "gpuscope report --help    says which documents it takes",
    )
