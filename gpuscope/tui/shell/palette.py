"""The palette: every action of the registry by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from textual import events
from textual.app import ComposeResult
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider

from ..widgets.dialog import ClosesOnce
from ..widgets.program import program
from .actions import ACTIONS, Action
from .keymap import in_order, keys_of, shown_keys, shown_whole


class Entries(CommandList):
    """The list of the palette.

    Each letter that is typed replaces its entries, and a click on one that went is no click.
    """

    def _on_click(self, event: events.Click) -> None:  # type: ignore[override]
        if event.style.meta.get("option", -1) >= self.option_count:
            event.prevent_default()


class Palette(ClosesOnce, CommandPalette):
    """Textual's, but for two clicks that come together, or late."""

    def compose(self) -> ComposeResult:
        for widget in super().compose():
            yield Entries() if type(widget) is CommandList else widget


class ActionProvider(Provider):
    """What answers the palette from the registry.

    An action that cannot be done here says why in its help line.
    """

    def _entry(self, action: Action) -> tuple[str, str, Callable[[], object]]:
        app = program(self.app)
        reason = app.session.why_not(action.name)
        where = f" ({', '.join(action.where)})" if action.where else ""
        help_text = f"not here: {reason}" if reason else f"{action.help}{where}"
        return (
            f"{action.label}  {shown_keys(action)}",
            help_text,
            lambda: app.carry_out(action.name),
        )

    def _here(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        """Return what the screen below the palette has keys for, besides the actions."""
        session, screen = program(self.app).session, self.screen
        for key in in_order(keys_of(type(screen))):
            # which is an action of its own, below
            if not key.via and key.binds[0][1] != "keys_here":
                reason = session.why_not(key.needs) if key.needs else ""
                run = partial(screen.call_later, screen.run_action, key.binds[0][1])
                title = f"{key.label[:1].upper()}{key.label[1:]}  {shown_whole(key)}"
                yield title, f"not here: {reason}" if reason else key.help, run

    async def discover(self) -> Hits:
        for title, help_text, run in self._here():
            yield DiscoveryHit(title, run, help=help_text)
        # those keys are known best
        for action in sorted(ACTIONS, key=lambda action: action.group == "Move"):
            title, help_text, run = self._entry(action)
            yield DiscoveryHit(title, run, help=help_text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        named = [(action.name, self._entry(action)) for action in ACTIONS]
        for name, (title, help_text, run) in [*(("", entry) for entry in self._here()), *named]:
            score = max(matcher.match(title), matcher.match(f"{name} {help_text}") * 0.8)
            if score > 0:
                yield Hit(score, matcher.highlight(title), run, text=title, help=help_text)
