"""The results of measured claims as text for a terminal, as Markdown, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from .claim_run import Machine, Options
from .claims import WORDS, Judged, Note, Result, short

WIDTH = 80


def measured(judged: Judged) -> str:
    """``0.71 × [0.70, 0.72]``, or a dash where there is no figure."""
    figure, found = judged.figure, judged.estimate
    if found.mean is None:
        return "–"
    if found.low is None or found.high is None:
        return figure.number(found.mean)
    scale = 100 if figure.unit == "%" else 1
    return f"{figure.number(found.mean)} [{short(scale * found.low)}, {short(scale * found.high)}]"


def note_text(note: Note) -> str:
    value = note.value
    shown = "unknown" if value is None else value if isinstance(value, str) else f"{short(value)} {note.unit}".rstrip()
    return f"{note.title}: {shown}"


def text(results: Sequence[Result], width: int = WIDTH) -> str:
    """A block for each claim: statement and verdict, each figure against its threshold, the configuration."""
    return "\n\n".join("\n".join(_block(result, max(60, width))) for result in results)


def _block(result: Result, width: int) -> list[str]:
    word = WORDS[result.verdict]
    lines = textwrap.wrap(f"{result.claim.id}: {result.claim.statement}", width - len(word) - 2)
    lines[0] = lines[0].ljust(width - len(word)) + word
    for judged in result.figures:
        lines += _figure(judged, width)
    about = [f"reason: {result.reason}"] if result.reason else []
    about += [f"on {result.device}: {result.configuration}"] if result.configuration and result.figures else []
    about += ["; ".join(note_text(note) for note in result.notes)] if result.notes else []
    for part in about:
        lines += textwrap.wrap(part, width, initial_indent="    ", subsequent_indent="    ")
    return lines


def _figure(judged: Judged, width: int) -> list[str]:
    figure = judged.figure
    limit = f"  {figure.threshold}" if figure.judged else ""
    word = "" if judged.verdict is None else WORDS[judged.verdict]
    if judged.verdict is not None and not figure.counts:
        word = f"({word})"
    right = f"{measured(judged)}{limit}"
    used = len(judged.values)
    right += f"  n={used}" if used else ""
    left = "  " + figure.title
    if judged.verdict == "cannot_be_tested":
        right, word = judged.reason, "cannot be tested here"
    if len(left) + len(right) + len(word) + 4 <= width:
        body = left + "  " + right
        return [(body.ljust(width - len(word)) + word).rstrip()]
    body = textwrap.shorten(f"      {right}", width) if len(right) + len(word) + 8 > width else "      " + right
    return [left[:width], (body.ljust(width - len(word)) + word).rstrip()]


def summary(results: Sequence[Result]) -> str:
    """How many of each verdict."""
    counts = [(word, sum(result.verdict == verdict for result in results)) for verdict, word in WORDS.items()]
    return f"{len(results)} claim{'' if len(results) == 1 else 's'}: " + ", ".join(
        f"{count} {word}" for word, count in counts if count
    )


def markdown(results: Sequence[Result], machine: Machine) -> str:
    """A table with one row for each figure, for a document."""
    head = f"{machine.name}, torch {machine.facts.get('torch_version')}, Python {machine.facts.get('python_version')}"
    lines = [
        head,
        "",
        "| claim | configuration | figure | threshold | measured [95 %] | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        verdict = f"**{WORDS[result.verdict]}**" + (f" ({result.reason})" if result.reason else "")
        first = [f"**{result.claim.id}**: {result.claim.statement} → {verdict}", result.configuration or "–"]
        if not result.figures:
            lines.append(_row(*first, "–", "–", "–", WORDS[result.verdict]))
        for index, judged in enumerate(result.figures):
            own = "–" if judged.verdict is None else WORDS[judged.verdict]
            lines.append(
                _row(
                    *(first if index == 0 else ["", ""]),
                    judged.figure.title,
                    judged.figure.threshold or "–",
                    measured(judged) + (f", n = {len(judged.values)}" if judged.values else ""),
                    own if judged.figure.counts else f"({own})",
                )
            )
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def document(
    results: Sequence[Result], machine: Machine, options: Options, seconds: float, wanted: int
) -> dict[str, Any]:
    """The JSON document. ``complete`` is false while claims are still to come."""
    unknown = [
        {"path": f"claims.{result.claim.id}.{judged.figure.key}", "code": "not_measured", "reason": judged.reason}
        for result in results
        for judged in result.figures
        if judged.estimate.mean is None
    ]
    return {
        "machine": {"device": machine.device, "name": machine.name, **machine.facts},
        "warnings": machine.warnings,
        "tiny": options.tiny,
        "repeats": options.count,
        "seconds": round(seconds, 3),
        "complete": len(results) == wanted,
        "claims": [result.document() for result in results],
        "unknown": unknown,
    }
