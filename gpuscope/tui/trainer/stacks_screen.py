"""This dialog shows where every thread of a trainer stands now, and its collectives.

It only reads, so nothing is asked first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import BindingType

from ...store.pending_requests import SourceError
from ...store.view import by_key
from ...text.styled import Line
from ..shared.stack_text import stack_lines
from ..shared.trainer_actions import candidates, failure, who
from ..shell.keymap import bindings_of
from ..widgets.pane import set_title
from ..widgets.text_dialog import TextDialog

if TYPE_CHECKING:
    from ...store.view import TrainerView
    from ..shell.session import Session

FRAMES = 16
"""Frames of a thread that is not the training one."""
DEADLINE_SECONDS = 20.0


class StacksScreen(TextDialog):
    """The stacks of one trainer, as it answered.

    Keys ask again, go to other trainers, and show all frames.
    """

    DEFAULT_CSS = "StacksScreen .dialog { width: 130; }"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("StacksScreen")]

    def __init__(self, session: Session, trainer_key: str) -> None:
        super().__init__()
        self.session = session
        self._key = trainer_key
        self._all = False
        self._value: Mapping[str, Any] | None = None
        self._problem: list[Line] = []

    def on_mount(self) -> None:
        self.action_again()

    def _trainer(self) -> TrainerView | None:
        host = self.session.host
        return by_key(host.trainers, self._key) if host else None

    def text(self) -> Iterable[Line]:
        return self._problem or [[("waiting for the answer of the probe", "muted")]]

    def wrapped(self) -> list[Line]:
        if self._value is None:
            return super().wrapped()
        return list(stack_lines(self._value, None if self._all else FRAMES))

    def redraw(self) -> None:
        super().redraw()
        if self.is_open:
            trainer = self._trainer()
            name = "".join(text for text, _ in who(trainer)) if trainer is not None else "gone"
            set_title(self.body, f"Stacks of {name}")

    def action_again(self) -> None:
        """Ask now, instead of waiting for an earlier answer."""
        self.begin(self._ask())
        self.redraw()

    def action_other(self, by: int) -> None:
        """The next trainer, the ranks of a job in their order."""
        host = self.session.host
        if host is None:
            return
        keys = [t.key for t in sorted(candidates(host, self._trainer()), key=lambda t: t.id)]
        if len(keys) > 1:
            at = keys.index(self._key) if self._key in keys else 0
            self._key, self._value, self._problem = keys[(at + by) % len(keys)], None, []
            self.action_again()

    def action_all(self) -> None:
        """All frames, or the innermost ones."""
        self._all = not self._all
        self.redraw()

    async def _ask(self) -> None:
        trainer = self._trainer()
        try:
            if trainer is None:
                raise SourceError("gone", "the trainer is gone")
            result = await self.session.asker.ask(trainer, "stacks", {}, DEADLINE_SECONDS)
            self._value, self._problem = result.value, []
        except SourceError as error:
            self._value = None
            self._problem = [list(line) for line in failure(error.code, error.what)]
        self.redraw()
