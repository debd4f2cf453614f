"""The glossary: what the words on the screens mean.

It is read from ``glossary.toml`` in this folder. ``python -m gpuscope.text.glossary`` prints the
glossary page of the documentation.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Dict, Tuple

FILE = Path(__file__).with_name("glossary.toml")


@dataclass(frozen=True)
class Term:
    """A word of the screens; ``also`` are other words that lead to it in a search."""

    term: str
    section: str
    meaning: str
    also: Tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Return the word itself, because no two rows may explain the same one."""
        return self.term


@lru_cache(maxsize=None)
def load() -> Dict[str, Term]:
    """Return all terms by their word, in the order of the page. Raises ``TableError``."""
    from .. import checked_rows  # needed by the viewer only: this package must import on Python 3.8

    return checked_rows.load(FILE, "term", _term)


def _term(row: Any) -> Term:
    from .. import checked_rows

    return Term(**checked_rows.checked(row, Term))


def page() -> str:
    """Return the page of the documentation, in Markdown."""
    lines = ["# Glossary", "", "The words as the screens use them.", ""]
    for section, terms in groupby(load().values(), key=lambda one: one.section):
        lines += [f"## {section}", "", "| word | means |", "|---|---|"]
        lines += [f"| {one.term} | {one.meaning} |" for one in terms]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
