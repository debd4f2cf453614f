"""The last line of a dialog: its keys, each of which can be clicked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from textual import events
from textual.strip import Strip

from ...text import styled
from ...text.styled import Line
from ..charts.strips import Painted, strip_of
from ..theme import Tokens


class Key(NamedTuple):
    """``action`` is one of the dialog's own, as its bindings name it."""

    shown: str
    label: str
    action: str


class KeyLine(Painted):
    """A click on a key does what the key does."""

    DEFAULT_CSS = "KeyLine { height: 1; margin: 1 0 0 0; }"

    def __init__(self, keys: Sequence[Key], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._keys = tuple(keys)

    @staticmethod
    def _entry(key: Key) -> Line:
        return [(key.shown, "bold accent"), (f" {key.label}   ", "muted")]

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
                await self.screen.run_action(key.action)
                return
