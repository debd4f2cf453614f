"""This is the application: its themes, the main screen, the palette, and how it is left.

Leaving waits for nobody.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.binding import BindingType
from textual.driver import Driver
from textual.filter import ANSIToTruecolor, LineFilter, Monochrome, NoColor
from textual.screen import Screen

from ..shell.actions import BY_NAME
from ..shell.keymap import ALWAYS, always
from ..shell.notices import Kind, Severity
from ..shell.session import Session
from ..terminal.filters import Guard, NoColours, PlainAscii
from ..terminal.minimal_updates import LeanApp
from ..terminal.typeahead import TypeAhead
from ..theme import DARK, THEME_NAMES, css_variables, register
from ..widgets.dialog import ClosesOnce
from ..widgets.key_line import KeyLine
from .main_screen import MainScreen
from .tabs import TABS

if TYPE_CHECKING:
    from pathlib import Path

    from ..hosts.connecting import Connector

GUARD, PLAIN, NO_COLOURS = Guard(), PlainAscii(), NoColours()


class GpuscopeApp(LeanApp[int]):
    """One session in one terminal.

    ``start`` is the tab that is shown first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*always()]
    CSS_PATH: ClassVar[str] = "app.tcss"
    TITLE = "gpuscope"
    ENABLE_COMMAND_PALETTE = True

    def __init__(self, session: Session, start: str = "overview", theme: str | None = None) -> None:
        """Make the application; ``theme`` goes before what is remembered, which stays as it is."""
        super().__init__()
        self.session = session
        self.ascii_only = session.settings.ascii
        self._keys = TypeAhead(self, self._unanswered, self._pressed, ALWAYS)
        self._connector: Connector | None = None
        self._asked_to_quit = False
        self._start = start if start in TABS else "overview"
        register(self)
        wanted = theme or session.state.theme or session.settings.theme
        self.theme = THEME_NAMES.get(wanted, DARK)

    def get_default_screen(self) -> Screen[Any]:
        return MainScreen(self.session, self._start)

    def get_driver_class(self) -> type[Driver]:
        driver = super().get_driver_class()
        if sys.platform == "win32":
            return driver
        from ..terminal.driver import promptly

        return promptly(driver)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return css_variables(self.current_theme)

    def get_line_filters(self) -> Sequence[LineFilter]:
        # The last guard: whatever reaches a line, no control character leaves it. Always the same
        # object: Textual keeps what a filter made of a line, and finds it again by the filter. Our
        # themes name no ANSI colours. NO_COLOR asks for no colours at all; Textual would send
        # greys, and black on black where the terminal chooses the colours.
        others = (ANSIToTruecolor, Monochrome, NoColor)
        filters = [f for f in super().get_line_filters() if not isinstance(f, others)]
        filters += [NO_COLOURS] if self.no_color else []
        return [*filters, GUARD, PLAIN] if self.session.settings.ascii else [*filters, GUARD]

    async def on_event(self, event: events.Event) -> None:
        if not (isinstance(event, (events.Key, events.Paste)) and self._keys.take(event)):
            await super().on_event(event)

    def on_mount(self) -> None:
        self.session.link, self.link.asks = self.link, self.session.over_ssh
        # Textual leaves the alternate screen on SIGTERM only when it is asked to end.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            try:
                loop.add_signal_handler(number, self.leave, 128 + number)
            except (NotImplementedError, RuntimeError, ValueError):  # not the main thread: a test
                pass

    def _pressed(self) -> None:
        """Put away what was said about the key before."""
        if self.session.notices.unhint():
            self.main.refresh_frame()
        for line in self.screen.query(KeyLine):
            line.untell()

    def _unanswered(self, key: str) -> None:
        """Say where a key does something that does nothing on the screen on top."""
        from .elsewhere import elsewhere

        screen = self.screen
        if isinstance(screen, MainScreen):
            screen.tell(elsewhere(key, tab=screen.tab))
        elif isinstance(screen, ClosesOnce):
            screen.tell(elsewhere(key, type(screen).__name__))

    @property
    def main(self) -> MainScreen:
        """The screen with the tabs, whatever lies over it."""
        screen = self.screen_stack[0]
        assert isinstance(screen, MainScreen)
        return screen

    async def action_do(self, name: str) -> None:
        """Carry out an action of the registry, whatever lies over the main screen."""
        await self.main.action_do(name)

    def open(self, kind: str, *args: object, then: Callable[[Any], None] | None = None) -> None:
        """Open the screen for this kind of thing.

        ``then`` gets what the screen returns when it closes.
        """
        from .navigation import screen_for

        screen = screen_for(kind, self.session, *args)
        if screen is not None:
            self.push_screen(screen, then)

    def carry_out(self, name: str) -> None:
        """Carry out an action of the registry once the palette has gone."""
        self.call_later(self._go_and_do, name)

    async def _go_and_do(self, name: str) -> None:
        """Leave the screens over the tabs first, where the action is about a tab."""
        if (name in TABS or BY_NAME[name].where) and not self.session.why_not(name):
            while len(self.screen_stack) > 1:
                self.pop_screen()
        await self.main.go_and_do(name)

    def action_command_palette(self) -> None:
        """Open the palette, unless it is open."""
        from .palette import Palette

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    # ── what the palette offers besides ──

    def after_palette(self, act: Callable[[], object]) -> None:
        """Do this once the screen below the palette is drawn again."""
        self.call_after_refresh(act)

    def say(self, text: str, severity: Severity = "ok", path: Path | None = None) -> None:
        """Show a notice where the user is, and keep it; ``path`` is a file that was made."""
        kind: Kind = "program" if path is None else "file"
        self.session.notices.say(text, severity, kind=kind, path=path)
        screen = self.screen
        if isinstance(screen, MainScreen):
            screen.refresh_frame()
        elif isinstance(screen, ClosesOnce):
            screen.tell(text, severity)

    def save_picture(self) -> None:
        """Save this screen as SVG."""
        from .saving import save_picture

        save_picture(self)

    def do_report(self) -> None:
        """Carry out the action of the registry on the tabs."""
        self.save_report()

    def save_report(self) -> None:
        """Save what is known of what this screen shows as HTML."""
        from .saving import save_report

        save_report(self)

    def choose_theme(self, name: str) -> None:
        """Use this theme, by its name in the settings, from now on and after the next start."""
        self.theme, self.session.state.theme = THEME_NAMES[name], name

    def why_no_host(self) -> str:
        """Return why no further host can be shown, "" where one can."""
        from ..hosts.connecting import why_not

        return why_not(self.session)

    def ssh_names(self) -> list[str]:
        """Return the hosts that the user's settings of ssh name, which ``connect`` takes."""
        from ..hosts.connecting import names_of_ssh

        return names_of_ssh(self.session)

    def connect(self, text: str) -> None:
        """Show another host as well, which is written as for ``gpuscope attach``."""
        if self._connector is None:
            from ..hosts.connecting import Connector

            self._connector = Connector(self, self.session.remote_options)
        self._connector.begin(text)

    def look_at(self, key: str) -> None:
        self.session.look_at(key)
        self.hosts_changed()

    def hosts_changed(self) -> None:
        """Draw what depends on which hosts there are, and which is looked at."""
        self.main.hosts_changed()

    def tab_shown(self) -> str:
        """Return the visible tab below all screens."""
        return self.main.tab

    def quit(self) -> None:
        """Leave; where a run of the Lab would end, ask first, but only once."""
        runs = self.session.training
        if runs is None or self._asked_to_quit:
            self.leave()
        else:
            self._asked_to_quit = True
            self.open("lab_quit", runs, then=self._stay)

    def _stay(self, _: object) -> None:
        self._asked_to_quit = False

    def leave(self, code: int = 0) -> None:
        """Restore the terminal and end with this exit code.

        The agent is killed, not waited for.
        """
        if self._connector is not None:
            self._connector.close()
        self.session.close()
        self.exit(code, return_code=code)
