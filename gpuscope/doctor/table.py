"""The pitfall table: what can be wrong, how it shows, and what to do. Read from ``pitfalls.toml`` beside this file.

``python -m gpuscope.doctor.table`` prints the page of the documentation that is made of it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import checked_rows
from ..checked_rows import TableError, checked
from .finding import Fix

__all__ = ["FILE", "Pitfall", "TableError", "load"]

FILE = Path(__file__).with_name("pitfalls.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pitfall:
    """One row. ``id`` is its main cure; ``causes`` are the ids of the causes that it answers, none where no examiner
    names it; ``fixes`` stand in the order to try them; ``now`` says what helps without a restart; ``verify`` is a
    command that proves it, "" where no command here does; ``sources`` are addresses of documentation or say in words
    where a fact is from."""

    id: str
    title: str
    symptom: str
    causes: tuple[str, ...] = ()
    fixes: tuple[Fix, ...]
    now: str
    not_when: str
    cost: str
    verify: str = ""
    sources: tuple[str, ...]

    def fixes_for(self, cause: str) -> tuple[Fix, ...]:
        """The fixes of one cause: those that name it, then those that are for every cause. All of them where the row
        has neither."""
        named = [fix for fix in self.fixes if cause in fix.causes]
        general = [fix for fix in self.fixes if not fix.causes]
        return (*named, *general) or self.fixes


@cache
def load() -> dict[str, Pitfall]:
    """All rows by their id, in the order of the file. Raises :class:`TableError`."""
    return checked_rows.load(FILE, "pitfall", _pitfall)


def _pitfall(row: Any) -> Pitfall:
    values = checked(row, Pitfall, {"fix": "fixes"})
    return Pitfall(**{**values, "fixes": tuple(Fix(**checked(one, Fix)) for one in values.get("fixes", ()))})


if __name__ == "__main__":
    from .explain import page

    sys.stdout.write(page(load().values()))
