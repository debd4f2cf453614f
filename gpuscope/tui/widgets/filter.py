"""The line to type a filter into."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding, BindingType
from textual.widgets import Input

if TYPE_CHECKING:
    from ..screens.main import MainScreen


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
        self.remove()
        pane.take_focus()
