"""Read a JSON document of which nothing is known for sure.

A document may be cut, from another version, or made up. Each function takes any value and returns
one of the type that its name says, so that a wrong one is treated like a missing one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..text.numbers import number
from ..text.units import DASH

MAX_ROWS = 2000
"""The most rows of a list that are read."""
Document = Mapping[str, Any]


def text(value: Any, otherwise: str = "") -> str:
    return value if isinstance(value, str) else otherwise


def count(value: Any) -> str:
    """Return a number of things with commas, a dash for any other value."""
    found = number(value)
    return f"{found:,.0f}" if found is not None else DASH


def said(value: Any, form: Callable[[float], str], unknown: str = DASH) -> str:
    """Return a number in the words of ``form``, and ``unknown`` for any other value."""
    found = number(value)
    return form(found) if found is not None else unknown


def texts(value: Any) -> list[str]:
    return [one for one in value[:MAX_ROWS] if isinstance(one, str)] if _is_list(value) else []


def rows(value: Any) -> list[Document]:
    return [one for one in value[:MAX_ROWS] if isinstance(one, dict)] if _is_list(value) else []


def mapping(value: Any) -> Document:
    """Return an object, an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
