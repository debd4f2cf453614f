"""This dialog asks how long to search for the fastest settings, and begins the search."""

from __future__ import annotations

from collections.abc import Iterable

from ...text.styled import Line
from ...text.units import duration_text
from ..runs.runs import LabRuns
from ..widgets.program import program
from ..widgets.text_dialog import TextDialog

BUDGETS = (120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0)
DEFAULT_BUDGET = 600.0


def _first_budget(runs: LabRuns) -> float:
    """Return what the same search lacked time for the last time, or the usual budget."""
    last = runs.tuning
    enough = last.enough_seconds if last is not None and last.config == runs.config else None
    if enough is None:
        return DEFAULT_BUDGET
    return next((budget for budget in BUDGETS if budget >= enough), BUDGETS[-1])


class TuneDialog(TextDialog):
    """The question for a search that begins with the Lab's switches."""

    def __init__(self, runs: LabRuns, share_gpus: bool = False) -> None:
        super().__init__("Search for the fastest settings")
        self.runs = runs
        self._budget = _first_budget(runs)
        self._free_batch = False
        self._share = share_gpus

    def text(self) -> Iterable[Line]:
        device = self.runs.device.kind
        yield [
            ("baseline ", "muted"),
            (" ".join(self.runs.config.flags()) or "all settings at their defaults", "text"),
        ]
        where = "the GPU" if device == "cuda" else "the CPU"
        yield [("trains   ", "muted"), (f"on {where} of this machine, run after run", "text")]
        yield []
        yield [("budget   ", "muted"), (duration_text(self._budget), "title")]
        batch = "may change" if self._free_batch else "stays: micro-batch × accumulation"
        yield [("batch    ", "muted"), ("the effective batch ", "text"), (batch, "title")]
        yield []
        does = (
            "tries precision, compile, micro-batch, layout, optimizer and loader; keeps what is "
            "certainly faster, learns as well and fits; at the end it proves the winner against "
            "the baseline in fresh processes."
        )
        yield [("does     ", "muted"), (does, "text")]
        if self.runs.busy:
            yield [("         ", "muted"), ("The current run is stopped first.", "warn")]

    def action_budget(self, by: int) -> None:
        """A longer or shorter search."""
        at = BUDGETS.index(self._budget) + by
        self._budget = BUDGETS[max(0, min(len(BUDGETS) - 1, at))]
        self.redraw()

    def action_free(self) -> None:
        """Keep the effective batch, or allow another."""
        self._free_batch = not self._free_batch
        self.redraw()

    def action_begin(self) -> None:
        """Go, and show how it goes."""
        self.runs.tune(self._budget, self._free_batch, self._share)
        app = program(self.app)
        self.dismiss()
        app.open("lab_tune")
