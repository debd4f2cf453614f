"""Attributes of torch that are replaced during a tracing, and put back after it."""

from __future__ import annotations

from typing import Any


class Replaced:
    """What was replaced, in order."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def change(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute; nothing happens where this version of torch does not have it."""
        if hasattr(owner, name):
            self._before.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    def restore(self) -> None:
        """Give each attribute the value that it had before."""
        for owner, name, value in reversed(self._before):
            setattr(owner, name, value)
