"""The syntax of source files, as the guards read it that look through all of them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Let the collector wait while a syntax is read.

    All its parts are kept, and looking at them again and again takes longer than making them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def nodes_of(text: str) -> list[ast.AST]:
    """Return every part of the syntax of a source text."""
    with collector_off():
        return list(ast.walk(ast.parse(text)))
