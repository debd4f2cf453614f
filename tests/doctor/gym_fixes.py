"""Apply the doctor's fixes to a script, one after the other.

Somebody who follows them would do so.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gpuscope.doctor.finding import Finding
from gpuscope.doctor.script import report

from .gym_subjects import PITFALLS, Subject, of_pitfall

MOST = 6
FOLLOWED = {"deprecated-amp"}
"""Only info, and followed all the same."""


def applied(source: str, finding: Finding) -> str:
    """The source with the fix in place of what it replaces; what it only adds goes to the end."""
    fix = finding.fixes[0]
    assert fix.code, f"{finding.pitfall}: {fix.title} is for somebody to do by hand"
    if not fix.before:
        return f"{source}\n{fix.code}\n"
    lines = source.split("\n")
    pattern = re.compile(
        r"\n[ \t]*".join(re.escape(line.strip()) for line in fix.before.split("\n"))
    )
    begin = sum(len(line) + 1 for line in lines[: int(finding.where.rpartition(":")[2]) - 1])
    match = pattern.search(source, begin) or pattern.search(source)
    assert match, fix.before
    start = source.rfind("\n", 0, match.start()) + 1
    indent = source[start:][: len(source[start:]) - len(source[start:].lstrip())]
    changed = source[: match.start()] + fix.code.replace("\n", "\n" + indent)
    rest = source[match.end() :]
    if not fix.code.endswith(":"):
        return changed + rest
    # A block was put around the line: what belongs to it goes along.
    body = re.match(rf"(?:\n(?:{indent}[ \t]+[^\n]*|[ \t]*)(?=\n|$))*", rest)
    assert body
    return changed + body[0].replace("\n", "\n    ") + rest[body.end() :]


def followed(path: str, text: str) -> tuple[str, list[str]]:
    """Return the script once no fix is left to follow, and what was followed.

    It ends earlier where no more can be done. ``path`` is where the script is to be written: the
    checks read it there.
    """
    done: list[str] = []
    for _ in range(MOST):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        loud = [
            one
            for one in report([path]).findings
            if one.severity != "info" or one.pitfall in FOLLOWED
        ]
        if not loud:
            break
        done.append(loud[0].pitfall)
        text = applied(text, loud[0])
    return text, done


def fixed_subjects(gpus: int, folder: Path) -> list[Subject]:
    """Return the scripts that need so many GPUs, with their fixes followed.

    They are written to ``folder``, and are as healthy as the cured ones.
    """
    found = []
    for one in PITFALLS.values():
        path = folder / one.faulty.name
        if one.gpus != gpus or "script" not in one.evidence:
            continue
        try:
            done = followed(str(path), one.faulty.read_text())[1]
        except AssertionError:
            continue  # by hand
        if one.named in done:
            found.append(replace(of_pitfall(one, True), name=f"{one.id} fixed", script=path))
    return found
