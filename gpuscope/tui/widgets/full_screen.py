"""This is the base of screens that fill the terminal, over the tabs.

They look at a file or a job closely, and a key leads back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.screen import ModalScreen

from ...paths import short_path
from ...text import styled
from ...text.clock import clock_text
from ...text.styled import Line, Piece
from ...text.width import cells
from ..cells import fit
from ..shell.footer import screen_ends, screen_hints
from ..shell.keymap import keys_of
from ..terminal.soon import draw_before_showing
from .dialog import ClosesOnce
from .key_line import KeyLine
from .program import program
from .status import found_pieces
from .text import Lines

if TYPE_CHECKING:
    from ...report.content import Chapter
    from ..shell.entries import Hint, Key
    from ..shell.session import Session

CLOCK_SECONDS = 1.0
HOST_CELLS = 16
"""The most cells of the host's name at the top, next to the name of what is shown."""


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


def where_and_when(session: Session | None, line: Lines) -> Line:
    """Return what the line at the top keeps on every screen: host, verdict and time."""
    host = session.host if session is not None else None
    if session is None or host is None:
        return []
    name = host.name if cells(host.name) <= HOST_CELLS else fit(host.name, HOST_CELLS)
    out: Line = [(f"  {name}", "title"), *found_pieces(session.found[:2], line.tokens.glyphs)]
    if host.wall_seconds is not None:
        out.append((f"  {clock_text(host.wall_seconds)}", "text"))
    return [*out, (" ", "text")]


def absent(session: Session) -> str:
    """Return what is said of something that is not in the picture."""
    return "it is gone" if session.paused_seconds is None else "it has no reading from then"


def footer_keys(session: Session, keys: Sequence[Key], states: Collection[str] = ()) -> list[Hint]:
    """Return what the line at the bottom says of these entries of the registry.

    Only entries that do something here and now are listed.
    """
    return screen_hints(keys, states, session.why_not, session.paused_seconds is not None)


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
    """

    def __init__(self) -> None:
        super().__init__()
        self.head = Lines(classes="head")
        self.foot = KeyLine(classes="foot")
        self._head: Sequence[Piece] = ()
        self._head_session: Session | None = None

    @on(events.Mount)  # beside what a subclass does when it is mounted
    def _keep_time(self) -> None:
        self.set_interval(CLOCK_SECONDS, self._show_head)

    async def show_first(self, draw: Callable[[], object]) -> None:
        """Draw what is known before the first frame; until then the screen below stays."""
        with self.app.batch_update():
            await draw_before_showing(self, self, draw, new=True)

    def say_head(self, pieces: Sequence[Piece], session: Session | None = None) -> None:
        """Show the line at the top: these pieces, then the host, what is wrong there, and when.

        With ``session`` the screen below shows what that looks at, which may not be of this
        moment; without one it shows a file.
        """
        self._head, self._head_session = tuple(pieces), session
        self._show_head()

    def _show_head(self) -> None:
        width = self.size.width or 80
        state = not_now(self._head_session) if self._head_session is not None else []
        state += where_and_when(self._head_session or getattr(self.app, "session", None), self.head)
        line = styled.cut_whole([(" ", "text"), *self._head], width - styled.cells(state) - 1)
        gap = max(0, width - styled.cells(line) - styled.cells(state))
        self.head.show([[*line, (" " * gap, "text"), *state]])

    def chapters(self) -> list[Chapter]:
        """Return what a report has of the file that is shown, empty on a screen of a host."""
        return []

    def action_report_here(self) -> None:
        """Write a report of what is shown."""
        program(self.app).save_report()

    async def action_look(self, name: str) -> None:
        """Stop, go on or move in time by this action of the registry.

        What lies below moves along.
        """
        await program(self.app).action_do(name)
        self.moved()

    def moved(self) -> None:
        """Draw the other moment that is shown now, on screens that go through time."""

    def refused(self, session: Session, action: str) -> bool:
        """Return whether this session cannot carry out a key's action, and say why not."""
        key = next(k for k in keys_of(type(self)) if any(does == action for _, does in k.binds))
        reason = session.why_not(key.needs) if key.needs else ""
        if reason:
            self.tell(f"{key.label}: {reason}")
        return bool(reason)

    def say_own_keys(self, session: Session | None = None) -> None:
        """Show the keys of this screen from the registry in the line at the bottom.

        Without a session nothing here depends on one.
        """
        keys, states = keys_of(type(self)), self.key_states()
        if session is not None:
            self.say_keys(footer_keys(session, keys, states), session)
        else:
            self.say_keys(screen_hints(keys, states))

    def say_keys(self, keys: Sequence[Hint], session: Session | None = None) -> None:
        """Show these keys in the line at the bottom, and those that every screen has.

        While it is new, what ``session`` has to say comes before them.
        """
        notice = session.notices.current if session is not None else None
        token = "text" if notice is None or notice.severity == "ok" else notice.severity
        self.foot.say([(notice.text, token)] if notice is not None else ())
        self.foot.show(keys, screen_ends(keys_of(type(self))))
