"""This is the Lab's tab in a replay, which has no Lab: it says so, and where there is one."""

from __future__ import annotations

import shlex

from textual.app import ComposeResult

from ...store.view import HostView
from ...text import styled
from ...text.styled import Line
from ..shell.session import Session
from ..widgets.pane import Pane
from ..widgets.text import Lines

COMMAND_CELLS, LEAST_CELLS = 28, 60
"""The cells of a command before what it does, and the fewest for both in one line."""


class NoLabPane(Pane):
    """The tab in a replay.

    The Lab's runs that are stored on this machine are no part of the recording. Under the badge
    of a replay they would be taken for it, so they are not even read.
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._about = Lines(classes="panel")
        self._cells = 76

    def compose(self) -> ComposeResult:
        self._about.border_title = "Lab"
        self._about.styles.height = "1fr"
        yield self._about

    def show(self, host: HostView | None) -> None:
        replay = self.session.replay
        recording = str(replay.path) if replay is not None else ""
        self._about.show(
            no_lab_lines(host.name if host is not None else "", recording, self._cells)
        )

    def fit_to(self, width: int, height: int) -> None:
        self._cells = max(20, width - 4)


def no_lab_lines(host: str, recording: str, cells: int) -> list[Line]:
    """Return that a replay has no Lab, and the commands that lead to one."""
    where = f" on {host}" if host else ""
    about = (
        f"The Lab trains on this machine, now. The recording has what was measured{where} then, "
        "and no runs of a Lab. The runs that are stored on this machine are no part of it, so "
        "they are not shown here."
    )
    commands = [
        ("gpuscope --lab", "the Lab of this machine, with its stored runs"),
        ("gpuscope lab runs", "a list of these runs"),
    ]
    if recording.endswith(".gsr"):  # a black box has no steps to compare
        commands.append(
            (
                f"gpuscope lab runs compare RUN {shlex.quote(recording)}",
                "a stored run, by its number, and the training of this recording, compared",
            )
        )
    out: list[Line] = [[("A replay has no Lab.", "title")]]
    out += [*styled.wrap([(about, "muted")], cells), []]
    for command, does in commands:
        short = len(command) < COMMAND_CELLS and cells >= LEAST_CELLS
        head: Line = [(f"{command:{COMMAND_CELLS}}" if short else "    ", "accent")]
        out += [] if short else styled.wrap([(command, "accent")], cells)
        out += styled.hang(head, [(does, "muted")], cells)
    return out
