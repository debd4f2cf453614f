"""Questions about an open snapshot that panels ask once and draw when the answer is there.

The panels have the base that does the drawing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ...snapshot.model import SnapshotDevice
from ...snapshot.reader import SnapshotError
from ...text.styled import Line
from ..tasks import Tasks
from ..widgets.text import Lines


class Answers:
    """The answers so far, by question; threads wait for the child process and for the disk."""

    def __init__(self) -> None:
        self._known: dict[object, object] = {}
        self._tasks = Tasks()
        self._drawers: list[Callable[[], None]] = []

    def tell(self, draw: Callable[[], None]) -> None:
        """Call ``draw`` after each answer."""
        self._drawers.append(draw)

    def ask(self, question: object, ask: Callable[..., object], *what: Any) -> None:
        """Ask once. The answer is what ``ask`` returns, or the words of its error."""
        if question not in self._known:
            self._known[question] = None
            self._tasks.begin(self._keep(question, ask, *what))

    def get(self, question: object) -> object:
        """Return the answer, None while there is none."""
        return self._known.get(question)

    def stop(self) -> None:
        """Wait for nothing any more."""
        self._tasks.stop()

    async def _keep(self, question: object, ask: Callable[..., object], *what: Any) -> None:
        try:
            self._known[question] = await asyncio.to_thread(ask, *what)
        except SnapshotError as error:
            self._known[question] = error.what
        for draw in self._drawers:
            draw()


class AnsweredLines(Lines):
    """Lines about a device of a snapshot, drawn again after each answer and at each new size."""

    def __init__(self, answers: Answers, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.answers = answers
        self.device: SnapshotDevice | None = None
        answers.tell(self.draw)

    def lines_of(self, device: SnapshotDevice, cells: int, rows: int) -> Sequence[Line]:
        """Return what is shown of the device on so much room."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw the lines again, if there is a device and room for them."""
        cells, rows = self.content_size
        if self.is_mounted and cells and rows and self.device is not None:
            self.show(self.lines_of(self.device, cells, rows))

    def on_resize(self) -> None:
        self.draw()
