"""This dialog looks at a run of the Lab closely.

It has the switches, every figure or the reason why there is none, and the surroundings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll

from ...text.styled import Line
from ..runs.run import RunView
from ..runs.runs import LabRuns, run_name
from ..shell.keymap import bindings_of
from ..widgets.text_dialog import TextDialog
from .run_text import entry_lines, live_lines, repeat_lines

if TYPE_CHECKING:
    from ...lab.config import LabConfig
    from ...lab.ledger import Entry


class RunDialog(TextDialog):
    """One run in full, whose switches a key takes over."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("RunDialog")]

    def __init__(self, runs: LabRuns, entries: Sequence[Entry], run: RunView | None) -> None:
        super().__init__()
        self.runs = runs
        self._entries, self._run = entries, run

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            many = f" and {len(self._entries) - 1} repeats" if len(self._entries) > 1 else ""
            body.border_title = (
                f"Run {run_name(self._entries[0].id)}{many}" if self._entries else "The current run"
            )
            yield self.lines

    def key_states(self) -> Collection[str]:
        return ("switches",) if self._config() is not None else ()

    def _config(self) -> LabConfig | None:
        return self._entries[0].config if self._entries else self._run.config if self._run else None

    def on_mount(self) -> None:
        if not self._entries:
            self.set_interval(1.0, self.redraw)

    def text(self) -> Iterable[Line]:
        if not self._entries:
            return live_lines(self._run)
        repeats = repeat_lines(self._entries) if len(self._entries) > 1 else ()
        return [*repeats, *entry_lines(self._entries[0])]

    def action_take(self) -> None:
        """The switches become those of this run."""
        config = self._config()
        if config is not None:
            self.runs.take(config)
            self.dismiss()
