"""This dialog takes a recording of a user's own trainer as a run to compare with.

The path of the recording is typed, and its trainings are listed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Input

from ...text.styled import Line
from ..runs.ledger_view import in_own_thread
from ..runs.runs import LabRuns
from ..widgets.table import Column, LiveTable, TableRow
from ..widgets.text_dialog import TextDialog

if TYPE_CHECKING:
    from ...cli.commands.lab.recorded import RecordedTraining
    from ...lab.ledger import Entry

log = logging.getLogger("gpuscope.lab")
COLUMNS = (
    Column("title", "TRAINING", 20, flex=1),
    Column("pid", "PID", 8, align="right"),
    Column("steps", "STEPS", 9, align="right"),
)


class RecordingDialog(TextDialog):
    """The question which training of which recording becomes a run.

    ``taken`` gets the entry of the training that was chosen.
    """

    DEFAULT_CSS = """
    RecordingDialog .dialog { width: 76; }
    RecordingDialog Input { height: 1; border: none; margin: 1 0; padding: 0 1; background: $panel; }
    RecordingDialog Input:focus { border: none; }
    RecordingDialog LiveTable { height: 8; }
    """  # noqa: E501

    def __init__(self, runs: LabRuns, taken: Callable[[Entry], None]) -> None:
        super().__init__()
        self.runs = runs
        self._taken = taken
        self._found: Sequence[RecordedTraining] = ()
        self._problem = ""
        self._reading = False
        self._input = Input(placeholder="path of a .gsr file", max_length=1000)
        self._table = LiveTable(COLUMNS, empty="")

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = "A recording as a run"
            yield self.lines
            yield self._input
            self._table.display = False
            yield self._table

    def on_mount(self) -> None:
        self.set_focus(self._input)  # now: the next key may be there already

    def text(self) -> Iterable[Line]:
        yield [
            ("", "text"),
            ("gpuscope record FILE", "accent"),
            (
                " records your own trainer; here it becomes a run to compare with others",
                "muted",
            ),
        ]
        if self._reading:
            yield [("reading", "muted")]
        if self._problem:
            yield [("▲ ", "bad"), (self._problem, "text")]

    def action_other(self) -> None:
        """Go from typing to the list, and back."""
        if self._table.display:
            self.set_focus(self._input if self._table.has_focus else self._table)

    async def action_go_on(self) -> None:
        """Read what is typed, or take what is under the cursor of the list."""
        if self._table.has_focus and self._table.cursor_key is not None:
            self._take(self._found[int(self._table.cursor_key)])
        else:
            await self._read(self._input.value)

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        await self._read(event.value)

    async def _read(self, typed: str) -> None:
        words = typed.strip()
        if not words or self._reading:
            return
        from ...cli.commands.lab.recorded import RecordedError, trainings

        path = Path(words).expanduser()
        self._reading, self._problem, self._found = True, "", ()
        self.redraw()
        try:
            self._found = [one for one in await in_own_thread(lambda: trainings(path)) if one.steps]
            self._problem = "" if self._found else f"{path.name} contains no training with a step"
        except RecordedError as error:
            self._problem = str(error)
        except OSError as error:
            self._problem = f"{path.name} cannot be read: {error.strerror}"
        except Exception as error:  # whatever is in a file must not end the screen
            log.exception("a recording cannot be read")
            self._problem = f"{path.name} cannot be read: {error!r}"
        self._reading = False
        if not self.is_open:
            return
        if len(self._found) == 1:
            self._take(self._found[0])
            return
        self._table.display = bool(self._found)
        self._table.show(
            [
                TableRow(
                    str(n), {"title": one.title, "pid": str(one.pids[0]), "steps": f"{one.steps:,}"}
                )
                for n, one in enumerate(self._found)
            ]
        )
        # who types another path meanwhile goes on typing
        if self._found and self._input.value == typed:
            self.set_focus(self._table)
        self.redraw()

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        self._take(self._found[int(event.key)])

    def _take(self, training: RecordedTraining) -> None:
        self._taken(self.runs.book.keep(training.entry))
        self.dismiss()
