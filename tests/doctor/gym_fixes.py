"""The fixes of the doctor, applied to a script as somebody would who follows them one after the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuscope.doctor.finding import Finding
from gpuscope.doctor.script import report

from .gym_subjects import PITFALLS, Subject, of_pitfall

MOST = 6


def applied(text: str, finding: Finding) -> str:
    """``text`` with the fix in place of what it replaces, every line of it with the indent of that place."""
    fix = finding.fixes[0]
    assert fix.code, f"{finding.pitfall}: {fix.title} is for somebody to do by hand"
    lines = text.split("\n")
    at = int(finding.where.rpartition(":")[2]) - 1
    if fix.before not in lines[at]:
        at = next(number for number, line in enumerate(lines) if fix.before in line)
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    first, *rest = fix.code.split("\n")
    lines[at : at + 1] = [lines[at].replace(fix.before, first, 1), *(indent + line for line in rest)]
    if fix.code.endswith(":"):  # a block was put around the line: what belongs to it goes along
        for number in range(at + 1 + len(rest), len(lines)):
            if not lines[number].startswith(indent + " "):
                break
            lines[number] = "    " + lines[number]
    return "\n".join(lines)


def followed(path: str, text: str) -> tuple[str, list[str]]:
    """The script once nothing of warning or worse is found in it, or no more can be done, and what was followed.
    ``path`` is where it is to be written: the checks read it there."""
    done: list[str] = []
    for _ in range(MOST):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        loud = [one for one in report([path]).findings if one.severity != "info"]
        if not loud:
            break
        done.append(loud[0].pitfall)
        text = applied(text, loud[0])
    return text, done


def fixed_subjects(gpus: int, folder: Path) -> list[Subject]:
    """The scripts that need so many GPUs with their fixes followed, written to ``folder``: as healthy as the cured."""
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
