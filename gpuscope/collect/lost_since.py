"""Search a long log backwards for where its loss became NaN or infinite.

The end of a log tells that the loss is lost. Where it has no finite loss any more, the first lost
one lies before it, and what the end begins with changes with each line that is written.
"""

from __future__ import annotations

import os
import re
import time
from typing import Optional

from ..text.log_figures import MAX_LINE_CHARS, LostRun, has_finite_loss, lost_run
from ..wire.loss_text import BEFORE_READ, NOT_TRAINING

SEARCH_BYTES = 64 << 20
SEARCH_SECONDS = 0.2
"""How much of a log, and for how long, is searched at most: who asks waits for it."""
FIRST_BLOCK, LARGEST_BLOCK = 64 << 10, 1 << 20
BEFORE, BEHIND = 4 << 10, 64 << 10
"""What is read around the place that was found.

What is before it may name the epoch, and behind it is the first lost loss.
"""
_NAME = (
    rb"loss"
    + b"".join(rb"(?<!%s.loss)" % word.encode() for word in NOT_TRAINING)
    + rb"(?:/train/total)?[\s\"':=|]{0,90}[-+]?"
)
_MAY_BE_FINITE = re.compile(
    _NAME + rb"(?!0(?:\.0*)?[\"']?,\s{0,3}[\"']?grad_norm[\"']?\s{0,3}[:=]\s{0,3}[\"']?nan)\.?\d"
)
"""Finds each finite loss of a log in small letters, and some others: its line is read with care.

It begins with plain letters, by which it searches ten times as fast as without, and leaves out what
stands in many lines of a log whose loss is lost, as reading a line with care takes long.
"""
_LOSS = re.compile(_NAME + rb"(?:\.?\d|nan|inf)")


def beginning(descriptor: int, size: int, end: LostRun) -> LostRun:
    """Return the lost losses at the end of a log with their first one.

    ``end`` is what the end of the log has of them. Where the whole log has no finite loss, they
    begin with its first loss. Raises OSError.
    """
    until = time.monotonic() + SEARCH_SECONDS
    at, length = size, FIRST_BLOCK
    least = max(0, size - SEARCH_BYTES)
    first: Optional[int] = None
    while at > least:
        start = max(least, at - length)
        block = os.pread(descriptor, at - start, start)
        if start:  # the line that the block begins with is read with the next block
            whole = re.search(rb"[\r\n]", block)
            if whole is not None and whole.end() < len(block):
                start += whole.end()
                block = block[whole.end() :]
        found = _last_finite(block, until)
        if found is not None:
            return _first_lost(descriptor, start + found, end)
        loss = _LOSS.search(block.lower())
        first = start + loss.start() if loss is not None else first
        if time.monotonic() > until:
            break
        at, length = start, min(length * 4, LARGEST_BLOCK)
    if first is None:  # a table, which does not name the loss in each line
        return end._replace(since="")
    if at == 0:
        return _first_lost(descriptor, first, end)
    return end._replace(since=BEFORE_READ)


def _last_finite(block: bytes, until: float) -> Optional[int]:
    """Return where the last finite loss of a training is in this part of a log."""
    for found in reversed(list(_MAY_BE_FINITE.finditer(block.lower()))):
        if time.monotonic() > until:
            return None
        before = block[max(0, found.start() - MAX_LINE_CHARS) : found.start()]
        behind = block[found.start() : found.start() + MAX_LINE_CHARS]
        line = re.split(rb"[\r\n]", before)[-1] + re.split(rb"[\r\n]", behind, maxsplit=1)[0]
        if has_finite_loss(line.decode("utf-8", "replace")):
            return found.start()
    return None


def _first_lost(descriptor: int, at: int, end: LostRun) -> LostRun:
    """Return the lost losses with their first, which is the first at or behind this place."""
    start = max(0, at - BEFORE)
    text = os.pread(descriptor, at - start + BEHIND, start)
    text = re.split(rb"[\r\n]", text, maxsplit=1)[-1] if start else text
    text = text[: max(text.rfind(b"\n"), text.rfind(b"\r")) + 1]
    found = lost_run(text.decode("utf-8", "replace"))
    if found is None:
        return end._replace(since=BEFORE_READ)
    return found._replace(length=max(found.length, end.length))
