"""Attributes of torch that are replaced during a tracing, and put back after it."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class Replaced:
    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def change(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute; nothing happens where this version of torch does not have it."""
        if hasattr(owner, name):
            self._before.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    def add(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute that a torch without CUDA does not have."""
        if not hasattr(owner, name):
            self._before.append((owner, name, _MISSING))
            setattr(owner, name, value)

    def restore(self) -> None:
        """Give each attribute the value that it had before."""
        for owner, name, value in reversed(self._before):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
