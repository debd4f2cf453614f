"""The pitfall table: what can be wrong, how it shows, and what to do.

It is read from ``pitfalls.toml`` beside this file. ``python -m gpuscope.doctor.table`` prints the
documentation page that is made of it.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from .. import checked_rows
from ..checked_rows import TableError, checked
from .finding import Fix, Pitfall

__all__ = ["FILE", "TableError", "load"]

FILE = Path(__file__).with_name("pitfalls.toml")


@cache
def load() -> dict[str, Pitfall]:
    """All rows by their id, in the order of the file. Raises :class:`TableError`."""
    return checked_rows.load(FILE, "pitfall", _pitfall)


def _pitfall(row: Any) -> Pitfall:
    values = checked(row, Pitfall, {"fix": "fixes"})
    return Pitfall(
        **{**values, "fixes": tuple(Fix(**checked(one, Fix)) for one in values.get("fixes", ()))}
    )


if __name__ == "__main__":
    from .explain import page

    sys.stdout.write(page(load().values()))
