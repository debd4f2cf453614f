"""The line of tabs, made from the registry of actions."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message
from textual.strip import Strip

from ...text import styled
from ...text.styled import Line, Piece
from ..charts.strips import Painted, strip_of
from ..shell.actions import BY_NAME
from ..shell.keymap import key_text
from ..theme import Tokens
from ..widgets.status import found_pieces


class TabLine(Painted):
    """The line of tabs, with what a user should know now at its right end.

    A click chooses a tab.
    """

    DEFAULT_CSS = "TabLine { height: 1; }"

    class Chosen(Message):
        """A tab was clicked; ``name`` is the action that shows it."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, tabs: Sequence[str], active: str, **kwargs: str) -> None:
        super().__init__(**kwargs)
        self._tabs, self._active = tuple(tabs), active
        self._notice: Sequence[Piece] = ()
        self._counts: dict[str, tuple[int, int]] = {}

    def offer(self, tabs: Sequence[str]) -> None:
        if tuple(tabs) != self._tabs:
            self._tabs = tuple(tabs)
            self.repaint()

    def count(self, tab: str, problems: int, warnings: int) -> None:
        """Set the numbers beside a tab's name; 0 is not written."""
        if self._counts.get(tab, (0, 0)) != (problems, warnings):
            self._counts[tab] = (problems, warnings)
            self.repaint()

    def hint(self, alerts: Sequence[str], filter_text: str, mine: bool) -> Line:
        """Return what a user should keep in mind: an alert, else what is left out of the lists."""
        if alerts:
            more = f" · and {len(alerts) - 1} more" if len(alerts) > 1 else ""
            return [(f"{self.tokens.glyphs.bad} {alerts[-1]}{more}", "bad")]
        parts = [f"filter: {filter_text}"] if filter_text else []
        parts += ["mine only"] if mine else []
        return [(" · ".join(parts), "accent")] if parts else []

    def has_room_for(self, notice: Sequence[Piece]) -> bool:
        """Return whether a notice fits behind the tabs."""
        return styled.cells(notice) <= self.size.width - styled.cells(self._labels()) - 4

    def show(self, active: str, notice: Sequence[Piece] = ()) -> None:
        """Mark a tab as active and put ``notice`` at the right end."""
        if (active, tuple(notice)) != (self._active, self._notice):
            self._active, self._notice = active, tuple(notice)
            self.repaint()

    def _labels(self) -> Line:
        return [piece for _, pieces in self._tab_pieces() for piece in pieces][:-1]

    def _tab_pieces(self) -> list[tuple[str, Line]]:
        glyphs = self.tokens.glyphs
        out = []
        for name in self._tabs:
            action = BY_NAME[name]
            spec = "bold underline accent" if name == self._active else "muted"
            pieces = [(f"{key_text(action.keys[0])} {action.label}", spec)]
            pieces += found_pieces(self._counts.get(name, (0, 0)), glyphs)
            out.append((name, [*pieces, ("   ", "text")]))
        return out

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        left = [(" ", "text"), *self._labels()]
        notice = styled.cut(
            self._notice, max(0, width - styled.cells(left) - 3), tokens.glyphs.ellipsis
        )
        return [strip_of(styled.spread(left, [*notice, (" ", "text")], width), width, tokens)]

    def on_click(self, event: events.Click) -> None:
        x = event.x - 1
        for name, pieces in self._tab_pieces():
            *label, gap = pieces
            x -= styled.cells(label)
            if x < 0:
                self.post_message(self.Chosen(name))
                return
            x -= styled.cells([gap])
            if x < 0:
                return
