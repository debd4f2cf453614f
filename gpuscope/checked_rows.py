"""Checks rows that come from a data file against the dataclass that they become."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, get_args

from .doctor.finding import Confidence, Severity
from .errors import UserError

_ONE_OF = {"Confidence": get_args(Confidence), "Severity": get_args(Severity)}
_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "float": (float, int)}


class TableError(UserError):
    """A data file is missing or not as it should be. The text says which file, which row and which key."""


def checked(row: Any, kind: type, names: dict[str, str] | None = None) -> dict[str, Any]:
    """The values of a row by the field each fills; ``names`` maps keys whose field is called otherwise.

    Raises :class:`ValueError` for a key that is none, a value of another kind and an empty one.
    """
    if not isinstance(row, dict):
        raise ValueError(f"{row!r} is no table")
    known = _known(kind)
    values: dict[str, Any] = {}
    for given, value in row.items():
        key = (names or {}).get(given, str(given))
        wanted = known.get(key)
        if wanted is None:
            raise ValueError(f"no such key: {key}. There are: {', '.join(known)}")
        if wanted in _ONE_OF:
            if value not in _ONE_OF[wanted]:
                raise ValueError(f"{key} cannot be {value!r}. It is one of: {', '.join(_ONE_OF[wanted])}")
        elif type(value) not in _TYPES.get(wanted, (list,)) or value in ("", []):
            raise ValueError(f"{key} cannot be {value!r}")
        elif isinstance(value, list) and "str" in wanted and any(type(item) is not str for item in value):
            raise ValueError(f"{key} takes strings")
        values[key] = tuple(value) if isinstance(value, list) else value
    return values


@cache
def _known(kind: type) -> dict[str, str]:
    return {field.name: str(field.type) for field in fields(kind)}
