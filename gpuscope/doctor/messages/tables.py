"""Read the rules on messages, symptoms and figures from the files in ``rules``, and check them.

A file has ``about`` and ``notes`` for its readers, ``parts`` (named patterns, which other patterns
use as ``{{name}}``) and its rows. A long pattern is a list of pieces, which are joined. The files
are JSON and not TOML, because a log is judged within a few milliseconds and parsing TOML takes many
times as long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from ...checked_rows import TableError, checked
from ..finding import Abstained
from ..wordings import Abstention
from .rule import Cause, FigureRule, FigureVote, Option, Rule, Symptom

FOLDER = Path(__file__).with_name("rules")
MESSAGES = ("devices", "distributed", "host", "build", "libraries", "training", "data")
"""Files with rules on messages, in the order in which they are applied."""
DESCRIBED = ("symptoms_speed", "symptoms_memory")
"""Files with the causes that a user's words support."""
PLAIN = ("symptoms_plain",)
"""The file with the causes that a user's words support where nothing else was found."""
PRINTED = ("symptoms_printed",)
"""Files with the causes that printed readings support."""
FIGURES = "figures"
"""The file with the causes that sizes and other figures support."""
ABSTENTIONS = "abstentions"
"""The file with the questions that messages leave open."""
CIRCUMSTANCES = "circumstances"
"""The file with the sentences about circumstances."""

_PATTERNS = ("pattern", "words", "unlike", "line")
_PART = re.compile(r"\{\{(\w+)\}\}")
_Row = TypeVar("_Row")


@cache
def rules(names: tuple[str, ...] = MESSAGES) -> tuple[Rule, ...]:
    """Return the rules on messages of these files. Raises :class:`TableError`."""
    read = partial(_read_rule, kind=Rule, causes="options", cause=Option)
    return tuple(row for name in names for row in _read_rows(name, "rules", read))


@cache
def symptoms(names: tuple[str, ...]) -> tuple[Symptom, ...]:
    """Return the symptoms of these files. Raises :class:`TableError`."""
    read = partial(_read_rule, kind=Symptom, causes="votes", cause=Cause)
    return tuple(row for name in names for row in _read_rows(name, "symptoms", read))


@cache
def figure_rules(name: str = FIGURES) -> dict[str, FigureRule]:
    """Return the rules on figures by their ids. Raises :class:`TableError`."""
    read = partial(_read_rule, kind=FigureRule, causes="votes", cause=FigureVote)
    rows = _read_rows(name, "rules", read)
    return dict(_check_distinct(name, ((row.id, row) for row in rows)))


@cache
def abstentions(name: str = ABSTENTIONS) -> dict[str, Abstained]:
    """Return what messages can leave open, by its id. Raises :class:`TableError`."""
    rows = _read_rows(name, "abstentions", lambda row, _: Abstention(**checked(row, Abstention)))
    return dict(
        _check_distinct(
            name, ((row.id, Abstained(pitfall=row.pitfall, missing=row.missing)) for row in rows)
        )
    )


@cache
def circumstances(name: str = CIRCUMSTANCES) -> dict[str, str]:
    """Return the text of each circumstance by its id. Raises :class:`TableError`."""
    rows = _read_rows(
        name, "circumstances", lambda row, _: _Circumstance(**checked(row, _Circumstance))
    )
    return dict(_check_distinct(name, ((row.id, row.says) for row in rows)))


@dataclass(frozen=True, slots=True)
class _Circumstance:
    """One row of the file of circumstances."""

    id: str
    says: str


def _check_distinct(name: str, pairs: Iterable[tuple[str, _Row]]) -> Iterator[tuple[str, _Row]]:
    """Yield the pairs, unless two of them have one id."""
    seen = set()
    for key, row in pairs:
        if key in seen:
            raise TableError(f"{name}.json: two rows have the id {key}")
        seen.add(key)
        yield key, row


def document(name: str) -> dict[str, Any]:
    """Return what a file holds, unchecked. Raises :class:`TableError`."""
    path = FOLDER / f"{name}.json"
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TableError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise TableError(f"{path.name} holds no object")
    return found


def _read_rows(name: str, key: str, made: Callable[[Any, dict[str, str]], _Row]) -> list[_Row]:
    """Return the rows of a file, each made by ``made`` from its values and the file's parts."""
    found = document(name)
    unknown = set(found) - {"about", "notes", "parts", key}
    if unknown or not isinstance(found.get(key), list):
        raise TableError(
            f"{name}.json: its keys are about, notes, parts and {key}, not "
            f"{', '.join(sorted(found))}"
        )
    parts: dict[str, str] = {}
    place = "parts"
    rows = []
    try:
        for part, pattern in found.get("parts", {}).items():
            place = f"parts: {part}"
            parts[part] = _join_pattern(pattern, parts)
        for number, row in enumerate(found[key], 1):
            place = (
                f"{key} {number} "
                f"({row.get('cause', row.get('id')) if isinstance(row, dict) else row})"
            )
            rows.append(made(row, parts))
    except (TypeError, ValueError) as error:
        raise TableError(f"{name}.json: {place}: {error}") from None
    return rows


def _read_rule(
    row: Any, parts: dict[str, str], kind: type[_Row], causes: str, cause: type[Cause]
) -> _Row:
    """Return a rule of a ``kind``; the causes that it is for have the key ``causes``."""
    values = checked(_expand(row, parts), kind)
    return kind(**{**values, causes: _read_causes(values.get(causes, ()), cause, parts)})


def _read_causes(
    rows: tuple[Any, ...], kind: type[_Row], parts: dict[str, str]
) -> tuple[_Row, ...]:
    """Return the causes of one row, each with a weight from 0 to 1."""
    made = []
    for number, row in enumerate(rows, 1):
        try:
            values = checked(_expand(row, parts), kind)
            if not 0 <= values.get("weight", 0) <= 1:
                raise ValueError(f"weight is {values['weight']}, and goes from 0 to 1")
            made.append(kind(**values))
        except (TypeError, ValueError) as error:
            raise ValueError(f"cause {number}: {error}") from None
    if not made:
        raise ValueError("it names no causes")
    return tuple(made)


def _expand(row: Any, parts: dict[str, str]) -> Any:
    """Return the row with each of its patterns in one piece."""
    if not isinstance(row, dict) or row.keys().isdisjoint(_PATTERNS):
        return row
    return {
        key: _join_pattern(value, parts) if key in _PATTERNS else value
        for key, value in row.items()
    }


def _join_pattern(value: Any, parts: dict[str, str]) -> str:
    """Return a pattern in one piece, with the parts in it that it names."""
    pieces = value if isinstance(value, list) else [value]
    if not value or not all(isinstance(piece, str) for piece in pieces):
        raise ValueError(f"a pattern is a string or a list of strings, not {value!r}")
    text = "".join(pieces)
    if "{{" not in text:
        return text
    try:
        return _PART.sub(lambda match: parts[match[1]], text)
    except KeyError as error:
        raise ValueError(f"no part before this one is called {error.args[0]}") from None
