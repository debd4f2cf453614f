"""The line of tabs and the footer of keys, both made from the registry of actions."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from textual import events
from textual.message import Message
from textual.strip import Strip

from ...text import styled
from ...text.styled import Line, Piece
from ..charts.strips import Painted, strip_of
from ..theme import Tokens
from .actions import ACTIONS, BY_NAME
from .entries import Action
from .keymap import key_text
from .notices import shortened

LAST_IN_FOOTER = ("palette", "help", "quit")
PAIRS = {"replay_back": "replay_forward", "far_back": "far_forward"}
"""Action → the one that undoes it, which shares its entry: a click behind the first key does the
second.
"""
LATER = {"doctor": ("open", "next_pane", "replay_back", "processes")}
"""Tab → entries that give way there to its own, which a narrow line would not show."""
LATER_BY = 5
STANDING = {"pause": (1, "Now"), "replay_back": (1, "10 s"), "far_back": (1, "5 min")}
"""Where the screen stands still: order and label of what leads back and forth, and back to now."""


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
        """Replace the tabs."""
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
            for number, glyph, token in zip(
                self._counts.get(name, ()), (glyphs.bad, glyphs.warn), ("bad", "warn"), strict=False
            ):
                pieces += [(" ", "text"), (f"{glyph}{number}", token)] if number else []
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


class FooterLine(Painted):
    """The keys that do something here and now, the most needed first.

    A narrower line ends earlier and keeps the order. Keys without room are in the help.
    """

    DEFAULT_CSS = "FooterLine { height: 1; }"

    def __init__(self, **kwargs: str) -> None:
        super().__init__(**kwargs)
        self._actions: tuple[Action, ...] = ()
        self._greyed: frozenset[str] = frozenset()
        self._notice: Sequence[Piece] = ()
        self._typing: Sequence[Piece] = ()

    def show(
        self,
        tab: str,
        possible: Sequence[str],
        frozen: bool = False,
        greyed: Collection[str] = (),
    ) -> None:
        """Show the keys of the actions that this session can carry out.

        ``possible`` has their names, ``greyed`` those of actions that keep their place although
        they are not possible; ``frozen`` says that the screen stands still in a live session.
        """
        shown_here = {*possible, *greyed}
        actions = tuple(a for a in ACTIONS if a.footer and a.applies(tab) and a.name in shown_here)
        later = LATER.get(tab, ())
        actions = tuple(
            a._replace(footer=a.footer + LATER_BY) if a.name in later else a for a in actions
        )
        if frozen:
            actions = tuple(a for a in actions if a.name not in STANDING)
            led = [
                BY_NAME[name]._replace(footer=at, label=label)
                for name, (at, label) in STANDING.items()
            ]
            actions = (*led, *actions)
        if (actions, frozenset(greyed)) != (self._actions, self._greyed):
            self._actions, self._greyed = actions, frozenset(greyed)
            self.repaint()

    def say(self, notice: Sequence[Piece]) -> None:
        """Show a notice in the place of the keys, or with no pieces the keys again.

        It is shortened where it is too long; the keys at the right end stay.
        """
        if tuple(notice) != self._notice:
            self._notice = tuple(notice)
            self.repaint()

    def show_typing(self, keys: Sequence[tuple[str, str]]) -> None:
        """Show the keys that are no text while text is typed, each with what it does.

        They take the place of the actions; None brings the actions back.
        """
        typing = tuple(
            piece
            for key, does in keys
            for piece in ((f" {key} ", "bold accent"), (f"{does} ", "muted"))
        )
        if typing != self._typing:
            self._typing = typing
            self.repaint()

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        if self._typing and not self._notice:
            return [
                strip_of(styled.cut(self._typing, width, tokens.glyphs.ellipsis), width, tokens)
            ]
        left, right = self._fitting_actions(width)
        ends = [piece for action in right for piece in self._entry(action)]
        if self._notice:
            room = width - styled.cells(ends) - 2
            line: Line = [(" ", "text"), *self._notice_line(room, tokens.glyphs.ellipsis)]
        else:
            line = [piece for action in left for piece in self._entry(action)]
        gap = max(0, width - styled.cells(line) - styled.cells(ends))
        return [strip_of([*line, (" " * gap, "text"), *ends], width, tokens)]

    def _notice_line(self, room: int, ellipsis: str) -> Line:
        """Return the notice cut to a number of cells."""
        out: Line = []
        for text, token in self._notice:
            left = room - styled.cells(out)
            if left > 0:
                out.append((shortened(text, left, ellipsis), token))
        return out

    def _fitting_actions(self, width: int) -> tuple[list[Action], list[Action]]:
        """Return what there is room for, at the left and at the right end.

        The left ends at the first that has none: what stands there is the same at any width.
        """
        ordered = sorted(self._actions, key=lambda a: a.footer)
        left: list[Action] = []
        right: list[Action] = []
        room = width
        for action in [
            *(a for a in ordered if a.name in LAST_IN_FOOTER),
            *(a for a in ordered if a.name not in LAST_IN_FOOTER),
        ]:
            room -= styled.cells(self._entry(action))
            if room < 0:
                break
            (right if action.name in LAST_IN_FOOTER else left).append(action)
        return left, right

    async def on_click(self, event: events.Click) -> None:
        """A click on a key does what the key does."""
        if self._typing and not self._notice:
            return
        left, right = self._fitting_actions(self.size.width)
        left = [] if self._notice else left
        x = event.x
        for actions, start in (
            (left, 0),
            (right, self.size.width - sum(styled.cells(self._entry(a)) for a in right)),
        ):
            for action in actions:
                end = start + styled.cells(self._entry(action))
                if start <= x < end:
                    name = PAIRS.get(action.name, action.name) if x - start >= 3 else action.name
                    await self.screen.action_do(name)  # type: ignore[attr-defined]
                    return
                start = end

    def _entry(self, action: Action) -> Line:
        grey = action.name in self._greyed
        keys = key_text(action.keys[0])
        if action.name in PAIRS:
            keys += f" {key_text(BY_NAME[PAIRS[action.name]].keys[0])}"
        return [
            (f" {keys} ", "faint" if grey else "bold accent"),
            (f"{action.label} ", "faint" if grey else "muted"),
        ]
