"""This dialog takes one line: another host, job or pod that is to be shown as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input

from ...text import styled
from ...text.styled import Line
from ..shell.keymap import bindings_of
from ..widgets.dialog import Dialog
from ..widgets.program import program
from ..widgets.text import Lines
from .connecting import why_not

if TYPE_CHECKING:
    from ..shell.session import Session

FORMS = (
    ("user@host", "a host, through ssh and your ssh settings"),
    ("host:PID", "one process there: its job opens once it is seen"),
    ("slurm:JOB", "every node of a Slurm job; slurm:JOB@LOGIN from outside of the cluster"),
    ("k8s:NAMESPACE/POD", "a pod of Kubernetes, or one of its containers behind another /"),
)


class ConnectDialog(Dialog):
    """The line for a target as ``gpuscope attach`` takes it, and the forms that it may have."""

    DEFAULT_CSS = """
    ConnectDialog Input, ConnectDialog Input:focus {
        border: none; height: 1; padding: 0; background: $panel; margin: 0 0 1 0;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("ConnectDialog")]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._input = Input(placeholder="user@host", max_length=300, select_on_focus=False)
        self._forms = Lines()

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = "Attach to another host"
            self.say_keys(self.own_keys(), body)
            body.can_focus = False
            yield self._input
            yield self._forms

    def on_mount(self) -> None:
        self.set_focus(self._input, scroll_visible=False)
        self._show()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def _show(self, problem: str = "") -> None:
        lines: list[Line] = [[(f"{form:19}", "accent"), (does, "muted")] for form, does in FORMS]
        reason = problem or why_not(self.session)
        if reason:
            lines += [[], [("Not possible: ", "warn"), (reason, "text")]]
        cells = max(30, self._forms.size.width or 70)
        self._forms.show(styled.hang_lines(lines, cells))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.value.strip()
        if not text:
            return
        reason = why_not(self.session)
        if reason:
            self._show(reason)
            return
        own = program(self.app)
        self.dismiss()
        own.connect(text)
