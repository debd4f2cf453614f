"""The line to type a filter into."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding, BindingType
from textual.widgets import Input

from ..shell.header import FooterLine

if TYPE_CHECKING:
    from ..shell.main_screen import MainScreen


TYPING_KEYS = (("Enter", "keep it"), ("Esc", "drop it"))
"""Of a filter that is being typed, and what they do. All others are its letters."""


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
    def _main(self) -> MainScreen:
        return cast("MainScreen", self.screen)

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
        self._main.set_filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._leave()

    def action_drop(self) -> None:
        """Close and show everything again."""
        self._main.set_filter("")
        self._leave()

    def _leave(self) -> None:
        pane = self._main.pane
        self._tell(())
        self.remove()
        pane.take_focus()
