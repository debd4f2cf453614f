"""Print what a search for the fastest settings has found."""

from __future__ import annotations

from collections.abc import Iterable

from ..lab.tune.result import SearchResult
from ..text.styled import plain, wrap
from ..wire.clean import clean_lines
from . import output

WIDTHS = (40, 120)
"""The least and the most cells of a line of words."""


def print_result(result: SearchResult, environment: str) -> None:
    """Print the sentence, the table, why its rows are as they are, and what to paste.

    ``environment`` goes before the command of the Lab.
    """
    _print_words([result.sentence()])
    print()
    rows = result.table()
    print(*output.table(rows, right=range(1, len(rows[0]) - 2)), sep="\n")
    if reasons := result.reasons():
        print()
        _print_words(reasons)
    if result.found.switches:
        print()
        print(*output.table(result.switches()), sep="\n")
    if result.changed:
        print("\nTo paste into a training:")
        print(*(f"  {line}" for line in result.lines()), sep="\n")
        print(f"Or in the Lab:  {environment}{result.found.best.command()}")
    print()
    _print_words(result.remarks())


def _print_words(sentences: Iterable[str]) -> None:
    """Print sentences in lines as wide as the page, each on a line of its own."""
    cells = output.page_width(*WIDTHS)
    for sentence in sentences:
        for line in wrap([(clean_lines(sentence), "")], cells):
            print(plain(line))
