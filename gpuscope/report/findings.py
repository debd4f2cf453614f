"""Make sections of what the doctor has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar, cast

from ..doctor.finding import (
    Abstained,
    Effect,
    Evidence,
    Finding,
    Fix,
    Report,
    Severity,
)
from ..doctor.report import SHOWN_FIXES, summary
from ..text.numbers import number
from ..text.units import percent_text
from . import dead_job
from . import documents as read
from .content import Chapter, Findings, Part, Section, Table
from .documents import Document

Made = TypeVar("Made", Abstained, Evidence, Finding, Fix)
MAX_FINDINGS = 60


def chapter(document: Document, name: str) -> Chapter:
    """Return the chapter of a document of ``gpuscope doctor --json``."""
    return _chapter(report_of(document), read.rows(document.get("jobs")), name)


def of_report(found: Report, name: str) -> Chapter:
    """Return the chapter of a settled report."""
    return _chapter(found, [one.document for one in found.exhibits], name)


def _chapter(found: Report, jobs: Sequence[Document], name: str) -> Chapter:
    facts = [("Examined", ", ".join(found.examined[:12]))] if found.examined else []
    sections = [section(found), *(dead_job.section(job) for job in jobs)]
    shown = [one for one in sections if one.parts or one.lead]
    return Chapter(name, "Findings of gpuscope doctor", shown, facts)


def section(report: Report, when: str = "") -> Section:
    """Return the findings of a settled report, what stayed open, and what was not checked."""
    found = report.findings
    parts: list[Part] = []
    if found:
        notes = []
        if len(found) > MAX_FINDINGS:
            notes.append(f"{len(found) - MAX_FINDINGS} more findings are left out here.")
        parts.append(Findings(found[:MAX_FINDINGS], notes, source="gpuscope doctor", when=when))
    if report.ended:
        rows = [(one.text, one.command) for one in report.ended]
        parts.append(Table("Jobs that ended", ("What", "More"), rows))
    if report.abstained:
        title = "Inconclusive, and what would decide it"
        open_rows = [(one.pitfall, one.missing) for one in report.abstained]
        parts.append(Table(title, ("Pitfall", "What is missing"), open_rows, folded=True))
    if report.problems:
        rows_of_problems = [(one,) for one in report.problems]
        parts.append(Table("Could not be checked", ("Why",), rows_of_problems))
    return Section("Findings", parts, summary(report))


def report_of(document: Document) -> Report:
    """Return the report of a document, as far as that can be understood."""
    return Report(
        findings=tuple(_finding(one) for one in read.rows(document.get("findings"))),
        abstained=tuple(_made(Abstained, one) for one in read.rows(document.get("abstained"))),
        problems=tuple(read.text(one.get("reason")) for one in read.rows(document.get("problems"))),
        examined=tuple(read.texts(document.get("examined"))),
    )


def _made(kind: type[Made], row: Document, **others: Any) -> Made:
    """Return an object of one of the doctor's classes with the texts that a row has for it."""
    names = [one.name for one in fields(kind) if one.name in row and one.name not in others]
    texts = {name: value for name in names if isinstance(value := row[name], str)}
    missing = [one.name for one in fields(kind) if one.default is MISSING]
    return kind(**{**dict.fromkeys(missing, ""), **texts, **others})


def _finding(one: Document) -> Finding:
    effect = read.mapping(one.get("effect"))
    return _made(
        Finding,
        one,
        severity=_severity(one),
        evidence=tuple(_made(Evidence, row) for row in read.rows(one.get("evidence"))),
        effect=Effect(text=read.text(effect.get("text"))) if effect else None,
        fixes=tuple(
            _made(Fix, row, now=row.get("now") is True)
            for row in read.rows(one.get("fixes"))[:SHOWN_FIXES]
        ),
        rank=0.0,
    )


def _severity(one: Document) -> Severity:
    found = read.text(one.get("severity"))
    return cast(Severity, found) if found in ("problem", "warning") else "info"


def of_cause(row: Document) -> Finding:
    """Return a cause of ``gpuscope why --json`` as a finding."""
    saves = number(row.get("saves_share_at_most"))
    low, high = (number(row.get(f"saves_share_at_most_{end}")) for end in ("low", "high"))
    gain = "" if saves is None else f"at most {percent_text(saves)} of each step"
    if gain and low is not None and high is not None and high > low:
        gain += f" ({percent_text(low)} to {percent_text(high)})"
    advice, proof = read.text(row.get("advice")), read.texts(row.get("proof"))
    return _made(
        Finding,
        row,
        severity=_severity(row),
        where=read.text(row.get("place")),
        evidence=tuple(Evidence(one) for one in read.texts(row.get("evidence"))),
        effect=Effect(text=gain) if gain else None,
        fixes=(Fix(title=advice),) if advice else (),
        verify="".join(proof[:1]),
    )
