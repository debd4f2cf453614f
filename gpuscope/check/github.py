"""Write the result as GitHub's workflow commands, which put messages at lines of a pull request."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from ..text.units import bytes_text
from ..wire.clean import clean
from .outcome import BudgetVerdict, Checked, Outcome
from .text import cause_words, verdict_lines

COMMANDS = {"problem": "error", "unchecked": "error", "warning": "warning"}


def wanted(environ: Mapping[str, str]) -> bool:
    """Say whether this runs in a GitHub workflow."""
    return environ.get("GITHUB_ACTIONS") == "true"


def commands(checked: Checked) -> Iterator[str]:
    """Return one command for each budget, changed line and script that is not as it should be."""
    file = os.path.relpath(checked.configuration.file.resolve(), checked.root)
    for outcome in checked.outcomes:
        broken = False
        for verdict in outcome.verdicts:
            if verdict.severity in COMMANDS:
                broken |= verdict.severity == "problem"
                yield _budget(outcome, verdict, file)
        if broken and outcome.change is not None:
            for one in outcome.change.causes:
                title = f"gpuscope: {outcome.training.name} +{bytes_text(one.bytes)}"
                yield _command("error", one.file, one.line, title, cause_words(one))
    for found in checked.findings:
        finding = found.finding
        command = COMMANDS.get(finding.severity, "notice")
        yield _command(
            command, found.file, found.line, f"gpuscope: {finding.pitfall}", finding.title
        )
    for text in checked.problems:
        yield _command("error", file, 1, "gpuscope: not checked", text)


def _budget(outcome: Outcome, verdict: BudgetVerdict, file: str) -> str:
    title = f"gpuscope: {outcome.training.name} {verdict.kind.replace('_', ' ')}"
    text = "\n".join(verdict_lines(outcome, verdict))
    return _command(COMMANDS[verdict.severity], file, verdict.line, title, text)


def _command(kind: str, file: str, line: int, title: str, text: str) -> str:
    place = f"file={_value(PurePath(file).as_posix())},line={line},title={_value(title)}"
    return f"::{kind} {place}::{_data(text)}"


def _data(text: str) -> str:
    escaped = "\n".join(clean(line) for line in text.split("\n"))
    return escaped.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _value(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
