"""This is the last line of a dialog, which has its keys; each of them can be clicked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from textual import events
from textual.strip import Strip

from ...text import styled
from ...text.styled import Line
from ..charts.strips import Painted, strip_of
from ..shell.entries import Key
from ..shell.keymap import in_footer, keys_of, shown_short
from ..theme import Tokens

if TYPE_CHECKING:
    from .dialog import Dialog


class KeyLine(Painted):
    """A line with entries of the registry.

    A click on a key does what the key does.
    """

    DEFAULT_CSS = "KeyLine { height: 1; margin: 1 0 0 0; }"

    def __init__(self, keys: Sequence[Key], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._keys = tuple(keys)

    @classmethod
    def of(cls, dialog: Dialog) -> KeyLine:
        """Return the line of this dialog, in the state that it is in."""
        return cls(in_footer(keys_of(type(dialog)), dialog.key_states()))

    @staticmethod
    def _entry(key: Key) -> Line:
        return [(shown_short(key), "bold accent"), (f" {key.label}   ", "muted")]

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        pieces = [piece for key in self._keys for piece in self._entry(key)]
        return [strip_of(styled.cut(pieces, width, tokens.glyphs.ellipsis), width, tokens)]

    async def on_click(self, event: events.Click) -> None:
        """Carry out the action of the key that was hit."""
        x = event.x
        for key in self._keys:
            x -= styled.cells(self._entry(key))
            if x < 0:
                event.stop()
                await self.screen.run_action(key.binds[0][1])
                return
