"""This is the application: its themes, the main screen, the palette, and how it is left.

Leaving waits for nobody.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual import events
from textual.binding import BindingType
from textual.command import Provider
from textual.driver import Driver
from textual.filter import ANSIToTruecolor, LineFilter
from textual.screen import Screen

from ..terminal.filters import Guard, PlainAscii
from ..terminal.minimal_updates import LeanApp
from ..terminal.typeahead import TypeAhead
from ..theme import COLOUR_BLIND, DARK, LIGHT, css_variables, register
from .keymap import always
from .main_screen import TABS, MainScreen
from .palette import ActionProvider, Palette
from .session import Session

GUARD, PLAIN = Guard(), PlainAscii()
THEME_NAMES = {"dark": DARK, "light": LIGHT, "colour-blind": COLOUR_BLIND, "ansi": "ansi-dark"}
"""Names in the config file → names of themes."""


class GpuscopeApp(LeanApp[int]):
    """One session in one terminal.

    ``start`` is the tab that is shown first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*always()]
    CSS_PATH: ClassVar[str] = "app.tcss"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {ActionProvider}
    TITLE = "gpuscope"
    ENABLE_COMMAND_PALETTE = True

    def __init__(self, session: Session, start: str = "overview") -> None:
        super().__init__()
        self.session = session
        self.ascii_only = session.settings.ascii
        self._keys = TypeAhead(self)
        self._start = start if start in TABS else "overview"
        register(self)
        wanted = session.state.theme or THEME_NAMES.get(session.settings.theme, DARK)
        self.theme = wanted if wanted in self.available_themes else DARK

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
        # themes name no ANSI colours.
        filters = super().get_line_filters()
        own = [GUARD, PLAIN] if self.session.settings.ascii else [GUARD]
        return [*(f for f in filters if not isinstance(f, ANSIToTruecolor)), *own]

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
        self.call_later(self.main.action_do, name)

    def action_command_palette(self) -> None:
        """Open the palette, unless it is open."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def leave(self, code: int = 0) -> None:
        """Restore the terminal and end with this exit code.

        The agent is killed, not waited for.
        """
        self.session.close()
        self.exit(code, return_code=code)
