"""This dialog explains one word of the glossary."""

from __future__ import annotations

from collections.abc import Iterable

from ...text.glossary import Term, load
from ...text.styled import Line
from ..widgets.text_dialog import TextDialog

MOST_NEAR = 6


class WordDialog(TextDialog):
    """What a word means, and the words beside it in the glossary."""

    def __init__(self, term: Term) -> None:
        super().__init__(term.term)
        self._term = term

    def text(self) -> Iterable[Line]:
        term = self._term
        yield [(_plain(term.meaning), "text")]
        if term.also:
            yield []
            yield [("Related  ", "muted"), (", ".join(term.also), "text")]
        section = [one for one in load().values() if one.section == term.section]
        at = section.index(term)
        first = max(0, min(at - MOST_NEAR // 2, len(section) - MOST_NEAR - 1))
        near = [one for one in section[first : first + MOST_NEAR + 1] if one != term]
        wide = max((len(one.term) for one in near), default=0) + 2
        yield []
        yield [(f"More words of {term.section}", "title")]
        for one in near:
            yield [(f"{one.term:{wide}}", "accent"), (_plain(one.meaning), "muted")]


def _plain(text: str) -> str:
    """Return a text of the page without its marks of code."""
    return text.replace("`", "")
