"""This module reads the black boxes of this machine's trainers, beside the screen.

So charts of a screen that has just been opened begin with what was before.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...store.view import History

if TYPE_CHECKING:
    from ...store.box_history import BoxHistory
    from ...store.view import HostView


class BoxPast:
    """The past of trainers that was read; ``changed`` is called when there is more of it."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._boxes: BoxHistory | None = None
        self._task: asyncio.Task[None] | None = None

    def look(self, host: HostView) -> None:
        """Read the boxes that were not read yet, in a thread."""
        if self._task is not None and not self._task.done():
            return
        from ...store.box_history import BoxHistory

        self._boxes = boxes = self._boxes or BoxHistory()
        if boxes.unread(host.trainers):
            self._task = asyncio.get_running_loop().create_task(self._read(boxes, host))

    async def _read(self, boxes: BoxHistory, host: HostView) -> None:
        from ...probe import rendezvous

        place = Path(os.environ.get("GPUSCOPE_BLACKBOX_DIR") or rendezvous.directory())
        await asyncio.to_thread(boxes.read, boxes.unread(host.trainers), place)
        self._changed()

    def before(self, entity: int, column: str, now: History, since: float | None) -> History:
        """Return what is known since this moment: what is in a box, then what was seen."""
        return now if self._boxes is None else self._boxes.before(entity, column, now, since)

    def close(self) -> None:
        """Nobody waits for a box any more."""
        if self._task is not None:
            self._task.cancel()
