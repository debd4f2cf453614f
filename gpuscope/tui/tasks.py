"""Work that goes on in the event loop while the screen is used."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Holds tasks until they end, because the event loop alone does not keep them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def stop(self) -> None:
        """Cancel what still runs."""
        for task in self._running:
            task.cancel()

    async def ended(self) -> None:
        """Wait until nothing runs, also of what begins meanwhile."""
        while self._running:
            await asyncio.wait(set(self._running))
