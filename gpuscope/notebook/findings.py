"""Write the doctor's findings for a cell's output."""

from __future__ import annotations

from html import escape

from ..doctor import report as reports
from ..doctor.finding import Evidence, Finding, Fix, Report
from ..text import styled
from .markup import COLOURS, note_html

_CODE = (
    "margin:2px 0;padding:2px 6px;background:transparent;color:inherit;border:1px solid #8a8a8a;"
    "white-space:pre-wrap;font-size:12px"
)


def as_html(report: Report) -> str:
    """Return a settled report: each finding with its evidence and fixes, then what was not seen."""
    found = "".join(map(_finding, report.findings))
    found += "".join(note_html(f"Could not be checked: {one}") for one in report.problems)
    found += "".join(
        note_html(f"Inconclusive: {one.pitfall}: {one.missing}") for one in report.abstained
    )
    return f'<p style="margin:6px 0">{escape(reports.summary(report))}</p>{found}'


def as_text(report: Report, width: int) -> str:
    """Return a settled report as lines of at most ``width`` columns."""
    lines = reports.lines(report, None, width)
    return "\n".join(styled.plain(line).rstrip() for line in lines)


def _finding(finding: Finding) -> str:
    where = f", {finding.where}" if finding.where else ""
    head = f"{finding.severity.capitalize()} ({finding.confidence}{where}): {finding.title}"
    now = [fix for fix in finding.fixes if fix.now][: reports.SHOWN_FIXES]
    later = [fix for fix in finding.fixes if not fix.now][: reports.SHOWN_FIXES]
    evidence = "".join(map(_evidence, finding.evidence[: reports.SHOWN_EVIDENCE]))
    gain = f"<p>Gain: {escape(finding.effect.text)}</p>" if finding.effect else ""
    cures = "".join(_fix("Now", fix) for fix in now) + "".join(_fix("Fix", fix) for fix in later)
    more = note_html(f"More: gpuscope doctor --explain {finding.pitfall}")
    return (
        f'<div style="border-left:4px solid {COLOURS[finding.severity]};padding:0 0 0 8px;'
        f'margin:6px 0"><strong>{escape(head)}</strong>'
        f'<ul style="margin:2px 0 2px 18px;padding:0">{evidence}</ul>{gain}{cures}{more}</div>'
    )


def _evidence(evidence: Evidence) -> str:
    source = f" ({evidence.source})" if evidence.source else ""
    return f"<li>{escape(evidence.text + source)}</li>"


def _fix(label: str, fix: Fix) -> str:
    code = "\n".join(sign + line for sign, line in fix.signed_code())
    copied = "\n".join(filter(None, (code, fix.environment, fix.command)))
    shown = f'<pre style="{_CODE}">{escape(copied)}</pre>' if copied else ""
    return f'<p style="margin:2px 0">{label}: {escape(reports.fix_sentences(fix))}</p>{shown}'
