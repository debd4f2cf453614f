"""This screen shows a search for the fastest settings while it goes on, and its result."""

from __future__ import annotations

from collections.abc import Collection

from textual.app import ComposeResult
from textual.containers import Horizontal

from ...text import styled
from ...text.styled import Line
from ...text.units import count_text
from ..runs.tuning import Tuning
from ..shell.keymap import key_of
from ..shell.session import Session
from ..terminal.copying import copy_text
from ..widgets.full_screen import FullScreen
from ..widgets.program import program
from ..widgets.table import LiveTable
from ..widgets.text import Lines
from ..widgets.text_dialog import TextDialog
from .tune_text import (
    COLUMNS,
    candidates_lines,
    columns_for,
    detail_lines,
    gain_lines,
    rows_of,
    spent_text,
    summary_lines,
)

SHOW_SECONDS = 0.5
MOST_LINES, FEWEST_LINES, ROWS_OF_THE_REST = 12, 3, 19
"""The most and the fewest lines of the panels below the table, and the rows of the screen that the
rest needs to show at least six candidates."""
WIDE, WIDEST = 100, 160
"""Columns from which on there is room for the gains, and for the candidate under the cursor."""
FRAME_ROWS, AROUND_ROWS = 3, 2
"""Of the table, its frame with the names of columns; of the screen, its head and its foot."""


class DetailDialog(TextDialog):
    """All that is known of one candidate."""

    def __init__(self, lines: list[Line]) -> None:
        super().__init__("Candidate")
        self._detail = lines

    def text(self) -> list[Line]:
        return self._detail


class TuneScreen(FullScreen):
    """The newest search: its state, every candidate, and in the end what to paste."""

    DEFAULT_CSS = """
    TuneScreen #tune-about { height: auto; max-height: 10; }
    TuneScreen #tune-rows { height: 1fr; }
    TuneScreen #tune-result { height: auto; max-height: 14; }
    TuneScreen #tune-result Lines { width: 1fr; height: auto; }
    TuneScreen #tune-all { height: auto; }
    TuneScreen #tune-below { height: auto; max-height: 100%; }
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._about = Lines(id="tune-about", classes="panel")
        self._rows = LiveTable(
            COLUMNS, empty="the baseline is trained first", gap=2, id="tune-rows", classes="panel"
        )
        self._gains, self._paste = Lines(classes="panel"), Lines(classes="panel")
        self._chosen, self._below = Lines(classes="panel"), Lines(id="tune-below", classes="panel")
        self._all = Lines(id="tune-all", classes="panel")
        self._result = Horizontal(id="tune-result")
        self._on_best = False
        """Whether the cursor was put on the winner, once it was known."""

    @property
    def tuning(self) -> Tuning:
        """The search that is shown."""
        found = self.session.labs.tuning
        assert found is not None  # the screen opens only where there is one
        return found

    def compose(self) -> ComposeResult:
        self._about.border_title, self._rows.border_title = "Search", "Tried"
        self._gains.border_title, self._paste.border_title = "Gain of each setting", "To paste"
        self._chosen.border_title = self._below.border_title = "Candidate"
        self._all.border_title = "All candidates"
        yield self.head
        yield self._about
        yield self._rows
        with self._result:
            yield self._gains
            yield self._paste
            yield self._chosen
        yield self._below
        yield self._all
        yield self.foot

    def on_mount(self) -> None:
        self.set_focus(self._rows)  # now: the next key may be there already
        self._show()
        self.set_interval(SHOW_SECONDS, self._show)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def key_states(self) -> Collection[str]:
        tuning = self.tuning
        states = ["over" if tuning.over else "running"]
        states += ["better"] * (tuning.best is not None)
        return [*states, *(["failed"] * (tuning.over and not tuning.found))]

    def _show(self) -> None:
        if not self.is_attached:
            return
        tuning, document = self.tuning, self.tuning.document
        width = self.size.width or 80
        model = " ".join(tuning.config.flags()) or "default settings"
        self.say_head(
            [("Search  ", "bold accent"), (f"{spent_text(tuning)}  ", "text"), (model, "muted")],
            self.session,
        )  # fmt: skip
        self._about.show(list(summary_lines(tuning, max(20, width - 4))))
        best = document.get("best")
        label = str(best.get("label")) if isinstance(best, dict) else ""
        rows = rows_of(tuning.candidates, label)
        self._rows.show_columns(columns_for(rows))
        self._rows.show(rows)
        ended = tuning.found and tuning.best is not None
        labels = [row.get("label") for row in tuning.candidates]
        if ended and not self._on_best and label in labels:
            self._on_best = True
            self._rows.move_to(str(labels.index(label)))
        self._result.display = ended
        if ended:
            gains = list(gain_lines(document)) if width >= WIDE else []
            self._gains.display = bool(gains)
            most = min(MOST_LINES, max(FEWEST_LINES, self.size.height - ROWS_OF_THE_REST))
            self._chosen.display = width >= WIDEST
            panels = 1 + self._gains.display + self._chosen.display
            cells = max(20, width // panels - 4)
            self._gains.show(styled.first_rows(styled.hang_lines(gains, cells), most, cells))
            lines = [
                line for text in self._lines() for line in styled.wrap([(text, "text")], cells)
            ]
            if len(lines) > most:
                copy = key_of("copy", "TuneScreen")
                more = count_text(len(lines) - most + 1, "more line")
                lines[most - 1 :] = [[(f"{more}; ", "muted"), (copy, "accent"),
                                      (" copies all", "muted")]]  # fmt: skip
            self._paste.show(lines)
            self._show_chosen(cells)
        self._show_below(width, ended)
        self._show_all(width, ended)
        self.say_own_keys(self.session)

    def _show_below(self, width: int, result: bool) -> None:
        """Show the candidate under the cursor in the rows that a short list leaves empty."""
        candidates = self.tuning.candidates
        used = self._about.rows + len(candidates) + 2 * FRAME_ROWS  # with head and foot
        used += max(self._paste.rows, self._gains.rows * self._gains.display) + 2 if result else 0
        free = self.size.height - used - FRAME_ROWS
        shown = width < WIDEST or not result
        self._below.display = shown and bool(candidates) and free >= FEWEST_LINES
        if self._below.display:
            self._rows.styles.height = len(candidates) + FRAME_ROWS
            self._below.show(styled.hang_lines(self._detail(), max(20, width - 4)))
        elif shown:
            self._rows.styles.height = "1fr"

    def _show_all(self, width: int, result: bool) -> None:
        """Show every candidate in full in the rows that a large terminal still has."""
        above = self._about.rows + 2 + len(self.tuning.candidates) + FRAME_ROWS
        panels = (self._gains, self._paste, self._chosen) if result else ()
        shown = [panel.rows for panel in panels if panel.display]
        above += max(shown) + 2 if shown else 0
        free = self.size.height - AROUND_ROWS - above - 2
        lines = candidates_lines(self.tuning.candidates, width - 4, free) if width >= WIDEST else []
        self._all.display = bool(lines)
        self._all.show(lines)
        if lines:
            self._below.display = False
            self._rows.styles.height = len(self.tuning.candidates) + FRAME_ROWS

    def _detail(self) -> list[Line]:
        """Return all that is known of the candidate under the cursor."""
        candidates, key = self.tuning.candidates, self._rows.cursor_key
        known = key is not None and int(key) < len(candidates)
        return list(detail_lines(candidates[int(key)])) if known and key is not None else []

    def _show_chosen(self, cells: int) -> None:
        """Show the candidate under the cursor, and let the panels have the rows of a short list."""
        candidates = self.tuning.candidates
        lines = self._detail() if self._chosen.display else []
        self._chosen.show(styled.hang_lines(lines, cells))
        left = self.size.height - len(candidates) - FRAME_ROWS - self._about.rows - 4
        roomy = self._chosen.display and left > MOST_LINES + 2
        needed = max(self._gains.rows, self._paste.rows, self._chosen.rows if roomy else 0)
        high = max(needed, min(len(lines), MOST_LINES)) + 2
        high = min(high, left) if roomy else high
        self._rows.styles.height = "1fr"  # the rows that no text needs
        self._result.styles.height = high if roomy else "auto"
        self._result.styles.max_height = "100%" if roomy else MOST_LINES + 2
        for panel in (self._gains, self._paste, self._chosen):
            panel.styles.height = high

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        self._show()

    def _lines(self) -> list[str]:
        lines = self.tuning.document.get("lines")
        return [str(line) for line in lines] if isinstance(lines, list) else []

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        candidates = self.tuning.candidates
        if int(event.key) < len(candidates):
            self.app.push_screen(DetailDialog(list(detail_lines(candidates[int(event.key)]))))

    # ── keys ──

    def action_stop(self) -> None:
        """End the search. What was measured is kept."""
        self.tuning.stop()
        self._show()

    def action_take(self) -> None:
        """The Lab's switches become the best ones."""
        best = self.tuning.best
        if best is not None:
            self.session.labs.take(best)
            self.session.notices.say("the Lab has the settings of the best configuration")
            self.dismiss()

    def action_copy(self) -> None:
        """Copy the lines that make a training as fast."""
        if self.tuning.best is not None:
            copy_text(self.app, self.session.notices.say, "\n".join(self._lines()))

    def action_new(self) -> None:
        """Ask for another search."""
        if self.tuning.over:
            app, runs = program(self.app), self.session.labs
            self.dismiss()
            app.open("lab_tune_new", runs)

    def action_force(self) -> None:
        """Search although the GPU is in use."""
        tuning = self.tuning
        if tuning.over and not tuning.found:
            self.session.labs.tune(tuning.budget_seconds, tuning.free_batch, share_gpus=True)
            self._show()
