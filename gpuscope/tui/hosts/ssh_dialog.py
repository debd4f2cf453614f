"""This dialog asks what ssh asks on the way to a host.

That is a password, a passphrase, or whether a host key is right. The question comes from a
thread that serves ssh's helper, and the answer goes back there; it is kept nowhere.
"""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING, Any

from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input

from ...text import styled
from ..shell.footer import screen_hints
from ..shell.keymap import key_of, keys_of
from ..widgets.dialog import ClosesOnce
from ..widgets.key_line import KeyLine
from ..widgets.text import Lines

if TYPE_CHECKING:
    from ...attach.askpass import SshQuestion

WIDTH, FRAME = 78, 4


class SshPrompt(ClosesOnce, ModalScreen[str | None]):
    """The dialog of one question of ssh.

    When it is refused, ssh gives up, and the host says so.
    """

    DEFAULT_CSS = """
    SshPrompt { align: center middle; background: $background 60%; }
    SshPrompt .dialog {
        width: 78; max-width: 96%; height: auto; max-height: 92%; padding: 0 1;
        border: round $gs-accent; background: $surface;
        border-title-color: $gs-title;
    }
    SshPrompt Input, SshPrompt Input:focus { border: none; height: 1; padding: 0; background: $panel; }
    """  # noqa: E501

    def __init__(self, question: SshQuestion) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        question = self.question
        with VerticalScroll(classes="dialog") as body:
            body.border_title = "ssh asks" + (
                f", on the way to {question.place[:48]}" if question.place else ""
            )
            refuse = key_of("refuse", "SshPrompt")
            body.can_focus = False
            width = min(WIDTH, int(self.app.size.width * 0.96)) - FRAME
            lines = styled.hang_lines(
                ([(text, "text")] for text in question.prompt.split("\n")), width
            )
            if question.confirm:
                lines += styled.wrap(
                    [
                        (
                            "Compare the fingerprint with one you were given. Type yes, or "
                            f"{refuse}.",
                            "muted",
                        )
                    ],
                    width,
                )
            elif question.secret:
                if question.again:
                    lines += styled.wrap(
                        [("Asked again: the last answer was not accepted.", "warn")], width
                    )
                lines += styled.wrap([("Goes only to ssh: not shown, not stored.", "muted")], width)
            said = Lines()
            said.show(lines)
            yield said
            yield Input(password=question.secret, max_length=1000)
        foot = KeyLine()
        keys = screen_hints(keys_of(type(self)))
        foot.show([keys[0]._replace(label="close")] if question.notice else keys, ())
        yield foot

    def on_mount(self) -> None:
        self.set_focus(self.query_one(Input))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)

    def action_refuse(self) -> None:
        """Close the question without an answer."""
        self.dismiss(None)


class Prompts:
    """What answers questions by asking in ``app``, one at a time.

    It is called on other threads than the app's.
    """

    def __init__(self) -> None:
        self.app: App[Any] | None = None

    def answer(self, question: SshQuestion) -> str | None:
        """Return what was typed; None if the user refused, or cannot be asked."""
        app = self.app
        if app is None or not app.is_running:
            return None
        answered: concurrent.futures.Future[str | None] = concurrent.futures.Future()
        try:
            app.call_from_thread(app.push_screen, SshPrompt(question), answered.set_result)
        except RuntimeError:  # it is ending
            return None
        return answered.result()
