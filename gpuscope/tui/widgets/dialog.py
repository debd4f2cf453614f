"""This is the base of dialogs: they close once, a framed body scrolls, and keys close it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input

from ...text.units import count_text
from ..shell.entries import Hint, Key
from ..shell.footer import ENDS_ON_DIALOGS, screen_ends, screen_hints
from ..shell.keymap import bindings_of, key_text, keys_of
from ..shell.screen_keys import KEYS
from .key_line import KeyLine
from .program import program

if TYPE_CHECKING:
    from textual.screen import Screen

    from ..shell.notices import Notice

    Base = Screen[Any]
else:
    Base = object


NOTICE_SECONDS = 0.5


class ClosesOnce(Base):
    """A screen that closes itself once, and no other screen, however often it is asked to.

    Textual's ``dismiss`` takes away whatever lies on top: with two clicks that came together, the
    screen below as well, and the program ends where there is none.

    What it waits for is cancelled when it is closed. Its keys are those of the registry under the
    name of its class.
    """

    BINDINGS: ClassVar[list[BindingType]]
    _work: asyncio.Task[None] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if cls.__name__ in KEYS:
            cls.BINDINGS = [*bindings_of(cls.__name__)]
        super().__init_subclass__(**kwargs)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` while the screen is open, instead of what ran until now."""
        self.cancel()
        self._work = asyncio.get_running_loop().create_task(work)

    def cancel(self) -> None:
        """Cancel what runs, if anything does."""
        if self._work is not None:
            self._work.cancel()

    def on_unmount(self) -> None:  # Textual calls this beside the one of a subclass
        self.cancel()

    def key_states(self) -> Collection[str]:
        """Return the states that this screen is in.

        The registry of keys names those that matter for it.
        """
        return ()

    def action_keys_here(self) -> None:
        """Open the help on the keys of this screen."""
        program(self.app).open("help", self)

    def action_palette_here(self) -> None:
        """Open the palette over this screen."""
        self.app.action_command_palette()

    def tell(self, text: str, severity: str = "warn") -> None:
        """Say something for a while in the last line, such as what a key would need."""
        for line in self.query(KeyLine):
            line.tell([(text, "text" if severity == "ok" else severity)])

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
        border-title-color: $gs-title; scrollbar-gutter: stable; scrollbar-size-horizontal: 0;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.foot = KeyLine()
        self._named: Sequence[Hint] = ()
        self._before: Notice | None = None

    def on_mount(self) -> None:  # Textual calls this beside the one of a subclass
        if self.is_attached:  # else the program is being left already
            self.mount(self.foot)
        self._show_keys()
        self._before = self._notice()
        self.set_interval(NOTICE_SECONDS, self._show_notice)
        for body in self.query(VerticalScroll).results(VerticalScroll):
            self.watch(body, "scroll_y", self._say_more, init=False)
            self.watch(body, "virtual_size", self._say_more, init=False)
        self.call_after_refresh(self._say_more)

    def _say_more(self) -> None:
        """Say on the frame that there is more text below, because a scroll bar is easily missed."""
        bodies = self.query(".dialog").results(VerticalScroll) if self.is_open else ()
        for body in bodies:
            rest = body.max_scroll_y - body.scroll_y
            laid_out = bool(body.container_size)
            text = f"{key_text('down')} {count_text(round(rest), 'more line')}"
            more = text if rest >= 1 and laid_out else ""
            if str(body.border_subtitle or "") != more:
                body.border_subtitle = more

    def _notice(self) -> Notice | None:
        session = getattr(self.app, "session", None)
        return session.notices.current if session is not None else None

    def _show_notice(self) -> None:
        """Say at the bottom what the program has said since the dialog was opened."""
        self._say_more()  # the text may have become shorter
        notice = self._notice()
        if notice is None or notice is self._before:
            self.foot.say(())
        else:
            token = "text" if notice.severity == "ok" else notice.severity
            self.foot.say([(notice.text, token)])

    def on_descendant_focus(self) -> None:
        """Name the keys again, because letters may have become text or keys."""
        self._show_keys()

    def own_keys(self) -> list[Hint]:
        """Return the keys of the registry that the line at the bottom names."""
        return screen_hints(keys_of(type(self)), self.key_states())

    def say_keys(self, keys: Sequence[tuple[str, str]]) -> None:
        """Name these keys at the bottom with words that depend on the state of the dialog.

        A word for the key that leaves takes the place of the registry's.
        """
        known = keys_of(type(self))
        out = []
        for shown, does in keys:
            names = shown.split(" ")
            actions = [_action_of(name, known) for name in names]
            does = does[:1].upper() + does[1:]  # as the registry writes its labels
            out.append(Hint(shown, does, actions[0], actions[1] if len(names) == 2 else ""))
        self._named = out
        self._show_keys()

    def _show_keys(self) -> None:
        keys = self._named or self.own_keys()
        typing = isinstance(self.focused, Input)
        ends = screen_ends(keys_of(type(self)), typing, ENDS_ON_DIALOGS)
        leaving = ends[-1].action if ends else ""
        word = next((hint.label for hint in keys if hint.action == leaving), "")
        if word:
            ends[-1] = ends[-1]._replace(label=word)
        self.foot.show([hint for hint in keys if hint.action != leaving], ends)

    @property
    def is_open(self) -> bool:
        """Return whether there is something to draw on: the dialog is composed and not closed.

        It is composed in ``on_mount`` already. What was asked may come after the dialog was
        closed, and ``is_mounted`` stays true then.
        """
        return self.is_attached and bool(self.children)

    @property
    def body(self) -> VerticalScroll:
        """Return the body, which scrolls."""
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
        self.body.scroll_relative(y=by, animate=False)

    def action_page(self, by: int) -> None:
        """Scroll by what is visible."""
        self.body.scroll_relative(y=by * max(1, self.body.size.height - 1), animate=False)


def _action_of(shown: str, keys: Sequence[Key]) -> str:
    """Return what a key does that is written as the footer writes it."""
    for key in keys:
        for names, action in key.binds:
            if any(key_text(name) == shown for name in names.split(",")):
                return action
    return ""
