"""Check training scripts for mistakes that can be seen in the syntax tree of one file.

Each finding names its line and its fix. Nothing is imported or executed. A check reports something
only where the file alone proves it. A comment ``# gpuscope: ignore[ID]`` excludes its line (without
``[ID]``: from every check), and ``# gpuscope: ignore-file[ID]`` excludes the whole file.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ...text.units import count_text
from ..finding import Abstained, Evidence, Finding, Fix, Report
from ..wordings import Wording, Wordings, fill

if TYPE_CHECKING:
    from .program import Script, ScriptMatch

__all__ = ["examine", "report"]

WORDINGS = Wordings("script")
_MAX_FINDINGS_A_FILE = 100
_MAX_SECONDS = 60


def examine(paths: Iterable[str]) -> tuple[list[Finding], list[Abstained], list[str]]:
    """Return what is found in these files and folders, what stays open, and what went wrong."""
    whole = report(paths)
    return list(whole.findings), list(whole.abstained), list(whole.problems)


def report(paths: Iterable[str], on_cpu: bool = False) -> Report:
    """Return the findings as a report that lists the examined files.

    ``on_cpu`` says that the scripts train on the CPU; mistakes that matter only on a GPU are then
    left out.
    """
    from . import files

    findings: list[Finding] = []
    abstained: list[Abstained] = []
    problems: list[str] = []
    examined: list[str] = []
    ends = time.monotonic() + _MAX_SECONDS
    for path in paths:
        seen: list[str] = []
        for name, text in files.sources(path, problems):
            if time.monotonic() > ends:
                problems.append(
                    f"{path} was checked in part: after {_MAX_SECONDS} s the rest was left, from "
                    f"{name} on."
                )
                break
            found, undecided = _file(name, text, problems, on_cpu)
            findings += found
            abstained += [one for one in undecided if one not in abstained]
            seen.append(name)
        examined += (
            seen
            if seen == [path]
            else [f"{path} ({count_text(len(seen), 'Python file')})"]
            if seen
            else []
        )
    return Report(
        findings=tuple(findings),
        abstained=tuple(abstained),
        problems=tuple(problems),
        examined=tuple(examined),
    )


def _file(
    path: str, text: str, problems: list[str], on_cpu: bool
) -> tuple[list[Finding], list[Abstained]]:
    """Return the findings and the abstentions of one file.

    If the file cannot be checked, the reason is added to ``problems``.
    """
    from . import checks
    from .program import Script
    from .source import SourceTooLarge

    if "torch" not in text:
        return [], []
    try:
        script = Script(path, text)
    except SyntaxError as error:
        where = f"{path}:{error.lineno}" if error.lineno else path
        problems.append(f"{where} was not checked: not valid Python here ({error.msg}).")
        return [], []
    except (ValueError, RecursionError, MemoryError) as error:
        problems.append(
            f"{path} was not checked: its syntax tree cannot be built "
            f"({str(error) or 'nested too deeply'})."
        )
        return [], []
    if not script.uses_torch:
        return [], []
    try:
        left_open = [
            WORDINGS.abstained(name, **figures) for name, figures in checks.open_questions(script)
        ]
        return _findings(script, problems, on_cpu), left_open
    except (SourceTooLarge, RecursionError):
        problems.append(
            f"{path} was not checked: its code is too large or too deeply nested to be followed "
            "in time."
        )
        return [], []


def _findings(script: Script, problems: list[str], on_cpu: bool) -> list[Finding]:
    """Return what the checks find in a file.

    Findings that a comment suppresses are left out and, on the CPU, mistakes that matter only on a
    GPU.
    """
    from . import checks
    from .nodes import line

    findings: dict[tuple[str, int], Finding] = {}
    for found in checks.run(script):
        wording = WORDINGS.findings[found.wording]
        if script.is_ignored(found.node, wording.pitfall) or (on_cpu and wording.gpu_only):
            continue
        finding = _finding(script, found, wording)
        findings.setdefault((finding.cause, line(found.node)), finding)
        if len(findings) == _MAX_FINDINGS_A_FILE:
            problems.append(
                f"{script.path} was checked in part: it has more than {_MAX_FINDINGS_A_FILE} "
                "findings."
            )
            break
    return list(findings.values())


def _finding(script: Script, found: ScriptMatch, wording: Wording) -> Finding:
    """Return the finding of what a check reports, in the words of its row."""
    place = script.place(found.node)
    lines = [Evidence(f"{script.code(found.node)}: {fill(wording.why, found.figures)}", place)]
    lines += [Evidence(script.code(node), script.place(node)) for node in found.more[:20]]
    return WORDINGS.finding(
        wording.id,
        found.figures,
        fixes=[_fix(script, found, fix) for fix in WORDINGS.fixes(wording.fixes, found.figures)],
        severity=found.severity,
        confidence=found.confidence,
        evidence=tuple(lines),
        where=place,
    )


def _fix(script: Script, found: ScriptMatch, fix: Fix) -> Fix:
    """Return the fix with its code, or only its words.

    The code is shown only if it is valid Python and changes something.
    """
    from . import edits

    before = edits.text(script, found.node) if found.before is None else found.before
    if not fix.code or not edits.is_usable(before, fix.code):
        return replace(fix, code="")
    return replace(fix, before=before)
