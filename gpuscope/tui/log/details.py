"""The event under the cursor of the log in full."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...doctor.finding import SEVERITY_TOKENS
from ...doctor.report import evidence_lines, fix_sentences
from ...doctor.steps import steps_of
from ...text import styled
from ...text.clock import SECOND, clock_text
from ...text.styled import Line, Piece
from ...text.units import age_text
from ..background.log_entry import GROUPS, LogEntry
from ..doctor.cure import steps_lines
from ..shared.event_rows import FINDS, event_lines, sign
from ..shell.keymap import key_of
from ..theme import Glyphs
from .subject import device_of, facts_of_device, facts_of_job, findings_on, job_of, means

if TYPE_CHECKING:
    from ...doctor.finding import Finding
    from ...store.view import HostView
    from ..background.finding_history import Case

LABEL = 9
OPENS = {
    "finding": "the finding in the Doctor",
    "job": "its job",
    "device": "the GPU",
    "lab": "the Lab",
    "snapshot": "the snapshot",
    "profile": "the profile",
    "stacks": "the stacks",
}
"""What Enter opens, by the kind of an entry's place."""
_CODE = re.compile(r"(?:[^\s:;,()]+\.py|<path>):\d+")
KINDS = {
    "jobs": "start, pause and end, with the reason, the last step and the last loss",
    "findings": "findings of the Doctor, and when each is over",
    "memory": "out-of-memory errors, and cudaMalloc retries",
    "gpu": "XIDs, ECC errors, throttling, a GPU that is lost or does not answer",
    "files": "snapshots, profiles and reports that were saved",
    "probe": "attached and detached, and readings that are missing",
    "output": "output of the Lab's trainings",
    "program": "notices from gpuscope itself",
}
"""What each group of the log contains."""
MOST_FINDINGS = 4
BRIEF_ROWS = 10
"""With fewer rows than this, what the list already shows is left out."""


@dataclass(frozen=True, slots=True)
class Around:
    """What is known besides an entry: its host, the doctor's cases, and other entries.

    ``same`` is what else happened to the same job or GPU, the newest first.
    """

    host: HostView | None = None
    cases: Sequence[Case] = ()
    same: Sequence[LogEntry] = ()


def what_comes_here(cells: int) -> list[Line]:
    """Explain each kind of event, for a log that has none yet."""
    out: list[Line] = [[("What appears here", "title")]]
    for group, text in KINDS.items():
        head: Line = [(f"{GROUPS[group]:{LABEL}}", "accent")]
        out += styled.hang(head, [(text, "muted")], cells)
    return out


def path_of(entry: LogEntry) -> str:
    """Return the file that was saved, or the first line of code that the text names, or ""."""
    found = _CODE.search(entry.text)
    return entry.path or (found.group() if found else "")


def details(
    entry: LogEntry, around: Around, glyphs: Glyphs, cells: int, height: int, alone: bool = True
) -> list[Line]:
    """Return what is known of an entry in at most ``height`` lines of ``cells`` cells.

    What matters most comes first: its text, what it is about, and what the doctor says of it. Where
    it does not stand ``alone``, another panel has what else is known of its job.
    """
    device = device_of(entry, around.host)
    own, others = findings_on(entry, device, around.cases)
    token = entry.token if entry.token != "text" else "faint"
    word = "" if entry.word in FINDS else f"{entry.word}: "
    text: list[Piece] = [(f"{word}{entry.text}", "title")]
    out = styled.hang([(f"{sign(entry.token, glyphs)} ", token)], text, cells)
    brief = height < BRIEF_ROWS
    labelled = [("Means", meaning)] if (meaning := means(entry)) else []
    labelled += [] if brief else _listed(entry, around.host)
    for label, words in labelled:
        out += _labelled(label, words, cells)
    gap: list[Line] = [] if brief else [[]]
    if own is not None:
        replayed = around.host is not None and bool(around.host.badge)
        out += [*gap, *_finding_lines(own.finding, replayed, cells), *gap]
    for label, words in _facts(entry, around.host):
        out += _labelled(label, words, cells)
    if entry.place and entry.place[0] in OPENS:
        does = (f": {OPENS[str(entry.place[0])]}", "muted")
        out.append([(f"{'More':{LABEL}}", "accent"), (key_of("open"), "bold accent"), does])
    if not alone:
        return out[:height]
    out += _found_now(others[:MOST_FINDINGS], glyphs, cells, height - len(out), gap)
    out += _also(entry, around, glyphs, cells, height - len(out) - 2)
    return out[:height]


def _found_now(
    cases: Sequence[Case], glyphs: Glyphs, cells: int, room: int, gap: Sequence[Line]
) -> list[Line]:
    """Return what the doctor says now of the same job or GPU, in at most ``room`` lines."""
    out: list[Line] = []
    for case in cases:
        grave = SEVERITY_TOKENS[case.finding.severity]
        head: Line = [(f"{sign(grave, glyphs)} ", grave)]
        out += styled.hang(head, [(case.finding.title, "text")], cells)
    if not out or room < 1:
        return []
    if room <= len(gap) + 1:  # no row below a heading
        label: Line = [(f"{'Doctor':{LABEL}}", "accent")]
        return [styled.cut([*label, *out[0]], cells)]
    return [*gap, [("Now in the Doctor", "title")], *out]


def _also(entry: LogEntry, around: Around, glyphs: Glyphs, cells: int, room: int) -> list[Line]:
    """Return what else happened to the same job or GPU, below a heading; none without room."""
    rest = [one for one in around.same if one.serial != entry.serial]
    if not rest or room < 1:
        return []
    now = around.host.wall_seconds if around.host is not None else None
    head = f"Also of this {'job' if entry.job else 'GPU'}, the newest first"
    return [[], [(head, "title")], *event_lines(rest, glyphs, room, cells, now)]


def beside_lines(
    entry: LogEntry, around: Around, glyphs: Glyphs, cells: int, height: int
) -> list[Line]:
    """Return what the doctor finds now, with what to do, and what else happened to the same job."""
    out: list[Line] = []
    replayed = around.host is not None and bool(around.host.badge)
    own, others = findings_on(entry, device_of(entry, around.host), around.cases)
    for case in others[:MOST_FINDINGS]:
        grave = SEVERITY_TOKENS[case.finding.severity]
        head: Line = [(f"{sign(grave, glyphs)} ", grave)]
        out += [[]] if out else []
        out += styled.hang(head, [(case.finding.title, "title")], cells)
        out += steps_lines(case.finding, None, replayed, cells)
    if not others:
        other = "other finding" if own is not None else "finding"
        out.append([(f"No {other} about it now.", "muted")])
    out += _also(entry, around, glyphs, cells, height - len(out) - 2)
    return out[:height]


def _listed(entry: LogEntry, host: HostView | None) -> list[tuple[str, str]]:
    """Return what the list says too: when it happened."""
    at = clock_text(entry.wall_seconds, f"{SECOND}, %A, %d %B %Y")
    if host is not None and host.wall_seconds is not None:
        age = host.wall_seconds - entry.wall_seconds
        at += f" · {age_text(age)} ago" if age >= 1 else ""
    return [("When", at)]


def _facts(entry: LogEntry, host: HostView | None) -> list[tuple[str, str]]:
    """Return the file or the line of code, and what the job or the GPU is and does now."""
    out = [("Path", path)] if (path := path_of(entry)) else []
    job, device = job_of(entry, host), device_of(entry, host)
    if host is not None and device is not None:
        return [*out, *facts_of_device(device, host)]
    return [*out, *facts_of_job(job, host)] if host is not None and job is not None else out


def _labelled(label: str, text: str, cells: int) -> list[Line]:
    return styled.hang([(f"{label:{LABEL}}", "accent")], [(text, "text")], cells)


def _finding_lines(finding: Finding, replayed: bool, cells: int) -> list[Line]:
    """Return the evidence of a finding, what fixing it brings, and its first fix."""
    out: list[Line] = []
    why = "Why"
    for one in finding.evidence:
        for line in evidence_lines(one, cells - LABEL):
            out.append([(f"{why:{LABEL}}", "accent"), *line])
            why = ""
    if finding.effect is not None:
        out += _labelled("Gain", finding.effect.text, cells)
    for fix in steps_of(finding, replayed)[:1]:
        out += _labelled(
            "Now" if fix.now else "Fix", fix_sentences(fix, finding.effect is None), cells
        )
        code = filter(None, (fix.code.strip("\n"), fix.environment, fix.command))
        for text in "\n".join(code).splitlines():
            out += styled.hang([(" " * (LABEL + 2), "text")], [(text, "accent")], cells)
    return out
