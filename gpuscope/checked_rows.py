"""Read the tables that are shipped as data files, and check every row against its dataclass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from . import toml
from .errors import UserError


class TableError(UserError):
    """A data file is missing or not as it should be.

    The text says which file, which row and which key.
    """


class _Row(Protocol):
    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=_Row)


def load(path: Path, key: str, made: Callable[[Any], R]) -> dict[str, R]:
    """Return the ``[[key]]`` rows of a TOML file by their ids, in the order of the file.

    ``made`` turns one row into what it stands for and raises ValueError or TypeError for a bad one.
    Raises :class:`TableError`, which names the file and the row.
    """
    try:
        rows = toml.loads(path.read_text(encoding="utf-8")).get(key)
    except (OSError, UnicodeDecodeError, toml.TOMLDecodeError) as error:
        raise TableError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(rows, list):
        raise TableError(f"{path.name} holds no [[{key}]]")
    table: dict[str, R] = {}
    for number, row in enumerate(rows, 1):
        name = row.get("id", f"row {number}") if isinstance(row, dict) else f"row {number}"
        try:
            one = made(row)
        except (TypeError, ValueError) as error:
            raise TableError(f"{path.name}: {name}: {error}") from None
        if one.id in table:
            raise TableError(f"{path.name}: there are two of {one.id}")
        table[one.id] = one
    return table


def checked(row: Any, kind: type, names: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the values of a row by the field of ``kind`` that each fills.

    ``names`` maps keys whose field is called otherwise. Raises ValueError for a key that is none,
    and for a value of another type or an empty one. An empty text is taken only where the field
    means something else without it.
    """
    if not isinstance(row, dict):
        raise ValueError(f"{row!r} is no table")
    known = _fields_of(kind)
    values: dict[str, Any] = {}
    for given, value in row.items():
        key = (names or {}).get(given, str(given))
        if key not in known:
            raise ValueError(f"no such key: {key}. There are: {', '.join(known)}")
        wanted = known[key]
        if wanted.choices and value not in wanted.choices:
            raise ValueError(
                f"{key} cannot be {value!r}. It is one of: {', '.join(wanted.choices)}"
            )
        if type(value) not in wanted.types or (value in ("", []) and not wanted.may_be_empty):
            raise ValueError(f"{key} cannot be {value!r}")
        if wanted.of_strings and any(type(item) is not str for item in value):
            raise ValueError(f"{key} takes strings")
        values[key] = tuple(value) if isinstance(value, list) else value
    return values


@dataclass(frozen=True, slots=True)
class _Field:
    """What a file may give for one field of a dataclass."""

    types: tuple[type, ...]
    choices: tuple[str, ...]
    of_strings: bool
    may_be_empty: bool


@cache
def _fields_of(kind: type) -> dict[str, _Field]:
    hints = get_type_hints(kind)
    found = {}
    for field in fields(kind):
        hint = hints[field.name]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        may_be_empty = field.default not in ("", (), MISSING)
        found[field.name] = _Field(_types_for(hint), choices, hint == tuple[str, ...], may_be_empty)
    return found


_IN_FILES: dict[Any, tuple[type, ...]] = {
    Literal: (str,),
    float: (float, int),
    tuple: (list,),
    Mapping: (dict,),
    Path: (str,),
}
"""The types that a file may have for a field's type, if it is not the type itself."""


def _types_for(hint: Any) -> tuple[type, ...]:
    """Return the types that a value in a file may have for a field with this type hint."""
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType):
        return tuple(one for part in get_args(hint) for one in _types_for(part))
    return _IN_FILES.get(origin, (origin,))
