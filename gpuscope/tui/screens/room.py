"""A screen of its own over the tabs: a file or a job looked at closely. Esc and q lead back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from ..charts.strips import Segments
from ..widgets.text import Lines, cells_of, cut

if TYPE_CHECKING:
    from ..session import Session


def not_now(session: Session) -> list[tuple[str, str]]:
    """That what is shown is not of this moment: a recording, a screen that stands still, a host that is silent."""
    standing, host = session.standing_text(), session.host
    out = [(f" {host.badge} ", "badge")] if host is not None and host.badge else []
    if standing:
        out.append((f" {standing} ", "badge"))
    elif host is not None and host.link.state in ("stale", "ended"):
        out.append((f" {host.link.state} ", "bad"))
    return out


class Room(ModalScreen[None]):
    """Fills the terminal. Subclasses compose their panels and end with :attr:`foot`."""

    DEFAULT_CSS = """
    Room { background: $background; layout: vertical; align: left top; }
    Room .head { height: 1; background: $panel; }
    Room .foot { height: 1; dock: bottom; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Close", show=False)]

    def __init__(self) -> None:
        super().__init__()
        self.head = Lines(classes="head")
        self.foot = Lines(classes="foot")

    def say_head(self, pieces: Segments, session: Session | None = None) -> None:
        """The line at the top. ``session``: what is below is what it shows, and may not be of this moment."""
        width = self.size.width or 80
        state = not_now(session) if session is not None else []
        line = cut([(" ", "text"), *pieces], width - cells_of(state))
        self.head.show([[*line, (" " * max(0, width - cells_of(line) - cells_of(state)), "text"), *state]])

    def say_keys(self, keys: Sequence[tuple[str, str]]) -> None:
        """The line at the bottom: (key, what it does), as many as fit."""
        out: list[tuple[str, str]] = []
        for key, text in keys:
            entry = [(f" {key} ", "bold accent"), (f"{text} ", "muted")]
            if cells_of([*out, *entry]) <= (self.size.width or 80):
                out += entry
        self.foot.show([out])
