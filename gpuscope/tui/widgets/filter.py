"""The line to type a filter into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from textual.binding import BindingType
from textual.widgets import Input

from ..shell.entries import Hint
from ..shell.footer import screen_hints
from ..shell.keymap import bindings_of
from ..shell.screen_keys import KEYS
from .key_line import KeyLine

if TYPE_CHECKING:
    from .pane import Pane


def typing_keys() -> list[Hint]:
    """Return the keys of a filter that is being typed, and what they do.

    All other keys are its letters.
    """
    return screen_hints(KEYS["FilterLine"])


class Filtered(Protocol):
    """The screen that a filter is part of."""

    @property
    def pane(self) -> Pane:
        """Whose rows are filtered; it gets the keyboard back."""

    def set_filter(self, text: str) -> None:
        """Show only rows that contain the text."""


class FilterLine(Input):
    """A line that filters while it is typed.

    One key keeps the filter, another drops it.
    """

    DEFAULT_CSS = (
        "FilterLine { height: 1; border: none; padding: 0 1; background: $panel; } "
        "FilterLine:focus { border: none; }"
    )
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("FilterLine")]

    def __init__(self, value: str) -> None:
        super().__init__(
            value=value,
            placeholder="filter: text that rows must contain",
            max_length=100,
            select_on_focus=False,
        )

    @property
    def _filtered(self) -> Filtered:
        return cast(Filtered, self.screen)

    def on_focus(self) -> None:
        """The footer's keys are letters now."""
        self._tell(typing_keys())

    def on_blur(self) -> None:
        """They are keys again."""
        self._tell(())

    def _tell(self, keys: Sequence[Hint]) -> None:
        for footer in self.app.query(KeyLine):  # none while the screen is being closed
            footer.show_typing(keys)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._filtered.set_filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._leave()

    def action_drop(self) -> None:
        """Close and show everything again."""
        self._filtered.set_filter("")
        self._leave()

    def _leave(self) -> None:
        pane = self._filtered.pane
        self._tell(())
        self.remove()
        pane.take_focus()
