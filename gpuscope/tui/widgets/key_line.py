"""This is the last line of every screen: its keys, or for a while what there is to say.

Each key can be clicked.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.strip import Strip
from textual.timer import Timer

from ...text import styled
from ...text.styled import Line, Piece
from ..charts.strips import Painted, strip_of
from ..shell.entries import Hint
from ..shell.footer import beside, ends_beside, fitted, hint_pieces
from ..shell.notices import SHOWN_SECONDS, shortened
from ..theme import Tokens


class KeyLine(Painted):
    """The keys that do something here and now, the most important first.

    The keys at the right end stay at any width, and beside a notice, which takes the cells that
    it needs from the others.
    """

    DEFAULT_CSS = "KeyLine { height: 1; dock: bottom; background: $background; }"

    def __init__(self, **kwargs: str) -> None:
        super().__init__(**kwargs)
        self._own: tuple[Hint, ...] = ()
        self._ends: tuple[Hint, ...] = ()
        self._typing: tuple[Hint, ...] = ()
        self._notice: Sequence[Piece] = ()
        self._told: Sequence[Piece] = ()
        self._timer: Timer | None = None

    def show(self, own: Sequence[Hint], ends: Sequence[Hint]) -> None:
        """Show these keys at the left and at the right."""
        if (tuple(own), tuple(ends)) != (self._own, self._ends):
            self._own, self._ends = tuple(own), tuple(ends)
            self.repaint()

    def show_typing(self, keys: Sequence[Hint]) -> None:
        """Show the keys that are no text while text is typed; none brings the others back."""
        if tuple(keys) != self._typing:
            self._typing = tuple(keys)
            self.repaint()

    def say(self, notice: Sequence[Piece]) -> None:
        """Show a notice before the keys, or with no pieces the keys alone.

        It is shortened where it is too long; the keys at the right end stay, and of the others
        those that have room.
        """
        if tuple(notice) != self._notice:
            self._notice = tuple(notice)
            self.repaint()

    def tell(self, notice: Sequence[Piece]) -> None:
        """Show a notice for a while."""
        if self._timer is not None:
            self._timer.stop()
        self._told = tuple(notice)
        self._timer = self.set_timer(SHOWN_SECONDS, self.untell)
        self.repaint()

    def untell(self) -> None:
        """Show the keys again, or what else there is to say."""
        if self._timer is not None:
            self._timer.stop()
            self._told, self._timer = (), None
            self.repaint()

    def _fitted(self, width: int) -> tuple[list[Hint], list[Hint]]:
        """Return the keys that the line has at a width, at the left and at the right."""
        if notice := self._told or self._notice:
            taken = styled.cells(notice) + 2
            ends = ends_beside(taken, self._ends, width)
            return beside(taken, self._typing or self._own, ends, width), ends
        if self._typing:
            return fitted(self._typing, (), width)
        return fitted(self._own, self._ends, width)

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        left, right = self._fitted(width)
        ends = [piece for hint in right for piece in hint_pieces(hint)]
        keys = [piece for hint in left for piece in hint_pieces(hint)]
        if notice := self._told or self._notice:
            room = width - styled.cells(ends) - 2
            line: Line = [(" ", "text"), *_cut(notice, room, tokens.glyphs.ellipsis)]
            line += [(" ", "text"), *keys] if keys else []
        else:
            line = keys
        gap = max(0, width - styled.cells(line) - styled.cells(ends))
        return [strip_of([*line, (" " * gap, "text"), *ends], width, tokens)]

    async def on_click(self, event: events.Click) -> None:
        left, right = self._fitted(self.size.width)
        start_right = self.size.width - sum(styled.cells(hint_pieces(hint)) for hint in right)
        notice = self._told or self._notice
        start_left = styled.cells(notice) + 2 if notice else 0
        for hints, start in ((left, start_left), (right, start_right)):
            for hint in hints:
                end = start + styled.cells(hint_pieces(hint))
                if start <= event.x < end:
                    event.stop()
                    second = start + 1 + hint.keys.find(" ") + 1
                    on_second = hint.second and second <= event.x < start + 1 + len(hint.keys)
                    action = hint.second if on_second else hint.action
                    if action:
                        await self.screen.run_action(action)
                    return
                start = end


def _cut(notice: Sequence[Piece], room: int, ellipsis: str) -> Line:
    """Return the notice cut to a number of cells."""
    out: Line = []
    for text, token in notice:
        left = room - styled.cells(out)
        if left > 0:
            out.append((shortened(text, left, ellipsis), token))
    return out
