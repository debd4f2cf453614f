"""These dialogs open over the Doctor tab.

One shows a pitfall in full, the other measures a proof by a command of the Lab.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from ...text.styled import Line
from ..lab.text import occupant_text
from ..runs.demo import Demo, state_text
from ..shell.keymap import key_of
from ..widgets.text import Lines
from ..widgets.text_dialog import TextDialog

if TYPE_CHECKING:
    from ...doctor.finding import Pitfall
    from ...model.occupants import Occupant
    from ..runs.runs import LabRuns
    from .proof import Proof

OUTPUT_ROWS = 14


class ExplainDialog(TextDialog):
    """One pitfall in full.

    It says how the pitfall shows, its fixes, when not to apply them, what it costs, and where
    it is from.
    """

    def __init__(self, row: Pitfall) -> None:
        super().__init__(row.id)
        self._row = row

    def text(self) -> Iterable[Line]:
        from ...doctor.explain import explained

        return (_split_indent(line) if line else line for line in explained(self._row, self.cells))


def _split_indent(line: Line) -> Line:
    """Return the line with its indent as a piece of its own.

    What does not fit goes on below that, so that a line of code stays one block.
    """
    text, token = line[0]
    rest = text.lstrip(" +-")
    return [(text[: len(text) - len(rest)], token), (rest, token), *line[1:]]


def command_of(proof: Proof) -> list[str]:
    """Return what is started: our own verb."""
    return [sys.executable, "-m", "gpuscope", *proof.words]


class CommandDialog(TextDialog):
    """A proof that a command of the Lab measures.

    Keys start and stop it. It goes on when the dialog is closed.
    """

    DEFAULT_CSS = """
    CommandDialog .dialog { width: 100; }
    CommandDialog #output { height: 14; margin: 1 0 0 0; border-top: solid $gs-border; }
    """

    def __init__(self, runs: LabRuns, proof: Proof) -> None:
        super().__init__()
        self.runs = runs
        self._proof = proof
        self._output = Lines(id="output")
        self._held: list[Occupant] = []
        self._proves = " ".join(proof.words)

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = "Reproduce"
            yield self.lines
            yield self._output

    @property
    def _demo(self) -> Demo | None:
        """The run of this proof, under way or ended."""
        demo = self.runs.demo
        return demo if demo is not None and demo.name == self._proves else None

    def text(self) -> Iterable[Line]:
        yield [("does     ", "muted"), (self._proof.text, "accent")]
        gpus = self.runs.gpus
        where = f"on the GPUs of this machine ({gpus})" if gpus else "on the CPU of this machine"
        yield [
            ("         ", "muted"),
            (f"measures it {where}; the runs take from seconds to minutes", "text"),
        ]
        busy = self.runs.demo
        if busy is not None and not busy.over and busy is not self._demo:
            yield [
                ("first    ", "muted"),
                (f"{busy.name} is running, and is stopped first", "warn"),
            ]
        if self._held:
            more = f", and {len(self._held) - 1} more" if len(self._held) > 1 else ""
            yield [("▲ not started: ", "warn"), (occupant_text(self._held[0]) + more, "text")]
            yield [
                ("         ", "text"),
                (key_of("force", "CommandDialog"), "accent"),
                (": run although the GPU is in use: both get slower", "muted"),
            ]
        demo = self._demo
        if demo is not None:
            yield [("state    ", "muted"), (state_text(demo), "text")]

    def redraw(self) -> None:
        super().redraw()
        if not self.is_open:
            return
        demo = self._demo
        self._output.display = demo is not None
        if demo is not None:
            lines: list[Line] = [
                [(text, "muted")] for text in list(demo.output)[-OUTPUT_ROWS + 1 :]
            ]
            self._output.show(
                [[(demo.problem, "bad")]]
                if demo.problem
                else lines or [[("no output yet", "faint")]]
            )

    def action_begin(self) -> None:
        """Start, unless somebody else uses a GPU that it would take."""
        if self._demo is not None and not self._demo.over:
            return
        self._held = self.runs.on_first(self.runs.gpus or 0)
        if not self._held:
            self._start()
        self.redraw()

    def action_force(self) -> None:
        """Start it although the GPU is in use."""
        if self._held:
            self._held = []
            self._start()
            self.redraw()

    def _start(self) -> None:
        self.runs.show_demo(Demo(self._proves, False, command_of(self._proof), self.redraw))

    def action_stop(self) -> None:
        if self._demo is not None:
            self._demo.stop()
        self.redraw()
