"""Read the tables of measured numbers in ``predict/data``, checked row by row.

A table is a JSON file, ``{"about": "…", "rows": [{…}, …]}``. An error names file, row and key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ..checked_rows import TableError

FOLDER: Final = Path(__file__).parent / "data"
Check = Callable[[Any], str]
"""A function that says what a value should be, or "" if the value is valid."""


def read(path: Path, checks: Mapping[str, Check]) -> list[dict[str, Any]]:
    """Return the rows of a table.

    Each must have the keys of ``checks`` and no others. Raises :class:`TableError`.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TableError(f"{path.name} cannot be read: {type(error).__name__}: {error}") from None
    if not isinstance(rows, list) or not rows:
        raise TableError(f"{path.name}: rows must be a list that is not empty")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise TableError(f"{path.name}, row {number}: must be an object")
        if odd := sorted(row.keys() ^ checks.keys()):
            what = "is missing" if odd[0] in checks else "is no key of this table"
            raise TableError(f"{path.name}, row {number}, {odd[0]}: {what}")
        for key, check in checks.items():
            if wanted := check(row[key]):
                raise TableError(
                    f"{path.name}, row {number}, {key}: must be {wanted}, not "
                    f"{str(row[key])[:60]!r}"
                )
    return rows


def write(path: Path, about: str, rows: list[dict[str, Any]]) -> None:
    """Write a table, with one row per line if the row is short enough."""
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    path.write_text(
        f'{{\n "about": {json.dumps(about)},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8"
    )


def one_of(*words: object) -> Check:
    return lambda value: (
        "" if value in words and type(value) in map(type, words) else f"one of {words}"
    )


def whole(least: int = 0) -> Check:
    return lambda value: (
        "" if type(value) is int and value >= least else f"a whole number of at least {least}"
    )


def wholes(count: int) -> Check:
    fits = whole()
    return lambda value: (
        ""
        if isinstance(value, list) and len(value) == count and not any(map(fits, value))
        else f"a list of {count} whole numbers"
    )


def matches(pattern: str) -> Check:
    fits = re.compile(pattern).fullmatch
    return lambda value: "" if isinstance(value, str) and fits(value) else f"a text like {pattern}"


def yes_no(value: Any) -> str:
    """Check that a value is true or false."""
    return "" if isinstance(value, bool) else "true or false"
