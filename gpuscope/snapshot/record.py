"""Read what the probe adds to its record of an out-of-memory error, in the child process.

The record is a snapshot with one more key, ``gpuscope``, which has plain scalars and containers. To
stay small, a record may lack segments or old entries, and says so; the totals of its segments are
then not the allocator's. The module also reads a snapshot's allocator settings.
"""

from __future__ import annotations

import math
from typing import Any

from ..text.units import bytes_text
from ..wire.clean import clean
from .blocks import whole
from .model import MAX_FRAMES, Note, Scalar, Summary
from .stacks import Place, frames_of, headline

MAX_PAIRS = 400
MAX_TEXT = 300


def read_record(about: Any, summary: Summary) -> bool:
    """Put the stack and the notes of a record into ``summary``.

    Return whether all segments are in the file.
    """
    if not isinstance(about, dict):
        return True
    stack = about.get("stack")
    places = tuple(map(_place, stack[:MAX_FRAMES])) if isinstance(stack, (list, tuple)) else ()
    summary.stack, summary.headline = frames_of(places), headline(places)
    left = about.get("left_out")
    counts = left if isinstance(left, dict) else {}
    found = {key: whole(counts.get(key)) or 0 for key in ("segments", "blocks", "bytes", "entries")}
    if found["segments"]:
        what = (
            f"{found['segments']:,} segments ({bytes_text(found['bytes'])} in "
            f"{found['blocks']:,} blocks)"
        )
        text = (
            f"{what} were left out to keep the record small: totals, maps and lists do not "
            f"include them"
        )
        summary.notes.append(Note("left_out", text))
    if found["entries"]:
        text = f"the {found['entries']:,} oldest entries of the history were left out"
        summary.notes.append(Note("left_out", text))
    why = about.get("segments_why")
    if why:
        text = (
            f"the allocator's segments are not in this record: {clean(str(_plain(why)), MAX_TEXT)}"
        )
        summary.notes.append(Note("left_out", text))
    return not found["segments"] and not why


def _place(row: Any) -> Place:
    """Return a frame of a record: [file, line, function]."""
    file, line, function = (
        (*row[:3], None, None, None)[:3] if isinstance(row, (list, tuple)) else (row, None, None)
    )
    return (
        file[:MAX_TEXT] if isinstance(file, str) else "",
        whole(line, 1 << 31) or 0,
        function[:MAX_TEXT] if isinstance(function, str) else "",
    )


def pairs(value: Any) -> dict[str, Scalar]:
    """Return settings or a record as scalars by dotted key.

    They are limited to two levels and ``MAX_PAIRS`` pairs.
    """
    out: dict[str, Scalar] = {}
    for key, one in list(value.items())[:MAX_PAIRS] if isinstance(value, dict) else ():
        inner = list(one.items())[:MAX_PAIRS] if isinstance(one, dict) else [(None, one)]
        for name, content in inner:
            if len(out) < MAX_PAIRS:
                out[_word(key) + ("" if name is None else f".{_word(name)}")] = _plain(content)
    return out


def _word(value: Any) -> str:
    return clean(value, 60) if isinstance(value, str) else type(value).__name__


def _plain(value: Any) -> Scalar:
    if isinstance(value, str):
        return clean(value, MAX_TEXT)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else "(a number too large)"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        parts = [
            str(_plain(one)) if not isinstance(one, (list, tuple, dict)) else "…"
            for one in value[:20]
        ]
        return clean(", ".join(parts), MAX_TEXT)
    return f"({type(value).__name__})"
