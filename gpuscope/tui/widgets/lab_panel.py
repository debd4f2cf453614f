"""The lab's switches, one compact line each, and the table of runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message
from textual.strip import Strip

from ...lab.config import TOGGLES, LabConfig, Toggle
from ..cells import bytes_text, fit, seconds_text
from ..charts.strips import Painted, strip_of
from ..labruns import Run, differing
from ..theme import Tokens
from .table import Cell, Column, TableRow

Piece = tuple[str, str]
NAME_CELLS = 12


class Switches(Painted, can_focus=True):
    """A line for each toggle. ← → change the one under the cursor; so does a click, at its right half forwards."""

    class Turned(Message):
        """A switch was clicked: ``by`` is 1 or -1."""

        def __init__(self, toggle: Toggle, by: int) -> None:
            super().__init__()
            self.toggle, self.by = toggle, by

    def __init__(self, config: LabConfig, **kwargs: str) -> None:
        super().__init__(**kwargs)
        self._config = config
        self._in_run: LabConfig | None = None
        self._cursor = 0

    @property
    def current(self) -> Toggle:
        """The toggle under the cursor."""
        return TOGGLES[self._cursor]

    def show(self, config: LabConfig, running: LabConfig | None) -> None:
        """``running`` is how the run in progress was set: what differs from it waits for a restart."""
        if (config, running) != (self._config, self._in_run):
            self._config, self._in_run = config, running
            self.repaint()

    def move(self, by: int) -> None:
        """Move the cursor, staying inside."""
        self._cursor = max(0, min(len(TOGGLES) - 1, self._cursor + by))
        self.repaint()

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        return [self._line(toggle, i == self._cursor, width, tokens) for i, toggle in enumerate(TOGGLES)]

    def _line(self, toggle: Toggle, here: bool, width: int, tokens: Tokens) -> Strip:
        value = getattr(self._config, toggle.name)
        waits = self._in_run is not None and getattr(self._in_run, toggle.name) != value
        cursor, room = tokens.glyphs.cursor if here else " ", max(4, width - NAME_CELLS - 8)
        pieces: list[Piece] = [
            (f"{cursor} ", "accent"), (fit(toggle.name.replace("_", " "), NAME_CELLS), "muted"),
            ("◂ ", "accent" if here else "faint"), (fit(toggle.text(value), room), "title" if here else "text"),
            (" ▸", "accent" if here else "faint"), (" *" if waits else "  ", "warn"),
        ]  # fmt: skip
        return strip_of(pieces, width, tokens, "selected" if here and self.has_focus else "")

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or not 0 <= offset.y < len(TOGGLES):
            return
        self._cursor = offset.y
        self.repaint()
        if offset.x > NAME_CELLS:
            self.post_message(self.Turned(self.current, 1 if offset.x >= self.size.width // 2 else -1))


def run_columns(runs: Sequence[Run]) -> list[Column]:
    """Toggles that differ come first, then what was measured."""
    toggles = [Column(t.name, t.name.upper()[:8], 6, priority=9) for t in differing(list(runs))]
    return [
        Column("run", "RUN", 5), Column("model", "MODEL", 6, priority=7), *[c for c in toggles if c.key != "model"],
        Column("pace", "SAMPLES/S", 10, align="right"), Column("step", "STEP", 8, align="right"),
        Column("peak", "PEAK", 9, align="right", priority=2), Column("loss", "LOSS", 8, align="right", priority=3),
        Column("steps", "STEPS", 7, align="right", priority=5),
    ]  # fmt: skip


def run_row(run: Run, runs: Sequence[Run], now: bool) -> TableRow:
    """A run against the first one; what it was set to differently is marked."""
    marked = {t.name for t in differing(list(runs))}
    first = runs[0]
    cells: dict[str, Cell] = {"run": [(f"{run.letter}{' ▸' if now else ''}", "title" if now else "text")]}
    for toggle in TOGGLES:
        value = getattr(run.config, toggle.name)
        differs = toggle.name in marked and value != getattr(first.config, toggle.name)
        cells[toggle.name] = [(toggle.text(value), "accent" if differs else "muted")]
    summary = run.summary or {}
    pace = summary.get("samples_per_second") or run.samples_per_second
    median = (summary.get("step_seconds") or {}).get("median") or run.step_seconds
    cells["pace"] = (
        [(f"{pace:,.0f}", "muted" if run.warming_up and not summary else "text")] if pace else [("–", "faint")]
    )
    cells["step"] = [(seconds_text(median), "text")] if median else [("–", "faint")]
    cells["peak"] = [(bytes_text(run.peak_bytes), "text")] if run.peak_bytes else [("–", "faint")]
    cells["loss"] = [(f"{run.loss:.4f}", "text")] if run.loss is not None else [("–", "faint")]
    cells["steps"] = [(f"{run.step:,}", "muted")]
    return TableRow(run.letter, cells)
