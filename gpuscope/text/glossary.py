"""The glossary: what the words on the screens mean.

Read from ``glossary.toml`` beside this file. ``python -m gpuscope.text.glossary`` prints the page
of the documentation.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from .. import checked_rows

FILE = Path(__file__).with_name("glossary.toml")


@dataclass(frozen=True, slots=True)
class Term:
    """A word of the screens; ``also`` are other words that lead to it in a search."""

    term: str
    section: str
    meaning: str
    also: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The word itself: no two rows explain the same one."""
        return self.term


@cache
def load() -> dict[str, Term]:
    """Return all terms by their word, in the order of the page. Raises ``TableError``."""
    return checked_rows.load(FILE, "term", _term)


def _term(row: Any) -> Term:
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
