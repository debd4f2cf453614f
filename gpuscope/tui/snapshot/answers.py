"""Questions about an open snapshot that panels ask once and draw when the answer is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...snapshot.reader import SnapshotError


class Answers:
    """The answers so far, by question; threads wait for the child process and for the disk."""

    def __init__(self) -> None:
        self._known: dict[object, object] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._drawers: list[Callable[[], None]] = []

    def tell(self, draw: Callable[[], None]) -> None:
        """Call ``draw`` after each answer."""
        self._drawers.append(draw)

    def ask(self, question: object, ask: Callable[..., object], *what: Any) -> None:
        """Ask once. The answer is what ``ask`` returns, or the words of its error."""
        if question not in self._known:
            self._known[question] = None
            task = asyncio.get_running_loop().create_task(self._keep(question, ask, *what))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def get(self, question: object) -> object:
        """Return the answer, None while there is none."""
        return self._known.get(question)

    def stop(self) -> None:
        """Wait for nothing any more."""
        for task in self._tasks:
            task.cancel()

    async def _keep(self, question: object, ask: Callable[..., object], *what: Any) -> None:
        try:
            self._known[question] = await asyncio.to_thread(ask, *what)
        except SnapshotError as error:
            self._known[question] = error.what
        for draw in self._drawers:
            draw()
