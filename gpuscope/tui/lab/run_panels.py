"""The right side of the Lab: the comparison, the curves and the list of runs.

They stand below one another. On a large terminal the curves stand beside the comparison, and below
that one all that is known of the run under the cursor of the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Container, Vertical

from ...text import styled
from ..runs.runs import run_name
from ..widgets.pane import set_title
from ..widgets.text import Lines
from .run_charts import RunCharts
from .run_text import entry_lines

if TYPE_CHECKING:
    from ...lab.ledger import Entry
    from ..widgets.table import LiveTable
    from .rows import ShownRun

SPREAD_CELLS, SPREAD_ROWS = 180, 40
"""From this size of the terminal on the curves stand beside the comparison."""


def cells_beside_curves(right: int) -> int:
    """Return the cells inside the comparison, of so many at the right, where it is spread."""
    return right // 2 - 4


class RunPanels(Vertical):
    """What stands at the right of the switches; ``table`` is the list of runs."""

    DEFAULT_CSS = """
    RunPanels { width: 1fr; }
    RunPanels #lab-compared, RunPanels #lab-curves { width: 1fr; height: 1fr; }
    RunPanels #lab-top { layout: vertical; }
    RunPanels.spread #lab-top { layout: horizontal; }
    """

    def __init__(self, table: LiveTable) -> None:
        super().__init__(id="lab-right")
        self.now = Lines(id="now-right", classes="panel")
        self.ab = Lines(id="ab", classes="panel")
        self.chosen = Lines(id="chosen", classes="panel")
        self.table, self.charts = table, RunCharts()
        self._top = Container(id="lab-top")
        self._compared, self._curves = Vertical(id="lab-compared"), Vertical(id="lab-curves")
        self._placed: tuple[object, ...] = ()
        self._told: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        self.ab.border_title = "A/B"
        yield self.now
        with self._top:
            with self._compared:
                yield self.ab
                yield self.chosen
            yield self._curves
        yield self.table

    def make_charts(self) -> bool:
        """Make the charts, and return whether there were none."""
        if self.charts.loss is not None or not self._curves.is_mounted:
            return False
        self.charts.mount(self._curves)
        return True

    def place(self, heights: Mapping[str, int | str], spread: bool) -> None:
        """Display the panels with these heights, below one another or ``spread``."""
        placed = (tuple(heights.items()), spread, self.charts.loss is None)
        if placed == self._placed:
            return
        self._placed = placed
        self.set_class(spread, "spread")
        charts = self.charts
        panels = {"ab": self.ab, "chosen": self.chosen, "runs": self.table}
        for name, panel in {
            **panels,
            "loss": charts.loss,
            "time": charts.time,
            "pace": charts.pace,
        }.items():
            if panel is not None:
                panel.display = name in heights
                panel.styles.height = heights.get(name, "1fr")
        compared = heights.get("ab", "1fr")
        self._compared.display, self._curves.display = "ab" in heights, "loss" in heights
        self._top.display = self._compared.display or self._curves.display
        if spread:
            compared = "1fr"
        else:
            self.ab.styles.height = "1fr"
        self._compared.styles.height = compared
        self._top.styles.height = "1fr" if spread or "loss" in heights else compared

    def show_chosen(self, shown: ShownRun | None, cells: int) -> None:
        """Show all that is known of a run that has ended."""
        entries: Sequence[Entry] = shown.entries if shown is not None else ()
        told = ([entry.id for entry in entries], cells)
        if told == self._told:
            return
        self._told = told
        if shown is None:
            set_title(self.chosen, "Run")
            self.chosen.show([[("a finished run under the cursor of the list", "muted")]])
            return
        many = f", the newest of {len(entries)} repeats" if len(entries) > 1 else ""
        set_title(self.chosen, f"Run {run_name(shown.entry.id)}{many}")
        self.chosen.show(styled.hang_lines(entry_lines(shown.entry), cells))
