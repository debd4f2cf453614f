"""Finds out from a log or a traceback what went wrong: which message stands there, and which causes it can have.

A message has several causes, so several findings come back, the likeliest first. ``definite`` is only what the text
itself decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import IO

from ..finding import Abstained, Finding, Report

__all__ = ["examine", "report"]


def examine(
    source: Iterable[str] | IO[bytes] | IO[str] | str | PathLike[str], name: str = "log"
) -> tuple[tuple[Finding, ...], tuple[Abstained, ...]]:
    """The findings of a log, best first, and what could not be decided. ``source`` is a path, an open stream or lines;
    ``name`` is what evidence calls it (``log:1204``). A log that says nothing known gives nothing.
    Raises OSError where a path cannot be read."""
    from . import reading

    excerpt = reading.read(source)
    if excerpt.binary or not any(text.strip() for _, text in excerpt.lines):
        return (), ()
    from .judge import judge
    from .text import Log

    return judge(Log(excerpt, name))


def report(source: Iterable[str] | IO[bytes] | IO[str] | str | PathLike[str], name: str, examined: str) -> Report:
    """The same as a report; ``examined`` is what that calls the log."""
    findings, abstained = examine(source, name)
    return Report(findings=findings, abstained=abstained, examined=(examined,))
