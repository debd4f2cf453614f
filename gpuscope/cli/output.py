"""Format the output that the one-shot verbs share.

This is aligned plain text, numbers with units, and the JSON document with its unknown values. It
needs only the standard library, so that ``gpuscope devices`` starts as fast as Python does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeGuard

from ..exit_status import of_severities
from ..text import width
from ..text.ranges import ranges_text
from ..text.styled import Line, plain
from ..text.units import DASH, amount_text, brief_duration_text, percent_text, window_text
from ..wire.clean import clean
from ..wire.frames import NOT_INITIALISED, Reading, Unknown
from .args import driver_timeout, flag, option

if TYPE_CHECKING:
    from ..snapshot.drawing import Charset

FILE_WIDTH = 100
"""The width of a report that goes to a file or a pipe."""
_COLOURS = {
    "title": "1",
    "accent": "36",
    "muted": "2",
    "faint": "2",
    "warn": "33",
    "bad": "1;31",
    "allocated": "34",
    "cached": "33",
}
NO_REASON_GIVEN = Unknown(NOT_INITIALISED, "the source gave no reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every one-shot verb."""
    flag(parser, "--json", "a JSON document instead of text")
    option(
        parser,
        "--timeout SECONDS",
        "the longest wait for the driver (default 5)",
        driver_timeout,
        default=5.0,
    )


# ── text ──────────────────────────────────────────────────────────────────────────────────────────


def table(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Return lines with aligned columns; the first row is the heading.

    Columns in ``right`` are aligned to the right.
    """
    widths = [max(width.cells(row[index]) for row in rows) for index in range(len(rows[0]))]
    to_the_right = set(right)
    lines = []
    for row in rows:
        parts = (
            width.pad(text, widths[index], "right" if index in to_the_right else "left")
            for index, text in enumerate(row)
        )
        lines.append("  ".join(parts).rstrip())
    return lines


def terminal_width() -> int | None:
    """Return how many cells wide the terminal is, None where output goes to a file or a pipe."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return None


def on_terminal(line: str) -> list[str]:
    """Break a line that a terminal would break within a word, with its indent."""
    columns, indent = terminal_width(), " " * (len(line) - len(line.lstrip()))
    if columns is None or width.cells(line) <= columns:
        return [line]
    return [indent + part for part in width.wrap(line, max(20, columns - len(indent)))]


def page_width(least: int, most: int) -> int:
    """Return how many cells wide a report on standard output is."""
    import shutil

    columns = (
        shutil.get_terminal_size((FILE_WIDTH, 40)).columns if sys.stdout.isatty() else FILE_WIDTH
    )
    return min(max(columns, least), most)


def coloured(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Say whether a stream may have colours; ``NO_COLOR`` and ``TERM=dumb`` switch them off."""
    return (
        stream.isatty()
        and not environ.get("NO_COLOR")
        and environ.get("TERM", "") not in ("", "dumb")
    )


def glyphs() -> Charset:
    """Return the signs for charts that standard output can write."""
    from ..snapshot.drawing import glyphs_for

    return glyphs_for(getattr(sys.stdout, "encoding", None))


def print_lines(lines: Iterable[Line]) -> None:
    """Print styled lines, in colour on a terminal that supports it."""
    colour = coloured(sys.stdout)
    for line in lines:
        if colour:
            print(
                "".join(
                    f"\x1b[{_COLOURS[token]}m{text}\x1b[0m" if token in _COLOURS else text
                    for text, token in line
                )
            )
        else:
            print(plain(line).rstrip())


def number(value: Reading | None, unit: str = "") -> str:
    """Return a reading as a whole number with its unit, or a dash."""
    return f"{value:.0f}{unit}" if _is_number(value) else DASH


def percent(value: Reading | None) -> str:
    """Return a reading in percent, or a dash."""
    return percent_text(value / 100) if _is_number(value) else DASH


def gib(value: Reading | None) -> str:
    """Return bytes in GiB without the unit, or a dash."""
    return amount_text(value) if _is_number(value) else DASH


def seconds(value: Reading | None) -> str:
    """Return a duration with a unit that suits it, or a dash."""
    return brief_duration_text(value) if _is_number(value) else DASH


def _is_number(value: Reading | None) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────


class Unknowns:
    """Collect, while a document is built, why a value in it is null.

    The rows are ``unknown: [{path, code, reason}]``.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []

    def add(self, path: str, reason: Unknown) -> None:
        self.rows.append({"path": path, "code": reason.code, "reason": clean(reason.text)})

    def value(self, path: str, value: Any, reason: Unknown | None = None) -> Any:
        """``value`` as JSON: strings made safe, an Unknown or None as null with its row."""
        if isinstance(value, Unknown):
            self.add(path, value)
            return None
        if value is None:
            self.add(path, NO_REASON_GIVEN if reason is None else reason)
        return clean(value) if isinstance(value, str) else value

    def fields(
        self, path: str, definition: Any, names: Iterable[str], readings: Mapping[str, Reading]
    ) -> dict[str, Any]:
        """Return static fields by name, each None if it is unknown.

        Why a field is unknown is stated among the readings of its owner.
        """
        prefix = f"{path}." if path else ""
        return {
            name: self.value(prefix + name, getattr(definition, name), reason(readings, name))
            for name in names
        }

    def columns(
        self, path: str, readings: Mapping[str, Reading], names: Mapping[str, str]
    ) -> dict[str, Any]:
        """Readings by their names in the document (``names``: that name → column)."""
        missing = Unknown(NOT_INITIALISED, "no reading yet")
        return {
            name: self.value(f"{path}.{name}", readings.get(column, missing))
            for name, column in names.items()
        }


def reason(readings: Mapping[str, Reading], name: str) -> Unknown | None:
    """Return why a field or a column is unknown, None where it is known or nobody says."""
    why = readings.get(name)
    return why if isinstance(why, Unknown) else None


def problem(device: int | None, severity: str, reason: str) -> dict[str, Any]:
    """``severity``: warning, problem, or unchecked (could not be looked at)."""
    return {"device": device, "severity": severity, "reason": clean(reason)}


def grouped_problems(problems: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return for people the severity, the GPUs and the reason of each problem, in order.

    GPUs with the same problem are named together; "" stands for the host.
    """
    found: dict[tuple[str, str, bool], list[int]] = {}
    for row in problems:
        device = row["device"]
        indices = found.setdefault((row["severity"], row["reason"], device is None), [])
        indices += [] if device is None else [device]
    return [
        (severity, f"GPU {ranges_text(indices)}" if indices else "", reason)
        for (severity, reason, _), indices in found.items()
    ]


def with_unanswered(
    problems: list[dict[str, Any]], complete: bool, timeout: float
) -> list[dict[str, Any]]:
    """Add a row for a look that ended before everything had answered, which ``complete`` says.

    No such row is needed where another row already names what did not answer.
    """
    if complete or any(row["severity"] == "unchecked" for row in problems):
        return problems
    late = f"not everything answered within {window_text(timeout)}: try a longer --timeout"
    return [*problems, problem(None, "unchecked", late)]


def problem_lines(problems: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each problem, as ``--watch`` prints them."""
    return [
        f"{where}{' ' if where else ''}{severity}: {reason}"
        for severity, where, reason in grouped_problems(problems)
    ]


def exit_code(problems: Sequence[Mapping[str, Any]]) -> int:
    """Return the exit code: a finding outweighs what could not be checked, and that a warning."""
    return of_severities(row["severity"] for row in problems)


def dump(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False)
