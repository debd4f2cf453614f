"""Load and check the weights of the causes of an out-of-memory error.

They are stored in ``rules/weights.json``. ``TITLES`` are the titles of the causes, ``CAUSES`` their
names in the pitfall table, and ``BASE`` their weights where nothing else is known. ``SHIFTS`` says
how each circumstance changes these weights.
"""

from __future__ import annotations

from typing import Any

from ...checked_rows import TableError
from .tables import document

NAME = "weights"


def _check_texts(values: Any, key: str) -> dict[str, str]:
    if not isinstance(values, dict):
        raise TableError(f"{NAME}.json: {key} is no object")
    for name, text in values.items():
        if not isinstance(text, str) or not text:
            raise TableError(f"{NAME}.json: {key}: {name} cannot be {text!r}")
    return values


def _check_numbers(values: Any, key: str) -> dict[str, float]:
    if not isinstance(values, dict):
        raise TableError(f"{NAME}.json: {key} is no object")
    for name, weight in values.items():
        if type(weight) not in (float, int):
            raise TableError(f"{NAME}.json: {key}: {name} cannot be {weight!r}")
        if name not in TITLES:
            raise TableError(f"{NAME}.json: {key}: {name} has no title")
    return values


_found = document(NAME)
TITLES = _check_texts(_found.get("titles"), "titles")
CAUSES = _check_texts(_found.get("causes"), "causes")
BASE = _check_numbers(_found.get("base"), "base")
SHIFTS = {
    fact: _check_numbers(values, f"shifts: {fact}")
    for fact, values in _found.get("shifts", {}).items()
}
