"""What is found on one host and what runs there, beside its charts below a list of hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...doctor.live import pids_of
from ...doctor.order import pid_of
from ...doctor.report import evidence_lines
from ...doctor.steps import steps_of
from ...model.job_ends import end_of
from ...store.view import HistoryOf, HostView, JobView
from ...text import styled
from ...text.styled import Line
from ..doctor.text import LABEL, SEVERITY_TOKENS, glyph_of, with_label
from ..log.subject import facts_of_job
from ..shared.host_text import host_lines
from ..theme import Glyphs, Tokens
from .rows import AWAY, NO_STEPS, mark_of, missing_lines, step_line
from .summary import in_job

if TYPE_CHECKING:
    from ...doctor.finding import Finding, Fix
    from .summary import HostSummary, Missing

MOST_REASONS = 2
"""The pieces of evidence of a finding: the Doctor tab has the rest."""


def brief_lines(
    host: HostView,
    one: HostSummary,
    missing: Missing,
    found: Sequence[Finding],
    history: HistoryOf,
    tokens: Tokens,
    cells: int,
    rows: int,
    steps: Mapping[str, Fix] = NO_STEPS,
) -> list[Line]:
    """Return what is wrong with a host and what to do, then its jobs, in at most ``rows`` lines.

    Where rows are few, what runs comes before the reasons of a finding; where there are more, the
    load of its cores and its memory follow. ``steps`` are what to do first, by the words for it.
    """
    jobs = [job for job in host.jobs if end_of(job) is None]
    found = [finding for finding in found if finding.severity != "info"]
    titles = {finding.title for finding in found}
    for reasons in (MOST_REASONS, 0):
        out: list[Line] = []
        if one.state in AWAY:
            out += [*missing_lines(one, missing, cells), []]
        for word in one.words:  # such as a GPU that is lost, of which no rule tells
            grade, text = word.grade, word.text
            what = text.partition(": ")[2] or text  # one may say "Hang", the other "stalled"
            if not any(what in title for title in titles):
                glyph, token = mark_of(grade, tokens.glyphs)
                out += styled.hang([(f"{glyph} ", token)], [(word.named, "title")], cells)
                out += (
                    with_label("do first", step_line(steps[text]), cells) if text in steps else []
                )
                out.append([])
        for finding in found:
            job = job_of(finding, host)
            title = in_job(finding.title, job.title if job is not None else "")
            shown = replace(finding, title=title)
            out += [*_finding(shown, bool(host.badge), tokens.glyphs, cells, reasons), []]
        if not out:
            out += [[(f"{tokens.glyphs.ok} ", "ok"), ("nothing wrong was found", "muted")], []]
        for job in jobs:
            for label, text in facts_of_job(job, host):
                out += with_label(label.lower(), [(text, "text")], cells)
            out.append([])
        if not jobs:
            out.append([("no job runs here", "muted")])
        if len(out) <= rows:
            break
    load = host_lines(host, history, cells, tokens.glyphs)
    if load and len(out) + len(load) + 2 <= rows:
        gap: list[Line] = [[]] if out[-1] else []
        out += [*gap, [("The host  ", "title"), (_machine(host), "muted")], *load]
    return out[:rows]


def job_of(finding: Finding, host: HostView) -> JobView | None:
    """Return the job that a finding is about, None where it is about the host or several jobs."""
    named = pid_of(finding)
    pids = set(finding.pids if named is None else (named,))
    about = [job for job in host.jobs if not pids.isdisjoint(pids_of(job))]
    return about[0] if len(about) == 1 else None


def _machine(host: HostView) -> str:
    """Return what a host is: its cores, its kernel and its driver, as far as they are known."""
    d = host.definition
    cores = f"{d.cpu_count} cores" if d.cpu_count else ""
    driver = f"driver {d.driver_version}" if d.driver_version else ""
    return " · ".join(filter(None, (cores, driver, d.kernel)))


def _finding(
    finding: Finding, replayed: bool, glyphs: Glyphs, cells: int, reasons: int
) -> Iterator[Line]:
    token = SEVERITY_TOKENS[finding.severity]
    sign = (f"{glyph_of(finding.severity, glyphs)} ", token)
    yield from styled.hang([sign], [(finding.title, "title")], cells)
    label = "why"
    for evidence in finding.evidence[:reasons]:
        for line in evidence_lines(evidence, cells - LABEL):
            yield [(f"{label:{LABEL}}", "accent"), *line]
            label = ""
    for number, fix in enumerate(steps_of(finding, replayed)):
        if not number:
            yield from with_label("do first", step_line(fix), cells)
            continue
        yield from with_label("then" if number == 1 else "", [(fix.title, "text")], cells)
        code = (fix.code.strip("\n"), fix.environment, fix.command)
        for text in "\n".join(filter(None, code)).splitlines():
            yield from with_label("", [(text, "accent")], cells)
