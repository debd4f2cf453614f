"""The garbage collector, where a test makes much that it keeps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Let the collector wait, as a decorator of a function or around a block.

    Looking at the syntax of a whole package again and again takes longer than reading it.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
