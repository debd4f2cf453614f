"""This is the base of screens that fill the terminal, over the tabs.

They look at a file or a job closely, and a key leads back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType
from textual.screen import ModalScreen

from ...text import styled
from ...text.styled import Line, Piece
from ..shell.keymap import bindings_of, footer, keys_of
from ..shell.result_files import short_path
from .dialog import ClosesOnce
from .program import program
from .text import Lines

if TYPE_CHECKING:
    from ..shell.entries import Key
    from ..shell.session import Session

Keys = Sequence[tuple[str, str]]
"""(keys, what they do) as the line at the bottom says it."""


def not_now(session: Session) -> Line:
    """Return the marks that say that what is shown is not of this moment.

    It may be a recording, a screen that stands still, or a host that is silent.
    """
    frozen, host = session.frozen_text(), session.host
    out = [(f" {host.badge} ", "badge")] if host is not None and host.badge else []
    if frozen:
        out.append((f" {frozen} ", "badge"))
    elif host is not None and host.link.state in ("stale", "ended"):
        out.append((f" {host.link.state} ", "bad"))
    return out


def absent(session: Session) -> str:
    """Return what is said of something that is not in the picture."""
    return "it is gone" if session.paused_seconds is None else "it has no reading from then"


def footer_keys(session: Session, keys: Sequence[Key], states: Collection[str] = ()) -> Keys:
    """Return what the line at the bottom says of these entries of the registry.

    Only entries that do something here and now are told.
    """
    return footer(keys, states, session.why_not, session.paused_seconds is not None)


def named_path(path: Path) -> Line:
    """Return a file's name, then its folder.

    Where there is little room, what tells it from its neighbours stays.
    """
    return [(path.name, "text"), (f"  {short_path(path.parent)}", "muted")]


class FullScreen(ClosesOnce, ModalScreen[None]):
    """A screen that fills the terminal.

    Subclasses compose their panels and end with :attr:`foot`.
    """

    covers_all: ClassVar[bool] = True
    """Nothing below it can be seen: what lies there is not drawn meanwhile."""

    DEFAULT_CSS = """
    FullScreen { background: $background; layout: vertical; align: left top; }
    FullScreen .head { height: 1; background: $panel; }
    FullScreen .foot { height: 1; dock: bottom; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("FullScreen")]

    def __init__(self) -> None:
        super().__init__()
        self.head = Lines(classes="head")
        self.foot = Lines(classes="foot")

    def say_head(self, pieces: Sequence[Piece], session: Session | None = None) -> None:
        """Show the line at the top.

        With ``session`` the screen below shows what that looks at, which may not be of this
        moment.
        """
        width = self.size.width or 80
        state = not_now(session) if session is not None else []
        line = styled.cut([(" ", "text"), *pieces], width - styled.cells(state))
        self.head.show(
            [
                [
                    *line,
                    (" " * max(0, width - styled.cells(line) - styled.cells(state)), "text"),
                    *state,
                ]
            ]
        )

    async def action_look(self, name: str) -> None:
        """Stop, go on or move in time by this action of the registry.

        What lies below moves along.
        """
        await program(self.app).action_do(name)
        self.moved()

    def moved(self) -> None:
        """Draw the other moment that is shown now, on screens that go through time."""

    def say_own_keys(self, session: Session | None = None) -> None:
        """Show the keys of this screen from the registry in the line at the bottom.

        Without a session nothing here depends on one.
        """
        keys, states = keys_of(type(self)), self.key_states()
        nothing_missing: Keys = footer(keys, states, lambda name: "", still=False)
        self.say_keys(
            footer_keys(session, keys, states) if session is not None else nothing_missing, session
        )

    def say_keys(self, keys: Keys, session: Session | None = None) -> None:
        """Show as many of these keys as fit in the line at the bottom.

        While it is new, what ``session`` has to say takes their place.
        """
        notice = session.notices.current if session is not None else None
        if notice is not None:
            self.foot.show(
                [[(f" {notice.text}", "text" if notice.severity == "ok" else notice.severity)]]
            )
            return
        out: Line = []
        for key, text in keys:
            entry = [(f" {key} ", "bold accent"), (f"{text} ", "muted")]
            if styled.cells([*out, *entry]) <= (self.size.width or 80):
                out += entry
        self.foot.show([out])
