"""This dialog takes one line: another host, job or pod that is to be shown as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.suggester import Suggester
from textual.widgets import Input

from ...text import styled
from ...text.styled import Line
from ..widgets.dialog import Dialog
from ..widgets.program import program
from ..widgets.text import Lines
from .connecting import names_of_ssh, why_not

if TYPE_CHECKING:
    from ..shell.session import Session

FORMS = (
    ("host, user@host", "a host, through ssh and your ssh settings"),
    ("host:PID", "one process there: its job opens once it is seen"),
    ("slurm:JOB", "every node of a Slurm job; slurm:JOB@LOGIN from outside of the cluster"),
    ("k8s:NAMESPACE/POD", "a pod of Kubernetes, or one of its containers behind another /"),
)


MOST_NAMES = 40
"""How many hosts of the ssh configuration are listed; each typed letter narrows the list."""


def host_of(text: str) -> tuple[str, str]:
    """Split the typed text into the host and what precedes it, such as ``user@``."""
    user, at, host = text.strip().rpartition("@")
    return f"{user}{at}", host


class Completing(Suggester):
    """Completes the typed host from the names in the ssh configuration."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._names = names

    async def get_suggestion(self, value: str) -> str | None:
        before, host = host_of(value)
        fit = (name for name in self._names if host and name.startswith(host))
        name = next(fit, None)
        return f"{before}{name}" if name is not None else None


class ConnectDialog(Dialog):
    """The line for a target as ``gpuscope attach`` takes it, and the forms that it may have."""

    DEFAULT_CSS = """
    ConnectDialog Input, ConnectDialog Input:focus {
        border: none; height: 1; padding: 0; background: $panel; margin: 0 0 1 0;
    }
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._names = names_of_ssh(session)
        self._input = Input(
            placeholder="a host, user@host, slurm:JOB or k8s:NAMESPACE/POD",
            max_length=300,
            select_on_focus=False,
            suggester=Completing(self._names),
        )
        self._forms = Lines()

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = "Attach to another host"
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
        if self._names:
            begun = host_of(self._input.value)[1]
            fit = [name for name in self._names if name.startswith(begun)] or self._names
            more = f" and {len(fit) - MOST_NAMES} more" if len(fit) > MOST_NAMES else ""
            names = ", ".join(fit[:MOST_NAMES]) + more
            lines += [[], [(f"{'in ~/.ssh/config':19}", "muted"), (names, "text")]]
        reason = problem or why_not(self.session)
        if reason:
            lines += [[], [("Not possible: ", "warn"), (reason, "text")]]
        cells = max(30, self._forms.size.width or 70)
        self._forms.show(styled.hang_lines(lines, cells, 1))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._show()

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
