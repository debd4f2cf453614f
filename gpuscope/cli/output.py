"""What the one-shot verbs share: aligned plain text, numbers with units, the JSON document with its unknowns.

Needs nothing but the standard library, so that ``gpuscope devices`` starts as fast as Python does.
"""

from __future__ import annotations

import argparse
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..exit_status import ExitStatus
from ..text.units import GIB as GIB
from ..wire.clean import clean
from ..wire.frames import NOT_INITIALISED, Reading, Unknown
from .args import driver_timeout

DASH = "–"
NOT_TOLD = Unknown(NOT_INITIALISED, "whoever was asked did not tell")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every one-shot verb."""
    parser.add_argument("--json", action="store_true", help="a JSON document instead of text")
    parser.add_argument(
        "--timeout",
        type=driver_timeout,
        default=5.0,
        metavar="SECONDS",
        help="do not wait longer for any driver (default 5)",
    )


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def cells(text: str) -> int:
    """Columns that ``text`` takes on a terminal: CJK and emoji two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(_cell(char) for char in text)


def _cell(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells, with an ellipsis where something was cut."""
    if cells(text) <= width:
        return text
    used = 0
    for index, char in enumerate(text):
        used += _cell(char)
        if used > width - 1:
            return text[:index] + "…"
    return text


def table(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Lines with aligned columns; the first row is the head. Columns in ``right`` are aligned to the right."""
    widths = [max(cells(row[index]) for row in rows) for index in range(len(rows[0]))]
    aligned_right = set(right)
    lines = []
    for row in rows:
        parts = []
        for index, text in enumerate(row):
            gap = " " * (widths[index] - cells(text))
            parts.append(gap + text if index in aligned_right else text + gap)
        lines.append("  ".join(parts).rstrip())
    return lines


def number(value: Reading | None, unit: str = "", digits: int = 0) -> str:
    """A reading with its unit, or a dash."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return DASH
    return f"{value:.{digits}f}{unit}"


def gib(value: Reading | None) -> str:
    """Bytes as GiB, without the unit."""
    return number(value / GIB, digits=1) if isinstance(value, (int, float)) else DASH


def seconds(value: Reading | None) -> str:
    """A duration with a unit that suits it."""
    if not isinstance(value, (int, float)):
        return DASH
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.1f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Unknowns:
    """Collects, while a document is built, why a value in it is null: ``unknown: [{path, code, reason}]``."""

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
            self.add(path, NOT_TOLD if reason is None else reason)
        return clean(value) if isinstance(value, str) else value

    def fields(
        self, path: str, definition: Any, names: Iterable[str], reasons: Mapping[str, Unknown]
    ) -> dict[str, Any]:
        """Static fields by name, each None with its reason."""
        prefix = f"{path}." if path else ""
        return {name: self.value(prefix + name, getattr(definition, name), reasons.get(name)) for name in names}

    def columns(self, path: str, readings: Mapping[str, Reading], names: Mapping[str, str]) -> dict[str, Any]:
        """Readings by their names in the document (``names``: that name → column)."""
        missing = Unknown(NOT_INITIALISED, "no reading yet")
        return {name: self.value(f"{path}.{name}", readings.get(column, missing)) for name, column in names.items()}


def problem(device: int | None, severity: str, reason: str) -> dict[str, Any]:
    """``severity``: warning, problem, or unchecked (could not be looked at)."""
    return {"device": device, "severity": severity, "reason": clean(reason)}


def unanswered(problems: Sequence[Mapping[str, Any]], timeout: float) -> list[dict[str, Any]]:
    """The row for a look that ended before all had answered, unless another says already what did not."""
    if any(row["severity"] == "unchecked" for row in problems):
        return []
    return [problem(None, "unchecked", f"not everything answered within {timeout:g} s: try a longer --timeout")]


def exit_code(problems: Sequence[Mapping[str, Any]]) -> int:
    """What was found outweighs what could not be looked at, and that outweighs a warning."""
    found = {row["severity"] for row in problems}
    if "problem" in found:
        return ExitStatus.PROBLEMS
    if "unchecked" in found:
        return ExitStatus.UNCHECKED
    return ExitStatus.WARNINGS if found else ExitStatus.OK


def dump(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False)
