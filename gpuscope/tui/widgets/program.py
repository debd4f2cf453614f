"""This is the program as its screens know it.

They ask it for each other, and import neither it nor one another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from textual.app import App

if TYPE_CHECKING:
    from pathlib import Path

    from ..shell.notices import Severity
    from ..shell.session import Session


class Program(Protocol):
    """What a screen, a dialog or a tab may ask of the application that it is in."""

    @property
    def session(self) -> Session:
        """What is looked at."""

    def open(self, kind: str, *args: object, then: Callable[[Any], None] | None = None) -> None:
        """Open the screen for this kind of thing.

        :data:`gpuscope.tui.app.navigation.PLACES` lists the kinds. ``then`` gets what the
        screen returns when it closes.
        """

    async def action_do(self, name: str) -> None:
        """Carry out an action of the registry, whatever lies over the tabs."""

    def carry_out(self, name: str) -> None:
        """Carry out an action of the registry once the screen on top has gone."""

    def tab_shown(self) -> str:
        """Return the visible tab below all screens."""

    def after_palette(self, act: Callable[[], object]) -> None:
        """Do this once the screen below the palette is drawn again."""

    def say(self, text: str, severity: Severity = "ok", path: Path | None = None) -> None:
        """Show a notice where the user is, and keep it; ``path`` is a file that was made."""

    def save_picture(self) -> None:
        """Save this screen as SVG."""

    def save_report(self) -> None:
        """Save what is known of what this screen shows as HTML."""

    def choose_theme(self, name: str) -> None:
        """Use this theme, by its name in the settings, from now on."""

    def why_no_host(self) -> str:
        """Return why no further host can be shown, "" where one can."""

    def ssh_names(self) -> list[str]:
        """Return the hosts that the user's settings of ssh name, which ``connect`` takes."""

    def connect(self, text: str) -> None:
        """Show another host as well, which is written as for ``gpuscope attach``."""

    def look_at(self, key: str) -> None:
        """Look at the host with this key."""

    def hosts_changed(self) -> None:
        """Draw what depends on which hosts there are, and which is looked at."""

    def redraw(self) -> None:
        """Write the whole screen to the terminal again."""

    def quit(self) -> None:
        """End the program, after a question where a run would end with it."""

    def leave(self, code: int = 0) -> None:
        """End the program."""


def program(app: App[Any]) -> Program:
    """Return the application of a screen or widget, ``program(self.app)``."""
    return cast(Program, app)
