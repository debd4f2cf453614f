"""The pitfall table: what can be wrong, how it shows, and what to do.

It is read from ``pitfalls.toml`` in this folder. ``python -m gpuscope.doctor.table`` prints the
documentation page that is made of it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from .. import checked_rows
from ..checked_rows import TableError, checked
from ..process import flight_settings
from ..process.flight_settings import RENAMED_IN
from .finding import Fix, Pitfall

__all__ = ["FILE", "TableError", "load"]

FILE = Path(__file__).with_name("pitfalls.toml")
_NUMBER = re.compile(r"(?<![\w.\[{:\"'-])\d+(?:\.\d+)?(?![\w\]}])")
"""A number in code that is neither an index nor part of a name or of a text."""
LEAST_EXAMPLE = 4
"""Smaller ones, such as the dimensions of a tensor, mean the same in every script."""


@cache
def load() -> dict[str, Pitfall]:
    """Return all rows by their id, in the order of the file. Raises :class:`TableError`."""
    return checked_rows.load(FILE, "pitfall", _pitfall)


def comes_of(row: Pitfall) -> list[str]:
    """Return the ids of the pitfalls that are known to lead to this one."""
    return [one.id for one in load().values() if one != row and {*one.causes} & {*row.comes_of}]


def leads_to(row: Pitfall) -> list[str]:
    """Return the ids of the pitfalls that this one is known to lead to."""
    return [one.id for one in load().values() if row.id in comes_of(one)]


def _pitfall(row: Any) -> Pitfall:
    values = checked(row, Pitfall, {"fix": "fixes"})
    return Pitfall(**{**values, "fixes": tuple(map(_fix, values.get("fixes", ())))})


def _fix(row: Any) -> Fix:
    """Return a fix; the names of the flight recorder's variables are those of ``run --on-call``."""
    fix = Fix(**checked(row, Fix))
    text = fix.environment
    for name, version in (("{flight_recorder}", RENAMED_IN), ("{older_flight_recorder}", None)):
        text = text.replace(name, flight_settings.assignments(version))
    numbers = map(float, _NUMBER.findall(f"{fix.before} {fix.code}"))
    example = any(number >= LEAST_EXAMPLE for number in numbers)
    return replace(fix, environment=text, example=example)


if __name__ == "__main__":
    # by its name, as it imports this module itself
    sys.stdout.write(import_module("gpuscope.doctor.explain").page(load().values()))
