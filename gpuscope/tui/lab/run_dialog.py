"""This dialog looks at a run of the Lab closely.

It has the switches, every figure or the reason why there is none, and the surroundings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from ...text.styled import Line
from ..runs.run import RunView
from ..runs.runs import LabRuns, run_name
from ..widgets.text_dialog import TextDialog
from .run_text import entry_lines, live_lines, repeat_lines

if TYPE_CHECKING:
    from ...lab.config import LabConfig
    from ...lab.ledger import Entry


class RunDialog(TextDialog):
    """One run in full, whose switches a key takes over."""

    def __init__(self, runs: LabRuns, entries: Sequence[Entry], run: RunView | None) -> None:
        many = f" and {len(entries) - 1} repeats" if len(entries) > 1 else ""
        super().__init__(f"Run {run_name(entries[0].id)}{many}" if entries else "The current run")
        self.runs = runs
        self._entries, self._run = entries, run

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
