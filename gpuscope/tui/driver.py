"""Leaving at once: Textual's input thread looks every 0.1 s whether it should end, and twice before it does."""

from __future__ import annotations

import selectors
from types import SimpleNamespace

LOOK_SECONDS = 0.05


class PromptSelector(selectors.SelectSelector):
    """Waits for input as asked, but not longer than ``LOOK_SECONDS``."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(LOOK_SECONDS if timeout is None else min(timeout, LOOK_SECONDS))


def leave_promptly() -> None:
    """Give the driver of this process the prompt selector. Without effect where Textual has another driver."""
    from textual.drivers import linux_driver

    names = {name: getattr(selectors, name) for name in ("EVENT_READ", "SelectorKey", "DefaultSelector")}
    linux_driver.selectors = SimpleNamespace(**names, SelectSelector=PromptSelector)  # type: ignore[attr-defined, assignment]
