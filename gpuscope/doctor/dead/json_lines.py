"""Take the rank, and an exception that is the value of a field, from a line that is JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .lines import LogLine

_RANK_KEYS = ("rank", "global_rank", "process_index", "rank_id")
_RANK = re.compile(r'"(?:global_)?rank":\s*"?(\d{1,5})')
_BEGIN = "Traceback (most recent call last)"
_DEEP = 3
"""Fields are looked at in documents that are nested so deep, as in ``{"extra": {"rank": 3}}``."""


def opened(line: LogLine) -> list[LogLine]:
    """Return a line with its rank, and behind it the lines of an exception that it holds."""
    text = line.text.lstrip()
    if text[:1] != "{" or ("rank" not in text and _BEGIN not in text):
        return [line]
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    fields = list(_fields(document, _DEEP)) if isinstance(document, dict) else []
    if line.rank is None:
        line.rank = _rank_of(fields, text)
    stacks = [value for _, value in fields if isinstance(value, str) and _BEGIN in value]
    if not fields and _BEGIN in text:  # the line was cut
        stacks = [text.replace("\\n", "\n").replace('\\"', '"')]
    found = [line]
    for stack in stacks[:1]:
        for row in stack[stack.index(_BEGIN) :].split("\n"):
            inner = LogLine(line.number, row)
            inner.rank, inner.local, inner.host = line.rank, line.local, line.host
            found.append(inner)
    return found


def _fields(document: dict[str, Any], deep: int) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, dict) and deep > 1:
            yield from _fields(value, deep - 1)
        else:
            yield key, value


def _rank_of(fields: list[tuple[str, Any]], text: str) -> int | None:
    for key, value in fields:
        if key in _RANK_KEYS and str(value).isdigit():
            return int(str(value)[:6])
    match = _RANK.search(text) if not fields else None
    return int(match[1]) if match is not None else None
