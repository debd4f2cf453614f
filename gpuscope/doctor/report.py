"""Format a report as text or as the JSON document, and compute its exit code.

All functions are pure; every text that came from outside is cleaned and cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..exit_status import FailOn, of_severities
from ..text import signs
from ..text.units import count_text
from ..text.width import cells, wrap
from ..wire.clean import clean
from .alike import evidence_of, groups, on_devices, where_of
from .finding import (
    SEVERITY_TOKENS,
    Abstained,
    Effect,
    EndedTrainer,
    Evidence,
    Finding,
    Fix,
    Pitfall,
    Report,
)
from .order import rank
from .steps import steps_of

if TYPE_CHECKING:
    from ..text.styled import Line

Made = TypeVar("Made", Abstained, Effect, EndedTrainer, Evidence, Finding, Fix)
MAX_FINDINGS, MAX_EVIDENCE, MAX_FIXES, MAX_OTHERS = 200, 20, 12, 500
MAX_TEXT, MAX_CODE = 600, 4000
SHOWN_EVIDENCE, SHOWN_FIXES = 6, 3
_PLAIN = {
    "▲": "!!",
    "▶": ">",
    "×": "x",
    "○": "o",
    "■": "#",
    "─": "=",
    "✓": "ok",
    "±": "+-",
    "◆": "!",
    "·": "-",
    "→": "->",
    "–": "-",
    "−": "-",
    "…": "...",
    "≥": ">=",
    "≤": "<=",
    "µ": "u",
    "“": '"',
    "”": '"',
    "’": "'",
}


def exit_code(report: Report, fail_on: FailOn = "warning") -> int:
    """Return the exit code of a settled report.

    0 means fine, 1 warnings, 2 problems, and 3 that something could not be checked and no problem
    was found. Findings below ``fail_on`` do not count.
    """
    found = [str(finding.severity) for finding in report.findings]
    return of_severities(found + ["unchecked"] * len(report.problems), fail_on)


def finish(report: Report, table: Mapping[str, Pitfall]) -> Report:
    """Return the report ranked, cleaned and cut to size.

    A finding without fixes or a proof gets those of the table. What was cut is mentioned in
    ``problems``.
    """
    ranked = rank(report.findings)
    problems = [*report.problems]
    if len(ranked) > MAX_FINDINGS:
        problems.append(f"Of {len(ranked)} findings only the first {MAX_FINDINGS} are shown.")
    examined = tuple(_clean(name) for name in dict.fromkeys(report.examined[:MAX_OTHERS]))
    named = {finding.pitfall for finding in ranked}
    abstained = {
        (one.pitfall, one.missing): one for one in report.abstained if one.pitfall not in named
    }
    return Report(
        findings=tuple(_finding(one, table.get(one.pitfall)) for one in ranked[:MAX_FINDINGS]),
        abstained=tuple(_strings(one, {}) for one in list(abstained.values())[:MAX_OTHERS]),
        problems=tuple(_clean(text) for text in dict.fromkeys(problems[:MAX_OTHERS])),
        examined=examined,
        ended=tuple(_strings(one, {}) for one in report.ended[:MAX_OTHERS]),
        exhibits=report.exhibits,
        ended_here=report.ended_here,
        ended_well=_clean(report.ended_well),
    )


def _finding(finding: Finding, row: Pitfall | None) -> Finding:
    fixes = finding.fixes or (row.fixes_for(finding.cause) if row else ())
    made = {
        "evidence": tuple(_strings(one, {}) for one in finding.evidence[:MAX_EVIDENCE]),
        "fixes": tuple(_fix(one) for one in fixes[:MAX_FIXES]),
        "verify": _clean(finding.verify or (row.verify if row else "")),
        "effect": None if finding.effect is None else _strings(finding.effect, {}),
    }
    return _strings(finding, made)


def _fix(fix: Fix) -> Fix:
    """Code keeps its lines."""
    return _strings(fix, {name: _code(getattr(fix, name)) for name in ("code", "before")})


def _strings(one: Made, made: dict[str, Any]) -> Made:
    """Return ``one`` with its strings cleaned and the fields ``made`` replaced."""
    values: dict[str, Any] = {field.name: getattr(one, field.name) for field in fields(one)}
    values = {
        name: _clean(value) if isinstance(value, str) else value for name, value in values.items()
    } | made
    return type(one)(**values)


def _clean(text: str) -> str:
    return clean(" ".join(text.split()) if "\n" in text or "\t" in text else text, MAX_TEXT)


def _code(text: str) -> str:
    return "\n".join(clean(line.expandtabs(4), MAX_TEXT) for line in text[:MAX_CODE].splitlines())


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────


def document(report: Report, code: int) -> dict[str, Any]:
    """Return the JSON document of a settled report. What a finding does not have is null."""
    jobs = [exhibit.document for exhibit in report.exhibits]
    well = {"ended_well": report.ended_well} if report.ended_well else {}
    return ({"jobs": jobs} if jobs else {}) | {
        "findings": [_plain_finding(finding) for finding in report.findings],
        "abstained": [asdict(one) for one in report.abstained],
        "examined": [*report.examined, *(one.text for one in report.ended)],
        "problems": [{"severity": "unchecked", "reason": text} for text in report.problems],
        "exit_code": code,
        **well,
    }


def _plain_finding(finding: Finding) -> dict[str, Any]:
    return {
        "pitfall": finding.pitfall,
        "cause": finding.cause,
        "title": finding.title,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "job": finding.job or None,
        "where": finding.where or None,
        "evidence": [{"text": one.text, "source": one.source or None} for one in finding.evidence],
        "fixes": [_plain_fix(fix) for fix in finding.fixes],
        "effect": None if finding.effect is None else asdict(finding.effect),
        "verify": finding.verify or None,
    }


def _plain_fix(fix: Fix) -> dict[str, Any]:
    """Return the fields of a fix that a reader of one finding needs."""
    return {
        key: None if value == "" else value for key, value in asdict(fix).items() if key != "causes"
    }


# ── text ──────────────────────────────────────────────────────────────────────────────────────────


def lines(report: Report, code: int | None, width: int) -> list[Line]:
    """Return the text of a settled report in at most ``width`` columns.

    Only lines that are meant to be copied may be longer. ``code`` is the exit code that the last
    line states; None where the program goes on.
    """
    out = _checked(report.examined, width)
    now = _present(report)
    surer = [one for one in now if one.confidence != "prior"]
    priors = [one for one in now if one.confidence == "prior"]
    shown: set[Evidence | Fix | str] = set()
    for group in groups(surer):
        out += [*_finding_lines(group, width, shown), []]
    for exhibit in report.exhibits:
        out += exhibit.lines(width)
    if priors:
        out += _prior_lines(priors, width, bool(surer))
    if report.abstained:
        out.append([("Inconclusive, and what would decide it", "accent")])
        for one in report.abstained:
            out += _item(one.missing, width)
        out.append([])
    if report.problems:
        out.append([("Could not be checked", "warn")])
        for text in report.problems:
            out += _item(text, width)
        out.append([])
    if report.ended:
        out.append([("Jobs that ended", "accent")])
        for ended in report.ended:
            out += [*_item(ended.text, width), [("    ", ""), (ended.command, "faint")]]
        out.append([])
    return out + _ending(report, code, width)


def _checked(examined: Sequence[str], width: int) -> list[Line]:
    """Return the lines that list what was examined, if it is more than one thing.

    A single one is named in the report's last line.
    """
    if len(examined) < 2:
        return []
    parts = wrap(" · ".join(examined), max(width - 9, 20))
    heads = ["Checked  ", *[" " * 9] * (len(parts) - 1)]
    return [
        *([(head, "accent"), (part, "text")] for head, part in zip(heads, parts, strict=True)),
        [],
    ]


def _finding_lines(
    group: Sequence[Finding], width: int, shown: set[Evidence | Fix | str]
) -> list[Line]:
    """Return the lines of findings that say the same of several GPUs or ranks, or of a single one.

    Evidence and fixes of an earlier finding (``shown``) are not repeated.
    """
    finding, where = group[0], where_of(group)
    sign, token = signs.BY_SEVERITY[finding.severity], SEVERITY_TOKENS[finding.severity]
    tail = f"  {finding.confidence}" + (f", {where}" if where else "")
    times = f"{len(group)}× " if len(group) > 1 else ""
    parts = wrap(times + finding.title, max(width - 2, 20))
    out: list[Line] = [[(f"{sign} ", token), (parts[0] if parts else finding.pitfall, "title")]]
    out += [[("  " + part, "title")] for part in parts[1:]]
    if cells(out[-1][-1][0]) + 2 + cells(tail) <= width:
        out[-1].append((tail, "muted"))
    else:
        out += [[("  " + part, "muted")] for part in wrap(tail, width - 2)]
    evidence_here = evidence_of(group)
    fresh = [evidence for evidence in evidence_here if evidence not in shown]
    for evidence in fresh[:SHOWN_EVIDENCE]:
        out += [[("  ", ""), *line] for line in evidence_lines(evidence, width - 2)]
    if not fresh and evidence_here:
        out.append([("  same evidence as above", "muted")])
    if len(fresh) > SHOWN_EVIDENCE:
        more = count_text(len(fresh) - SHOWN_EVIDENCE, "more line")
        out.append([(f"  and {more} of evidence: --json", "muted")])
    shown.update(fresh)
    if not on_devices(group):
        also = [f"{one.title} ({one.where})" for one in group[1 : 1 + SHOWN_EVIDENCE]]
        also += [f"and {len(group) - 1 - len(also)} more: --json"] * (len(group) > 1 + len(also))
        for number, text in enumerate(also):
            out += _labelled("Also" if number == 0 else "", wrap(text, max(width - 9, 20)))
    if finding.effect is not None:
        out += _labelled("Gain", wrap(finding.effect.text, max(width - 9, 20)))
    steps = steps_of(finding, replayed=False)
    now = [fix for fix in steps if fix.now]
    later = [fix for fix in steps if not fix.now]
    told = steps[0] if steps and finding.effect is not None else None
    for number, fix in enumerate(now[:SHOWN_FIXES]):
        out += _fix_lines("Now" if number == 0 else "or", fix, width, fix is not told)
    later = later[:SHOWN_FIXES]
    new = [fix for fix in later if fix not in shown]
    for number, fix in enumerate(new):
        out += _fix_lines("Fix" if number == 0 else "or", fix, width, fix is not told)
    if later and not new:  # by its name: the page may be long
        out += _labelled("Fix", wrap(f"{later[0].title.rstrip('.')}, as above.", width - 9))
    elif len(new) < len(later):
        out += _labelled("or", ["as above"])
    if finding.verify:
        known = finding.verify.startswith("gpuscope lab")
        out += _labelled("Repro" if known else "Check", [finding.verify])
    explain = [f"gpuscope doctor --explain {finding.pitfall}"]
    out += _labelled("More", explain) if finding.pitfall not in shown else []
    shown.update((*later, finding.pitfall))
    return out


def evidence_lines(evidence: Evidence, width: int) -> list[Line]:
    """Return a line of evidence, wrapped; its source stands behind the last word in any case."""
    source = f"   {evidence.source}" if evidence.source else ""
    parts = wrap(evidence.text, max(width, 20))
    if source and parts and cells(parts[-1]) + cells(source) > width:
        text, _, word = parts[-1].rpartition(" ")
        parts[-1:] = [text, word] if text else [word]
    out: list[Line] = [[(part, "text")] for part in parts]
    if source and out:
        out[-1].append((source, "faint"))
    return out


def _fix_lines(label: str, fix: Fix, width: int, gain: bool) -> list[Line]:
    out = _labelled(label, wrap(fix_sentences(fix, gain), max(width - 9, 20)))
    for sign, text in fix.signed_code():
        out.append([("         ", ""), (sign + text, "faint" if sign == "- " else "accent")])
    for text in filter(None, (fix.environment, fix.command)):
        out.append([("         ", ""), (text, "accent")])
    return out


def fix_sentences(fix: Fix, gain: bool = True) -> str:
    """Return the title of a fix with its gain and its trade-off, as sentences.

    They say so where the numbers in its code are not the user's.

    With ``gain`` False the gain is left out, for a finding that has stated it already.
    """
    parts = [
        fix.title,
        "The numbers in this code are examples" if fix.example else "",
        f"Gain: {fix.effect}" if fix.effect and gain else "",
        f"Trade-off: {fix.cost}" if fix.cost else "",
    ]
    return " ".join(text.rstrip(".") + "." for text in parts if text)


def _labelled(label: str, texts: Sequence[str]) -> list[Line]:
    heads = [f"  {label:<6} ", *[" " * 9] * (len(texts) - 1)]
    return [[(head, "muted"), (text, "text")] for head, text in zip(heads, texts, strict=True)]


def _prior_lines(priors: Sequence[Finding], width: int, besides: bool) -> list[Line]:
    head = (
        "Also possible"
        if besides
        else "No clear cause was found. Possible causes, the most common first:"
    )
    out: list[Line] = [[(head, "accent")]]
    for finding in priors:
        first = f": {finding.fixes[0].title}" if finding.fixes else ""
        out += _item(f"{finding.title}{first} [{finding.pitfall}]", width)
    return [*out, []]


def _item(text: str, width: int) -> list[Line]:
    parts = wrap(text, max(width - 4, 20))
    return [
        [("  · " if number == 0 else "    ", "muted"), (part, "text")]
        for number, part in enumerate(parts)
    ]


def _ending(report: Report, code: int | None, width: int) -> list[Line]:
    shown = replace(report, findings=tuple(group[0] for group in groups(report.findings)))
    sentence = summary(shown) + ("" if code is None else f" Exit code {code}.")
    return [[(part, "muted")] for part in wrap(sentence, width)]


def summary(report: Report) -> str:
    """Return what a settled report comes to, as a sentence."""
    now = _present(report)
    count = dict.fromkeys(SEVERITY_TOKENS, 0)
    for finding in now:
        if finding.confidence != "prior":
            count[finding.severity] += 1
    counts = [_count(count["problem"], "problem"), _count(count["warning"], "warning")]
    nothing = "nothing wrong was found"
    if report.ended and not report.ended_here:  # of a file: how it ended is said, not why
        nothing = "nothing that explains the end was found"
    guesses = bool(now) and all(finding.confidence == "prior" for finding in now)
    if now:
        nothing = (
            "nothing that decides the cause was found" if guesses else "no problem and no warning"
        )
    text = ", ".join(filter(None, counts)) or (
        nothing if report.examined else "nothing was examined"
    )
    looked = f" in {report.examined[0]}" if len(report.examined) == 1 else ""
    if text == nothing and looked.endswith(".py"):
        looked = f" in the text of {report.examined[0]}"
    if guesses and report.examined == ("the symptom",):
        text, looked = "these words alone do not decide it", ""
    if report.ended_here and text == "nothing wrong was found" and not looked:
        text += " in what runs now"
    before = f". {report.ended_here}" if report.ended_here else ""
    well = f"{report.ended_well} " if report.ended_well else ""
    return f"{well}{text[:1].upper()}{text[1:]}{looked}{before}."


def _present(report: Report) -> list[Finding]:
    """Return the findings that are shown one by one.

    If trainers that ended are listed, their findings are left to that list.
    """
    return [one for one in report.findings if not one.past or not report.ended]


def _count(number: int, thing: str) -> str:
    return count_text(number, thing) if number else ""


def in_ascii(text: str) -> str:
    """Return ``text`` for an encoding that lacks our signs."""
    for sign, plain in _PLAIN.items():
        text = text.replace(sign, plain)
    return text
