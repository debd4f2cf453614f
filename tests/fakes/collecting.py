"""Switches the garbage collector off in tests that make many objects and keep them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Delay garbage collection, as a decorator of a function or around a block.

    Scanning the syntax trees of a whole package again and again takes longer than reading it.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
