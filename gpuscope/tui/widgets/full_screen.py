"""A screen of its own over the tabs: a file or a job looked at closely. Esc and q lead back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from ...text import styled
from ...text.styled import Line, Piece
from ..shell.result_files import short_path
from .dialog import ClosesOnce
from .program import program
from .text import Lines

if TYPE_CHECKING:
    from ..shell.session import Session

Keys = Sequence[tuple[str, str]]
"""(keys, what they do) as the line at the bottom says it."""
TIME_KEYS: tuple[BindingType, ...] = (
    Binding("comma", "look('replay_back')", show=False),
    Binding("full_stop", "look('replay_forward')", show=False),
    Binding("left_curly_bracket", "look('far_back')", show=False),
    Binding("right_curly_bracket", "look('far_forward')", show=False),
)
"""Through time, as on the tabs. A screen that has them implements ``action_look``."""
PAUSE_KEY = Binding("space", "look('pause')", show=False)


def not_now(session: Session) -> Line:
    """That what is shown is not of this moment: a recording, a screen that stands still, a host that is silent."""
    standing, host = session.standing_text(), session.host
    out = [(f" {host.badge} ", "badge")] if host is not None and host.badge else []
    if standing:
        out.append((f" {standing} ", "badge"))
    elif host is not None and host.link.state in ("stale", "ended"):
        out.append((f" {host.link.state} ", "bad"))
    return out


def absent(session: Session) -> str:
    """What is said of something that is not in the picture."""
    return "it is not there any more" if session.paused_seconds is None else "no reading of it is from then"


ACTING_KEYS = {"s": "snapshot", "p": "profile", "S": "stacks", "H": "history", "K": "signal"}
"""Keys of these screens → the action of the registry that a session may be unable to carry out."""


def possible(session: Session, keys: Keys) -> Keys:
    """``keys`` without those that would only say why not; the help names the reasons."""
    return [(key, does) for key, does in keys if key not in ACTING_KEYS or not session.why_not(ACTING_KEYS[key])]


def timed(session: Session, keys: Keys, at: int = 1) -> Keys:
    """``keys`` with those through time at this place; where the screen stands still all of them, behind the first."""
    if session.paused_seconds is None:
        return (*keys[:at], (", .", "past"), *keys[at:])
    return (*keys[:1], ("space", "now"), (", .", "10 s"), ("{ }", "5 min"), *keys[1:])


def named_path(path: Path) -> Line:
    """A file's name, then its folder: where there is little room, what tells it from its neighbours stays."""
    return [(path.name, "text"), (f"  {short_path(path.parent)}", "muted")]


class Room(ClosesOnce, ModalScreen[None]):
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

    def say_head(self, pieces: Sequence[Piece], session: Session | None = None) -> None:
        """The line at the top. ``session``: what is below is what it shows, and may not be of this moment."""
        width = self.size.width or 80
        state = not_now(session) if session is not None else []
        line = styled.cut([(" ", "text"), *pieces], width - styled.cells(state))
        self.head.show([[*line, (" " * max(0, width - styled.cells(line) - styled.cells(state)), "text"), *state]])

    async def action_look(self, name: str) -> None:
        """Stop, go on or move in time by this action of the registry; what lies below moves along."""
        await program(self.app).action_do(name)
        self.moved()

    def moved(self) -> None:
        """Another moment is shown: draw it. For screens that have :data:`TIME_KEYS`."""

    def say_keys(self, keys: Keys, session: Session | None = None) -> None:
        """The line at the bottom: as many as fit, or while it is new what ``session`` has to say."""
        notice = session.notices.current if session is not None else None
        if notice is not None:
            self.foot.show([[(f" {notice.text}", "text" if notice.severity == "ok" else notice.severity)]])
            return
        out: Line = []
        for key, text in keys:
            entry = [(f" {key} ", "bold accent"), (f"{text} ", "muted")]
            if styled.cells([*out, *entry]) <= (self.size.width or 80):
                out += entry
        self.foot.show([out])
