"""Write a request as the words of a command line, in the toggles' own names."""

from __future__ import annotations

from dataclasses import fields

from ..lab.toggles import PREDICTED
from .request import Request


def changed_flags(before: Request, after: Request) -> str:
    """Return the flags that change ``before`` into ``after``: "--batch 4 --accumulate 2"."""
    words: list[str] = []
    for field in fields(Request):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            words += _words(field.name, new)
    return " ".join(words)


def _words(name: str, value: object) -> list[str]:
    if value is None:
        return []
    if name == "checkpoint" and value not in (0, 1):
        return ["--checkpoint-every", str(value)]
    toggle = PREDICTED.get(name)
    if toggle is None:
        return ["--" + name, str(value)]
    return toggle.words(value if isinstance(value, (bool, int)) else str(value))
