"""What is found on one host and what runs there, beside its charts below a list of hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from ...doctor.live import job_of
from ...doctor.report import evidence_lines
from ...doctor.steps import steps_of
from ...model.job_ends import end_of
from ...store.view import HistoryOf, HostView
from ...text import styled
from ...text.styled import Line
from ...text.units import count_text
from ..doctor.text import LABEL, SEVERITY_TOKENS, glyph_of, with_label
from ..log.subject import facts_of_job
from ..shared.host_text import host_lines
from ..shell.keymap import key_of
from ..theme import Glyphs, Tokens
from .summary import in_job

if TYPE_CHECKING:
    from ...doctor.finding import Finding
    from .summary import HostSummary

MOST_REASONS = 2
"""The pieces of evidence of a finding: the Doctor tab has the rest."""


def brief_lines(
    host: HostView,
    one: HostSummary,
    found: Sequence[Finding],
    history: HistoryOf,
    tokens: Tokens,
    cells: int,
    rows: int,
) -> list[Line]:
    """Return why the first of the findings holds and what comes after the first step.

    Its jobs follow, and where there is room for them the load of its cores, its memory, and the
    same of the other findings. The findings themselves, and what to do first, stand above.
    """
    jobs = [job for job in host.jobs if end_of(job) is None]
    replayed = bool(host.badge)
    reasons: list[list[list[Line]]] = []
    for finding in (each for each in found if each.severity != "info"):
        job = job_of(finding, host)
        title = in_job(finding.title, job.title if job is not None else "")
        shown = replace(finding, title=title)
        reasons.append(list(_finding(shown, replayed, tokens.glyphs, cells)))
    parts = [_whole_steps(each, rows) for each in reasons[:1]]
    for job in jobs:
        facts = facts_of_job(job, host)
        parts.append(
            [
                line
                for label, text in facts
                for line in with_label(label.lower(), [(text, "text")], cells)
            ]
        )
    if not jobs and one.current:
        parts.append([[("no job runs here", "muted")]])
    load = host_lines(host, history, cells, tokens.glyphs)
    if load:
        parts.append([[("The host  ", "title"), (_machine(host), "muted")], *load])
    out: list[Line] = []
    for part in (*parts, *(list(chain(*each)) for each in reasons[1:])):
        gap: list[Line] = [[]] if out else []
        if out and len(out) + len(gap) + len(part) > rows:
            continue  # what follows may be shorter
        out += [*gap, *part]
    return out[:rows]


def _machine(host: HostView) -> str:
    """Return what a host is: its cores, its kernel and its driver, as far as they are known."""
    d = host.definition
    cores = f"{d.cpu_count} cores" if d.cpu_count else ""
    driver = f"driver {d.driver_version}" if d.driver_version else ""
    return " · ".join(filter(None, (cores, driver, d.kernel)))


def _finding(finding: Finding, replayed: bool, glyphs: Glyphs, cells: int) -> Iterator[list[Line]]:
    """Yield why a finding holds, then each step after the first in whole."""
    token = SEVERITY_TOKENS[finding.severity]
    sign = (f"{glyph_of(finding.severity, glyphs)} ", token)
    head = styled.hang([sign], [(finding.title, "title")], cells)
    label = "why"
    for evidence in finding.evidence[:MOST_REASONS]:
        for line in evidence_lines(evidence, cells - LABEL):
            head.append([(f"{label:{LABEL}}", "accent"), *line])
            label = ""
    yield head
    for number, fix in enumerate(steps_of(finding, replayed)[1:]):
        step = with_label("" if number else "then", [(fix.title, "text")], cells)
        code = (fix.code.strip("\n"), fix.environment, fix.command)
        for text in "\n".join(filter(None, code)).splitlines():
            step += with_label("", [(text, "accent")], cells)
        yield step


def _whole_steps(parts: Sequence[list[Line]], rows: int) -> list[Line]:
    """Return of a finding the steps that fit in ``rows``, and how many more there are and where."""
    out: list[Line] = []
    for at, part in enumerate(parts):
        left = len(parts) - at
        if at and len(out) + len(part) + (left > 1) > rows:
            how = f"{count_text(left, 'more step')}: {key_of('open')}, then {key_of('doctor')}"
            return [*out[: rows - 1], [(" " * LABEL, "text"), (how, "muted")]]
        out += part
    return out
