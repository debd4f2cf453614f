"""What all tabs have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from ...store.view import by_key
from ...text.styled import Line
from ..shell.keymap import key_of
from ..shell.selection import on_device
from ..shell.session import Session
from .text import Lines

if TYPE_CHECKING:
    from ...store.view import HostView, TrainerView


class Pane(Vertical):
    """One tab of the main screen.

    :meth:`show` brings its numbers up to date and :meth:`show_charts`, less often, its charts;
    neither is called while the tab is hidden. Methods ``do_NAME`` carry out actions of the
    registry.
    """

    DEFAULT_CSS = "Pane { height: 1fr; }"

    def __init__(self, session: Session, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.session = session

    def show(self, host: HostView | None) -> None:
        """Draw the numbers of this moment."""

    def show_charts(self, host: HostView) -> None:
        """Draw the histories."""

    def show_figures(self, host: HostView) -> None:
        """Draw the charts again that name the value of now, which tables beside them name too.

        The others wait for :meth:`show_charts`.
        """

    def show_findings(self) -> None:
        """Show new findings of the doctor."""

    def fit_to(self, width: int, height: int) -> None:
        """Choose what has room on a terminal of this size, in cells."""

    def chosen(self, host: HostView) -> TrainerView | None:
        """The trainer that is looked at, or one on the device that is: mine before others'."""
        found = by_key(host.trainers, self.session.selection.trainer)
        if found is not None and found.gone is None:
            return found
        return on_device(host, by_key(host.devices, self.session.selection.device))

    def chosen_pid(self) -> int | None:
        """Return the process that is looked at, with or without a probe in it."""
        return None

    def chosen_trainer_pid(self) -> int | None:
        """Return the process of the trainer that is looked at."""
        host = self.session.host
        trainer = self.chosen(host) if host is not None else None
        return trainer.definition.pid if trainer is not None else None

    def take_focus(self) -> None:
        """Give the keyboard to the list a user most likely wants."""

    def focus_on(self, widget: Widget) -> None:
        """Give the keyboard to this widget, now.

        ``Widget.focus`` would do it with the app's next message, and so take it from a filter
        that a key has opened meanwhile: what is typed into it would be carried out.
        """
        self.screen.set_focus(widget, scroll_visible=False)

    @property
    def typing(self) -> bool:
        """Whether a filter is open: nothing but a key takes the keyboard from it."""
        # asked with every picture: a query would look at all widgets of the screen
        return any(type(one).__name__ == "FilterLine" for one in self.screen.children)


WAITING = "waiting for the first reading"


def ways_to_a_probe() -> list[Line]:
    """Return how a probe gets into a training, for places that show nothing without one."""
    return [
        [(f"{key_of('attach'):24}", "accent"), ("attach one to a running training", "muted")],
        [(f"{'gpuscope run train.py':24}", "accent"), ("start a training with one", "muted")],
        [(f"{'gpuscope lab':24}", "accent"), ("the demo trainer, here", "muted")],
    ]


class Waiting(Vertical):
    """The first frame of a tab, with nothing in its panels.

    What fills them is loaded behind it.
    """

    DEFAULT_CSS = """
    Waiting { height: 1fr; }
    Waiting > .panel { height: 3; }
    Waiting > .panel:last-child { height: 1fr; }
    """

    def __init__(self, titles: Sequence[str]) -> None:
        super().__init__(id="waiting")
        self._titles = titles

    def compose(self) -> ComposeResult:
        for title in self._titles:
            panel = Lines([[(WAITING, "muted")]], classes="panel")
            panel.border_title = title
            yield panel


def set_title(widget: Widget, title: str) -> None:
    """Give a widget a border title, in which no markup is read: it may quote a program.

    The setter repaints the whole widget, so it is called only when the title changes.
    """
    wanted = Content(title)
    if str(widget.border_title or "") != wanted.markup:
        widget.border_title = wanted


class ViewChanged(Message):
    """A message that there is a new picture.

    One that waits is replaced by the next: a slow terminal gets fewer pictures, not older ones.
    """

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ViewChanged)
