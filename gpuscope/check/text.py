"""Write what a check has found as lines of text for people."""

from __future__ import annotations

from collections.abc import Sequence

from ..predict.measured_kernels import measured
from ..predict.report import NAMES
from ..text import signs
from ..text.styled import Line, hang
from ..text.styled import cut as cut_line
from ..text.units import MIB, bytes_text, count_text, duration_text, signed_bytes_text
from ..text.width import cut, wrap
from ..wire.clean import clean
from .cause import CostlyLine, ModuleChange
from .outcome import BaselineChange, BudgetVerdict, Checked, Outcome, ScriptFinding

SIGNS = {
    "ok": ("✓", "accent"),
    "info": (signs.INFO, "muted"),
    "warning": (signs.WARN, "warn"),
    "problem": (signs.BAD, "bad"),
    "unchecked": ("?", "warn"),
}
MOST_PARTS = 6
PROOFS = {
    "alone": "this change alone adds {}",
    "together": "the changes of this file together add {}",
    "only": "it is the only change, and adds {}",
    "running": "{} of the growth was allocated while this line was running",
}


def lines(checked: Checked, code: int, width: int) -> list[Line]:
    """Return the whole result, ``width`` cells wide."""
    out: list[Line] = []
    for outcome in checked.outcomes:
        out += [*_outcome(outcome, checked.configuration.file.name, width), []]
    for one in checked.findings:
        out += _finding(one, width)
    if checked.findings:
        out.append([])
    for text in checked.problems:
        out += _item("unchecked", text, "", width)
    if checked.problems:
        out.append([])
    if checked.updated:
        out.append([(checked.updated, "text")])
    torch = next((one.predicted.torch for one in checked.outcomes if one.predicted), "")
    if torch:
        text = f"Traced with torch {torch}, kernels measured with torch {measured().torch}."
        out.append([(text, "muted")])
    return [*out, [(f"{summary(checked)} Exit code {code}.", "muted")]]


def summary(checked: Checked) -> str:
    """Return what the check comes to, as a sentence."""
    count = dict.fromkeys(SIGNS, 0)
    for severity in checked.severities():
        count[severity] += 1
    names = (("problem", "problem"), ("warning", "warning"), ("unchecked", "not checked"))
    parts = [
        f"{count[key]} {name}{'s' if count[key] > 1 and key != 'unchecked' else ''}"
        for key, name in names
        if count[key]
    ]
    many = len(checked.outcomes)
    what = f"{count_text(many, 'training')} in {duration_text(checked.seconds)}"
    return f"{what}: {', '.join(parts) or 'all budgets hold'}."


def _outcome(outcome: Outcome, file: str, width: int) -> list[Line]:
    training = outcome.training
    out = hang([(f"{clean(training.name)}  ", "title")], [(training.words(), "muted")], width)
    for verdict in outcome.verdicts:
        where = "" if verdict.severity in ("ok", "info") else f"{file}:{verdict.line}"
        out += _item(verdict.severity, verdict.text, where, width)
        if verdict.next:
            out += [[("    " + part, "faint")] for part in wrap(verdict.next, width - 4)]
    found = outcome.predicted
    if found is not None and not any(one.kind in ("fits", "peak") for one in outcome.verdicts):
        prediction = found.answer.prediction
        text = (
            f"needs {bytes_text(prediction.device.bytes)} of a GPU, "
            f"{bytes_text(prediction.allocated.bytes)} of it in tensors"
        )
        out += _item("info", text, "", width)
    if outcome.change is not None:
        out += _change(outcome.change, width)
    return out


def _item(severity: str, text: str, where: str, width: int) -> list[Line]:
    sign, token = SIGNS[severity]
    tail = f"   {where}" if where else ""
    return hang([(f"  {sign} ", token)], [(clean(text), "text"), (tail, "faint")], width)


def _change(change: BaselineChange, width: int) -> list[Line]:
    if not change.parts and not change.notes:
        return []
    out: list[Line] = []
    if change.parts:
        size = signed_bytes_text(change.change_bytes)
        out.append([(f"    tensors at the peak since {change.since}: {size}", "text")])
        out += [cut_line(_part(part), width) for part in change.parts[:MOST_PARTS]]
        rest = change.parts[MOST_PARTS:]
        if rest:
            size = signed_bytes_text(sum(part.change_bytes for part in rest))
            out.append([(f"    {size:>11}  ", "text"), (f"{len(rest)} others", "muted")])
    for one in change.causes:
        out += _cause(one, width)
    for note in change.notes:
        out += [[("    " + part, "muted")] for part in wrap(note, width - 4)]
    grew = change.change_bytes > 0 and bool(change.parts)
    if grew and not change.by_line:
        out.append([("    which line: gpuscope check --base REVISION", "faint")])
    return out


def part_words(part: ModuleChange) -> str:
    name = clean(part.module) or "outside modules"
    kind = NAMES.get(part.category, part.category)
    return f"{name}: {kind}" if kind else name


def _part(part: ModuleChange) -> Line:
    was = f"  was {bytes_text(part.before_bytes)}" if part.before_bytes >= MIB else ""
    size = signed_bytes_text(part.change_bytes)
    return [(f"    {size:>11}  ", "text"), (part_words(part), "text"), (was, "faint")]


def cause_words(one: CostlyLine) -> str:
    """Return in a sentence how it is known that the line is the cause."""
    return PROOFS[one.proof].format(bytes_text(one.bytes))


def _cause(one: CostlyLine, width: int) -> list[Line]:
    out = hang(
        [("    line  ", "muted")],
        [(f"{clean(one.file)}:{one.line}", "title"), (f"   {cause_words(one)}", "text")],
        width,
    )
    for sign, text in (("-", one.was), ("+", one.text)):
        if text:
            out.append([("          ", ""), (cut(f"{sign} {clean(text)}", width - 10), "accent")])
    return out


def _finding(one: ScriptFinding, width: int) -> list[Line]:
    return _item(one.finding.severity, one.finding.title, f"{clean(one.file)}:{one.line}", width)


def verdict_lines(outcome: Outcome, verdict: BudgetVerdict) -> Sequence[str]:
    """Return a verdict with what explains it, for reports that hold plain text."""
    rows = [f"{outcome.training.name}: {verdict.text}"]
    change = outcome.change
    if verdict.severity != "ok" and change is not None and change.change_bytes > 0:
        rows += [
            f"{signed_bytes_text(part.change_bytes)} {part_words(part)}"
            for part in change.parts[:MOST_PARTS]
        ]
        rows += [
            f"{one.file}:{one.line} {one.text or 'removed: ' + one.was} ({cause_words(one)})"
            for one in change.causes
        ]
    return [*rows, verdict.next] if verdict.next else rows
