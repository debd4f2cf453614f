"""This is the base of dialogs: they close once, a framed body scrolls, and keys close it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget

from ..shell.keymap import bindings_of, in_footer, keys_of, shown_short
from ..shell.notices import SHOWN_SECONDS, shortened
from .program import program
from .text import Lines

if TYPE_CHECKING:
    from textual.screen import Screen

    Base = Screen[Any]
else:
    Base = object


class DialogNotice(Lines):
    """A sentence in the last line of the terminal, which goes after a while."""

    DEFAULT_CSS = "DialogNotice { dock: bottom; height: 1; padding: 0 1; background: $panel; }"

    def on_mount(self) -> None:
        self.set_timer(SHOWN_SECONDS, self.remove)


class ClosesOnce(Base):
    """A screen that closes itself once, and no other screen, however often it is asked to.

    Textual's ``dismiss`` takes away whatever lies on top: with two clicks that came together, the
    screen below as well, and the program ends where there is none.
    """

    def key_states(self) -> Collection[str]:
        """Return the states that this screen is in.

        The registry of keys names those that matter for it.
        """
        return ()

    def action_keys_here(self) -> None:
        """What the keys do here."""
        program(self.app).open("help", self)

    def action_palette_here(self) -> None:
        """Open the palette over this screen."""
        self.app.action_command_palette()

    def tell(self, text: str, severity: str = "warn") -> None:
        """Say something for a while in the last line, such as what a key would need."""
        self.query(DialogNotice).remove()
        token = "text" if severity == "ok" else severity
        self.mount(DialogNotice([[(shortened(text, self.size.width - 2), token)]]))

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Close this screen, if it is the one on top."""
        stack = self.app.screen_stack
        return super().dismiss(result) if stack and stack[-1] is self else AwaitComplete(*())


class Dialog(ClosesOnce, ModalScreen[None]):
    """A framed body over what lies below, which scrolls and is closed by a key.

    Subclasses compose one ``VerticalScroll`` of the class ``dialog``.
    """

    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog .dialog {
        width: 90; max-width: 96%; height: auto; max-height: 92%; padding: 0 1;
        border: round $gs-accent; background: $surface;
        border-title-color: $gs-title; border-subtitle-color: $gs-muted; scrollbar-gutter: stable;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("Dialog")]

    def own_keys(self) -> list[tuple[str, str]]:
        """Return the keys of the registry that the line below a dialog names, with their words."""
        states = self.key_states()
        return [(shown_short(key), key.label) for key in in_footer(keys_of(type(self)), states)]

    def say_keys(self, keys: Sequence[tuple[str, str]], frame: Widget | None = None) -> None:
        """Name these keys, with their words, in the lower border: the one place for them."""
        if self._said_keys != tuple(keys):
            self._said_keys = tuple(keys)
            pieces: list[tuple[str, str]] = []
            for key, does in keys:
                pieces += [(key, "bold $gs-accent"), (f": {does}   ", "$gs-muted")]
            pieces[-1:] = [(text.rstrip(), style) for text, style in pieces[-1:]]
            (frame or self.body).border_subtitle = Content.assemble(*pieces)

    _said_keys: tuple[tuple[str, str], ...] = ()

    @property
    def is_open(self) -> bool:
        """Return whether there is something to draw on: the dialog is composed and not closed.

        It is composed in ``on_mount`` already. What was asked may come after the dialog was
        closed, and ``is_mounted`` stays true then.
        """
        return self.is_attached and bool(self.children)

    @property
    def body(self) -> VerticalScroll:
        """What scrolls."""
        return self.query_one(VerticalScroll)

    def keep_in_sight(self, first: int, count: int = 1) -> None:
        """Scroll as little as needed for these lines of the body to be seen.

        That happens once they are laid out.
        """
        self.call_after_refresh(self._into_sight, first, count)

    def _into_sight(self, first: int, count: int) -> None:
        if self.is_open:
            body = self.body
            top, height = body.scroll_offset.y, body.size.height
            if first < top or count >= height:
                body.scroll_to(y=first, animate=False)
            elif first + count > top + height:
                body.scroll_to(y=first + count - height, animate=False)

    def action_scroll(self, by: int) -> None:
        """Scroll by lines."""
        self.body.scroll_relative(y=by, animate=False)

    def action_page(self, by: int) -> None:
        """Scroll by what is visible."""
        self.body.scroll_relative(y=by * max(1, self.body.size.height - 1), animate=False)
