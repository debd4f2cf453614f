"""The line to type a filter into."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from textual.binding import Binding, BindingType
from textual.widgets import Input

from ..shell.header import FooterLine

if TYPE_CHECKING:
    from .pane import Pane


TYPING_KEYS = (("Enter", "keep it"), ("Esc", "drop it"))
"""Of a filter that is being typed, and what they do. All others are its letters."""


class Filtered(Protocol):
    """The screen that a filter is part of."""

    @property
    def pane(self) -> Pane:
        """Whose rows are filtered; it gets the keyboard back."""

    def set_filter(self, text: str) -> None:
        """Show only rows that contain the text."""


class FilterLine(Input):
    """Filters while it is typed. Enter keeps the filter, Esc drops it."""

    DEFAULT_CSS = (
        "FilterLine { height: 1; border: none; padding: 0 1; background: $panel; } FilterLine:focus { border: none; }"
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "drop", "Drop", show=False)]

    def __init__(self, value: str) -> None:
        super().__init__(
            value=value, placeholder="filter: text that rows must contain", max_length=100, select_on_focus=False
        )

    @property
    def _filtered(self) -> Filtered:
        return cast(Filtered, self.screen)

    def on_focus(self) -> None:
        """The footer's keys are letters now."""
        self._tell(TYPING_KEYS)

    def on_blur(self) -> None:
        """They are keys again."""
        self._tell(())

    def _tell(self, keys: tuple[tuple[str, str], ...]) -> None:
        for footer in self.app.query(FooterLine):  # none while the screen is being closed
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
