"""Say of a job that has ended which rank failed first and why, from the files that it left.

``find`` recognises the files, ``collect`` puts together what they say of each rank,
``first_failure`` judges it and ``ranks_table`` draws it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...wire.clean import clean
from .. import table
from ..finding import Evidence, Exhibit, Finding, Fix, Report
from ..wordings import Wordings
from .find import are_of_one_job, is_of_a_job

if TYPE_CHECKING:
    from .find import FoundFile
    from .model import Job, Suspect

__all__ = ["are_of_one_job", "examine", "is_of_a_job", "says_ranks"]

WORDINGS = Wordings("dead")
MOST_SNAPSHOTS = 4
"""How many snapshots and out-of-memory records of a job are also examined on their own."""
MOST_UNREAD = 20
_FIGURES = {
    "who": "The job",
    "first": " first",
    "what": "",
    "other": "",
    "call": "a collective",
    "others": "the others",
    "waiters": "The others waited",
    "ended": "lost a process",
}
_OWN_FIXES_ONLY = frozenset(("dead.finished", "dead.killed"))
"""Causes for which the fixes of the pitfall would be a guess, or are of something else."""
_SAY_MORE = frozenset(("oom.request-over-capacity",))
"""Causes in the text of the first suspect whose advice contradicts that of its pitfall."""
_BETTER_ADVICE = frozenset(("oom.fragmentation",))
"""Causes in the text of the first suspect whose fix comes before those of its pitfall."""
_SCRIPT = re.compile(r'File "([^"\n]+)", line \d+, in <module>')
_RANKED = (b"[rank", b"local_rank", b"Watchdog caught", b"[default", b"exitcode")
_KINDS = {
    "text": "logs",
    "flight": "flight recorder dumps",
    "elastic": "error files",
    "box": "black boxes",
    "snapshot": "snapshots",
    "recording": "recordings",
    "core": "core files",
    "packed": "packed core files",
}


def says_ranks(part: bytes) -> bool:
    """Return whether a part of a log names ranks, so that the log may be one of a whole job."""
    return any(word in part for word in _RANKED)


def examine(paths: Sequence[Path], name: str, here: bool = True) -> Report:
    """Return the verdict on the job that left these files and folders.

    ``here`` says that the files stay, so that the report can tell the user to read them.
    """
    from . import first_failure, ranks_table
    from .collect import read_files, read_job

    job = read_job(paths, name)
    if not job.files:
        why = f"{name}: it holds no log, no dump and no error file of a training."
        return Report(problems=(why, *job.unread))
    judged = first_failure.judge(job)
    root = None
    if here:
        root = paths[0] if paths[0].is_dir() else paths[0].parent
    exhibit = Exhibit(
        lines=lambda width: ranks_table.lines(job, judged, width),
        document=ranks_table.document(job, judged),
    )
    kinds = ", ".join(f"{_KINDS[kind]}: {count}" for kind, count in sorted(job.found.items()))
    report = Report(
        findings=tuple(
            _finding(one, index, root, bool(job.flight_names))
            for index, one in enumerate(judged.suspects)
        ),
        abstained=judged.abstained,
        problems=tuple(f"{name}: {clean(text, 300)}" for text in job.unread[:MOST_UNREAD]),
        examined=(f"{name} ({kinds})",),
        exhibits=(exhibit,),
    )
    closer = _of_text(judged.suspects)
    plain = bool(report.findings) and report.findings[0].cause == "dead.exception"
    if any(plain or one.cause in _SAY_MORE for one in closer.findings):
        report = replace(report, findings=(_only_to_read(report.findings[0]), *report.findings[1:]))
    if report.findings:
        first, apart = _with_text(report.findings[0], closer.findings)
        report = replace(report, findings=(first, *report.findings[1:]))
        closer = Report(findings=apart)
    report += closer + _of_snapshots(job.files)
    if job.attempts > 1:
        before = first_failure.judge(read_files(job.files, name, attempt=job.attempts - 2))
        report += Report(findings=tuple(_of_attempt(one, job, root) for one in before.suspects[:1]))
    return report


def _finding(suspect: Suspect, index: int, root: Path | None, recorded: bool) -> Finding:
    """Return a suspect as a finding; only the first one counts as a problem.

    ``recorded`` says that there are dumps of flight recorders.
    """
    figures = {**_FIGURES, **suspect.figures}
    figures["whom"] = figures["who"][:1].lower() + figures["who"][1:]
    harmless = index > 0 or suspect.cause == "dead.finished"
    # what a rule knows of its message says more than that there was an exception
    plain = index == 0 and WORDINGS.findings[suspect.cause].pitfall == "first-failure"
    return WORDINGS.finding(
        suspect.cause,
        figures,
        fixes=_fixes(suspect, root if index == 0 else None, recorded),
        severity="info" if harmless else "problem",
        confidence=suspect.confidence,
        evidence=suspect.evidence,
        where=", ".join(filter(None, (suspect.host, suspect.where))),
        rank=-1.0 if plain else 10 + round(suspect.weight, 2),
    )


def _of_attempt(suspect: Suspect, job: Job, root: Path | None) -> Finding:
    """Return what ended the last attempt but one, after which torchrun started again."""
    finding = _finding(suspect, 1, root, bool(job.flight_names))
    return replace(finding, where=f"attempt {job.attempts - 1} of {job.attempts}", rank=1.0)


def _fixes(suspect: Suspect, root: Path | None, recorded: bool) -> list[Fix]:
    """Return where to read the first evidence in full, and what to do before the next run."""
    fixes: list[Fix] = []
    if root is not None and suspect.cause != "dead.finished":
        fixes += _to_read(suspect, root)
    core = suspect.figures.get("core")
    if root is not None and core:
        fixes += WORDINGS.fixes(
            ("native-stack",),
            {
                "path": shlex.quote(str(root / core)),
                "program": shlex.quote(suspect.figures.get("program") or "python3"),
            },
        )
    wording = WORDINGS.findings[suspect.cause]
    row = table.load()[wording.pitfall]
    fixes += WORDINGS.fixes(wording.fixes, {})
    if suspect.advice:
        return fixes + WORDINGS.fixes(suspect.advice, {})
    if suspect.cause == "dead.exception" and suspect.where:  # to see the error is no problem then
        return fixes + _in_debugger(suspect)
    if suspect.cause in _OWN_FIXES_ONLY or (suspect.traceback and row.id == "first-failure"):
        return fixes
    of_recorder = [fix for fix in row.fixes if "TORCH_NCCL_DUMP_ON_TIMEOUT" in fix.environment]
    fixes += [fix for fix in row.fixes_for(suspect.cause) if not fix.now and fix not in of_recorder]
    if of_recorder and not recorded:
        fixes += WORDINGS.fixes(("record-calls",), {})
    elif of_recorder and not fixes:
        fixes += WORDINGS.fixes(("stacks-next-time",), {})
    return fixes


def _to_read(suspect: Suspect, root: Path) -> list[Fix]:
    """Return how to open a log that the evidence names, at its line: the suspect's first."""
    own = f"rank {suspect.ranks[0]} " if suspect.ranks else ""
    for one in sorted(suspect.evidence, key=lambda one: not one.text.startswith(own)):
        file, _, line = one.source.rpartition(":")
        if file and line.isdigit():
            figures = {"file": file.rpartition("/")[2], "line": line}
            figures["path"] = shlex.quote(str(root / file))
            return WORDINGS.fixes(("read-in-full",), figures)
    return []


def _of_text(suspects: Iterable[Suspect]) -> Report:
    """Return what the rules for messages say of the exception of the first suspect."""
    from ..postmortem_end import examine_text

    first = next(iter(suspects), None)
    if first is None or not first.traceback:
        return Report()
    found = examine_text(first.traceback.encode("utf-8", "replace"), "traceback")
    known = tuple(
        replace(one, severity="info", where=one.where or first.where)
        for one in found.findings
        if one.confidence != "prior"
    )
    return Report(findings=known)


def _with_text(first: Finding, closer: Sequence[Finding]) -> tuple[Finding, tuple[Finding, ...]]:
    """Return the first finding with what the rules for messages say of the same, and the others.

    They speak of one exception: what has the same advice, or better one, is no finding of its own.
    Where the first has no advice it takes that of the others, and the pitfall that this is of.
    """
    apart = []
    for one in closer:
        instead = not _mends(first)
        if one.pitfall != first.pitfall and one.cause not in _BETTER_ADVICE and not instead:
            apart.append(one)
            continue
        source = first.evidence[0].source if first.evidence else ""
        added = [Evidence(f"{one.title} ({one.confidence})", source)]
        added += [replace(each, source=source) for each in one.evidence[1:]]  # the first is quoted
        fixes = first.fixes
        if one.pitfall != first.pitfall:
            now = tuple(fix for fix in fixes if fix.now)
            better = one.fixes or table.load()[one.pitfall].fixes_for(one.cause)
            fixes = (*now, *better[: None if instead else 1], *_mends(first))
        first = replace(
            first,
            pitfall=one.pitfall if instead else first.pitfall,
            evidence=(*first.evidence, *added),
            effect=first.effect or one.effect,
            fixes=fixes,
        )
    return first, tuple(apart)


def _mends(finding: Finding) -> tuple[Fix, ...]:
    """Return what a finding says to do before the next run."""
    return tuple(fix for fix in finding.fixes if not fix.now)


def _in_debugger(suspect: Suspect) -> list[Fix]:
    """Return the line of an exception of which nothing else is known, and how to see its values."""
    script = _SCRIPT.search(suspect.traceback)
    if script is None:
        return WORDINGS.fixes(("raised-at",), {"where": suspect.where})
    figures = {"where": suspect.where, "script": shlex.quote(script[1].rpartition("/")[2])}
    return WORDINGS.fixes(("in-debugger",), figures)


def _only_to_read(finding: Finding) -> Finding:
    """Leave the advice to a finding that says more, if something else is left to do."""
    now = tuple(fix for fix in finding.fixes if fix.now)
    return replace(finding, fixes=now) if now else finding


def _of_snapshots(files: Iterable[FoundFile]) -> Report:
    """Return what snapshots and records of out-of-memory errors show."""
    from .. import postmortem

    report = Report()
    for one in [one for one in files if one.kind == "snapshot"][:MOST_SNAPSHOTS]:
        report += postmortem.examine(one.path, "snapshot")
    return report
