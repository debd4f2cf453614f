"""The results of measured claims as text for a terminal, as Markdown, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from ..text.units import DASH, count_text
from .claim_run import Machine
from .claims import VERDICTS, ClaimResult, MeasuredFigure, in_words, short
from .tables import markdown_table

WIDTH = 80


def measured_text(judged: MeasuredFigure) -> str:
    """Return ``0.71 × [0.70, 0.72]  n=3``, or a dash where there is no figure."""
    figure, found = judged.figure, judged.interval
    if found is None:
        return DASH
    text = figure.number(found.middle)
    if found.low is not None and found.high is not None:
        scale = 100 if figure.unit == "%" else 1
        text += f" [{short(scale * found.low)}, {short(scale * found.high)}]"
    return f"{text}  n={len(judged.values)}"


def verdict_of(judged: MeasuredFigure) -> str:
    """Return a figure's verdict in words, in brackets if the claim does not depend on it."""
    word = in_words(judged.verdict)
    return word if judged.figure.counts else f"({word})"


def text(results: Sequence[ClaimResult], width: int = WIDTH) -> str:
    """Return a block for each claim: statement, verdict, figures, and what was measured."""
    return "\n\n".join("\n".join(_block(result, max(60, width))) for result in results)


def _block(result: ClaimResult, width: int) -> list[str]:
    word = in_words(result.verdict)
    lines = textwrap.wrap(f"{result.claim.id}: {result.claim.statement}", width - len(word) - 2)
    lines[0] = lines[0].ljust(width - len(word)) + word
    for judged in result.figures:
        untested = judged.verdict == "cannot_be_tested"
        word = verdict_of(judged)
        found = f"      {judged.reason if untested else measured_text(judged)}"
        if len(found) + len(word) + 2 > width:
            found = textwrap.shorten(found, width - len(word) - 2)
        title = f"  {judged.figure.title}  {judged.figure.threshold}".rstrip()
        lines += [title[:width], found.ljust(width - len(word)) + word]
    notes = [
        f"{note['title']}: {short(note['value'])} {note['unit']}".rstrip() for note in result.notes
    ]
    about = [f"reason: {result.reason}"] if result.reason else []
    configuration = result.claim.configuration(result.device)
    about += [f"on {result.device}: {configuration}"] if configuration and result.figures else []
    about += ["; ".join(notes)] if result.notes else []
    for part in about:
        lines += textwrap.wrap(part, width, initial_indent="    ", subsequent_indent="    ")
    return lines


def summary(results: Sequence[ClaimResult]) -> str:
    """Return how many of each verdict there are, in words."""
    counts = {verdict: sum(result.verdict == verdict for result in results) for verdict in VERDICTS}
    found = ", ".join(f"{count} {in_words(verdict)}" for verdict, count in counts.items() if count)
    return f"{count_text(len(results), 'claim')}: {found}"


def markdown(results: Sequence[ClaimResult], machine: Machine) -> str:
    """Return a table with one row for each figure, for a document."""
    rows = [["claim", "configuration", "figure", "threshold", "measured [95 %]", "verdict"]]
    for result in results:
        claim, word = result.claim, in_words(result.verdict)
        reason = f" ({result.reason})" if result.reason else ""
        first = [f"{claim.id}: {claim.statement} → {word}{reason}"]
        first.append(claim.configuration(result.device) or DASH)
        cells = [
            [one.figure.title, one.figure.threshold or DASH, measured_text(one), verdict_of(one)]
            for one in result.figures
        ] or [[DASH, DASH, DASH, word]]
        rows.append([*first, *cells[0]])
        rows += [["", "", *row] for row in cells[1:]]
    return f"{machine.name}, {machine.versions}\n\n{markdown_table(rows)}"


def document(
    results: Sequence[ClaimResult], machine: Machine, repeats: int, seconds: float, wanted: int
) -> dict[str, Any]:
    """Return the JSON document. ``complete`` is false while claims are still to come."""
    unknown = [
        {
            "path": f"claims.{result.claim.id}.{judged.figure.key}",
            "code": "not_measured",
            "reason": judged.reason,
        }
        for result in results
        for judged in result.figures
        if judged.interval is None
    ]
    return {
        "machine": {"device": machine.device, "name": machine.name, **machine.facts},
        "warnings": machine.warnings,
        "repeats": repeats,
        "seconds": round(seconds, 3),
        "complete": len(results) == wanted,
        "claims": [result.document() for result in results],
        "unknown": unknown,
    }
