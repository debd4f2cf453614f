"""This dialog says which rank of a dead job failed first, from a folder of what the job left."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Input

from ...text import styled
from ...text.styled import Line
from ..widgets.dialog import Dialog
from ..widgets.text import Lines

if TYPE_CHECKING:
    from ...doctor.finding import Report

log = logging.getLogger("gpuscope.doctor")
ABOUT = (
    "The logs of all ranks, error files of torchrun, dumps of the flight recorder, stacks, black "
    "boxes, dmesg and what Slurm printed, at any depth. Nothing there is changed."
)
LEAST_CELLS = 50


class DeadJobDialog(Dialog):
    """The line for a folder or a file, and the verdict on the job that left it.

    The files are read in a thread, because a large job takes seconds.
    """

    DEFAULT_CSS = """
    DeadJobDialog .dialog { width: 96%; }
    DeadJobDialog Input, DeadJobDialog Input:focus {
        border: none; height: 1; padding: 0; background: $panel; margin: 0 0 1 0;
    }
    """

    def __init__(self, path: str = "") -> None:
        super().__init__()
        self._input = Input(
            path, placeholder="the folder of its logs and dumps", select_on_focus=False
        )
        self._lines = Lines()
        self._report: Report | None = None
        self._problem = ""

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = "A dead job"
            yield self._input
            yield self._lines

    def on_mount(self) -> None:
        self.set_focus(self._input, scroll_visible=False)
        self._show()
        if self._input.value:
            self._begin(self._input.value)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def action_other(self) -> None:
        """Go from typing to the text, and back."""
        self.set_focus(self.body if self._input.has_focus else self._input)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._begin(event.value)

    def _begin(self, typed: str) -> None:
        """Read what is there; a reading that still runs is given up."""
        if not typed.strip():
            return
        self._report, self._problem = None, ""
        self.begin(self._read(typed.strip()))
        self._show()

    async def _read(self, typed: str) -> None:
        from ...doctor import dead, report, table

        path = Path(typed).expanduser()
        try:
            if not path.exists():
                self._problem = f"There is nothing at {path}."
            else:
                found = await asyncio.to_thread(dead.examine, [path], path.name or str(path))
                self._report = report.finish(found, table.load())
        except Exception as error:  # whatever is in the files must not end the screen
            log.exception("a dead job cannot be examined")
            self._problem = f"It cannot be examined: {error!r}"
        self._work = None
        if self.is_open:
            self._show()
            if self._report is not None and self._input.value.strip() == typed:
                self.set_focus(self.body)

    def _show(self) -> None:
        if not self.is_open:
            return
        from ...doctor import report

        cells = max(LEAST_CELLS, self._lines.size.width or LEAST_CELLS)
        lines: list[Line]
        if self._report is not None:
            lines = report.lines(self._report, None, cells)
        elif self._problem:
            lines = styled.hang_lines([[("▲ ", "bad"), (self._problem, "text")]], cells, 1)
        elif self._work is not None:
            lines = [[("reading", "muted")]]
        else:
            lines = styled.wrap([(ABOUT, "muted")], cells)
        self._lines.show(lines)
