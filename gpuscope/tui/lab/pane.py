"""This tab has the demo trainer, and two runs of it side by side.

Then come its switches, its loss and every run there was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from ...store.view import HostView
from ...text import styled
from ...text.styled import Line
from ..shell.keymap import key_of
from ..shell.session import Session
from ..widgets.pane import Pane, set_title
from ..widgets.program import program
from ..widgets.table import GUTTER, LiveTable, TableRow
from ..widgets.text import Lines
from .compare import comparison_lines
from .first_run import FirstRun
from .pair import ComparedRuns
from .panel_heights import VIEWS, heights_of, heights_spread, least, panels_that_fit
from .rows import (
    BARS_CELLS,
    NOW,
    columns,
    gather_repeats,
    live_row,
    place_in_pair,
    row_of,
    with_bars,
)
from .run_charts import has_pace
from .run_facts import fact_lines, facts_of
from .run_panels import SPREAD_CELLS, SPREAD_ROWS, RunPanels, cells_beside_curves
from .switches import Switches
from .text import notes_of, title_of_run

if TYPE_CHECKING:
    from ...lab.ledger import Entry
    from ..runs.runs import LabRuns
    from .rows import ShownRun

WIDE, TWO_COLUMNS = 100, 64
LEFT_WIDE, LEFT_NARROW = 42, 34
AROUND_ROWS = 3
"""Status line, tabs and footer."""
NOTE_ROWS, NOTE_SHARE = 3, 8
"""The rows for notes: the fewest, and which part of the terminal's they are at most."""
AGE_SECONDS = 20.0
"""How many seconds the ages of runs may lag."""


BASES = "mean samples/s, median step time"
"""What samples per second and the time of a step are, of the steps that are named with it."""


class LabPane(Pane):
    """The tab with the switches at the left, and the runs at the right.

    At the right stand the comparison, the loss and the runs, as many as there is room for.
    """

    DEFAULT_CSS = """
    LabPane #lab-body { height: 1fr; }
    LabPane #lab-left { width: 42; }
    LabPane.narrow #lab-left { width: 34; }
    LabPane.single #lab-left { width: 1fr; }
    LabPane #switches { height: 1fr; }
    LabPane #lab-notes { padding: 0 1; }
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._switches = Switches(self.runs.config, id="switches", classes="panel")
        self._now_left = Lines(id="now-left", classes="panel")
        self._table = LiveTable(
            columns(100, ()), empty="no run yet", gap=1, id="runs", classes="panel"
        )
        self._notes = Lines(id="lab-notes")
        self._right = RunPanels(self._table)
        self._pair, self._first = ComparedRuns(), FirstRun(session)
        self._shown: list[ShownRun] = []
        self._rows: list[TableRow] = []
        self._entries: Sequence[Entry] = ()
        self._made: tuple[object, ...] = ()
        self._view = ""
        self._side = "left"
        self._terminal = (120, 40)
        self._charted: tuple[object, ...] = (None, None)

    @property
    def runs(self) -> LabRuns:
        """The runs of this session: they outlive a visit to this tab."""
        return self.session.labs

    def compose(self) -> ComposeResult:
        self._switches.border_title, self._table.border_title = "Demo trainer", "Runs"
        with Horizontal(id="lab-body"):
            with Vertical(id="lab-left"):
                yield self._switches
                yield self._now_left
            yield self._right
        yield self._notes

    # ── numbers ──

    def show(self, host: HostView | None) -> None:
        if not self._right.is_attached:
            return
        runs = self.runs
        runs.see()
        running = (
            runs.current.config if runs.current and runs.state in ("starting", "running") else None
        )
        self._switches.show(runs.config, running, runs.device)
        width, height = self._terminal
        most = max(NOTE_ROWS, height // NOTE_SHARE)
        notes = notes_of(runs, self._switches.current, max(20, width - 2), NOTE_ROWS, most)
        self._notes.show(notes)
        self._pair.follow(
            runs.book.entries or (), runs.current.entry if runs.current else None, runs
        )
        self._predict(host)
        self._show_runs()
        self._share_out(len(notes))
        chosen = (self._pair.a, self._pair.b)
        # at once: another pair is another picture
        if self._right.charts.loss is not None and chosen != self._charted:
            self.show_charts(host)

    def _predict(self, host: HostView | None) -> None:
        """Predict what the run should have needed, to compare it with what it did need.

        A child computes it once the run has ended: while it trains nothing else takes its
        cores. What was asked for in the Memory tab is known before.
        """
        run, runs, predictions = self.runs.current, self.runs, self.session.predictions
        if run is None or run.predicted is not None or run.started is None:
            return
        run.predicted = predictions.peak_of(run.config)
        rests = not runs.busy and (runs.repeats is None or runs.repeats.over)
        if (
            run.predicted is None
            and run.device == "cuda"
            and run.ended is not None
            and rests
            and host is not None
        ):
            from ..memory.what_if import card_of

            predictions.want(run.config, card_of(host, None), fixes=False)

    def _show_runs(self) -> None:
        runs, pair, current = self.runs, self._pair, self.runs.current
        entries = runs.book.entries or ()
        a, b = (one.id if one is not None and pair.complete else None for one in (pair.a, pair.b))
        against = pair.a.config if pair.a is not None else None
        kinds = {entry.device for entry in entries} | (
            {current.device or None} if current else set()
        )
        many = len(kinds - {None}) > 1
        made = (a, b, many, int(time.monotonic() / AGE_SECONDS))
        # hundreds of rows, five times a second
        if entries is not self._entries or made != self._made:
            self._shown = gather_repeats(entries)
            shown = sorted(self._shown, key=lambda one: place_in_pair(one, a, b))
            self._rows = [row_of(one, a, b, against, many) for one in shown]
            self._entries, self._made = entries, made
        live = current is not None and current.entry is None and runs.busy
        live = live or runs.stopped_early
        rows = (
            [live_row(current, runs.state, against, many)] if live and current is not None else []
        )
        rows += self._rows
        if needle := self.session.state.filter.casefold():
            rows = [row for row in rows if needle in _text_of(row).casefold()]
        if runs.book.entries is None:
            self._table.show_empty("reading the ledger")
        elif entries and not rows:
            self._table.show_empty(f"nothing contains {self.session.state.filter!r}")
        elif not rows:
            room = self._inner() - GUTTER, self._terminal[1] - 9
            chosen, glyphs = self._switches.current.name, self._table.tokens.glyphs
            self._table.show_empty(self._first.lines(self.session.host, chosen, glyphs, *room))
        inner = self._inner()
        self._table.show_columns(columns(inner, rows))
        self._table.show(with_bars(rows) if inner >= BARS_CELLS else rows)
        repeated = any(len(one.entries) > 1 for one in self._shown)
        basis = f"{BASES}{' · ×N: mean of N runs, ± 95 %' if repeated else ''}"
        self._table.subtitle([(basis, "faint")] if rows else ())

    def _inner(self) -> int:
        """Cells inside a panel at the right."""
        width = self._terminal[0]
        left = (LEFT_WIDE if width >= WIDE else LEFT_NARROW) if width >= TWO_COLUMNS else 0
        return width - left - 4

    def _show_now(self, panel: Lines, columns: int, width: int, most: int) -> int:
        """Return the run in progress, or the last one; the lines it takes."""
        title, token = title_of_run(self.runs)
        set_title(panel, title)
        run = self.runs.current
        lines: list[Line] = []
        if run is not None and (run.started is not None or run.last is not None):
            lines += fact_lines(facts_of(run), width, columns)
            rates = run.rates
            basis = f"{rates.over}: {BASES}" if rates.step_seconds else rates.over
            panel.subtitle([(basis, "faint")] if run.last else ())
        for number, text in enumerate(self.runs.failure):
            lines += styled.wrap([(text, token if number == 0 else "text")], width)
        if not lines and run is not None:
            lines = [[("loading torch", "muted")]] if self.runs.busy else []
        panel.show(lines[:most])
        return len(lines[:most])

    # ── room ──

    def _share_out(self, notes: int) -> None:
        """Give each panel its rows.

        On a wide terminal the run stands below the switches, on a narrow one above the
        comparison.
        """
        if self._switches.parent is None:
            return  # left while it was still being put together
        width, height = self._terminal
        rows = height - AROUND_ROWS - notes
        frame = 0 if height < 20 else 2
        wide, two = width >= WIDE, width >= TWO_COLUMNS
        self._right.display = two or self._side == "right"
        self._switches.parent.display = two or self._side == "left"
        inner = self._inner()
        if wide:
            taken = self._show_now(self._now_left, 2, LEFT_WIDE - 4, rows // 2) + frame
        else:
            taken = self._show_now(self._right.now, 2, inner, rows // 2) + frame
            if not (self.runs.busy or self.runs.failure):  # ended: its figures stand in the table
                taken = 0
        taken = 0 if taken <= frame else taken
        now_right = self._right.now
        self._now_left.display, now_right.display = wide and taken > 0, not wide and taken > 0
        self._now_left.styles.height = now_right.styles.height = max(taken, 1)
        room = rows - (0 if wide else taken)
        pace, runs = has_pace(self.runs.current if self.runs.busy else None), len(self._table.rows)
        if self._spread:
            beside = cells_beside_curves(width - LEFT_WIDE)
            natural = self._show_comparison(beside, room // 2) + frame
            self._right.place(heights_spread(natural, room, runs, pace), True)
            self._show_chosen()
            return
        shown = self._fitting(room)
        natural = 0
        if "ab" in shown:
            others = sum(least(room)[name] for name in shown if name != "ab")
            natural = self._show_comparison(inner, max(3, room - others - frame)) + frame
        self._right.place(heights_of(shown, natural, room, runs, pace), False)

    @property
    def _spread(self) -> bool:
        """Whether there is room for all panels, and anything to show in them."""
        width, height = self._terminal
        some = bool(self.runs.book.entries) or self.runs.current is not None
        return some and width >= SPREAD_CELLS and height >= SPREAD_ROWS

    def _show_chosen(self) -> None:
        """Show the run under the cursor of the list in full."""
        key = self._table.cursor_key
        shown = next((one for one in self._shown if one.key == key), None)
        self._right.show_chosen(shown, cells_beside_curves(self._terminal[0] - LEFT_WIDE))

    def _fitting(self, room: int) -> list[str]:
        """Return the panels there is room for, the chosen one always among them."""
        pair, entries = self._pair.complete, bool(self.runs.book.entries)
        first = self._view or ("ab" if pair else "loss" if self.runs.current else "runs")
        some = entries or self.runs.current is not None
        return panels_that_fit(room, first, {"ab": entries, "loss": some, "runs": True}, pair)

    def _show_comparison(self, width: int, rows: int) -> int:
        """Return a against B; the lines it takes."""
        pair = self._pair
        found = pair.comparison()
        ab = self._right.ab
        set_title(ab, pair.title())
        if found is None:
            keys = f"{key_of('lab_mark_a')} and {key_of('lab_mark_b')}"
            by_hand: Line = [(f" {keys}", "accent"), (" mark two by hand.", "muted")]
            lacking = pair.problem or pair.lacking
            lines = styled.wrap(
                [(lacking, "muted"), *(by_hand if len(self._rows) > 1 else ())], width
            )
        else:
            lines = comparison_lines(found, width, rows, ab.tokens.glyphs)
        ab.show(lines)
        return min(len(lines), rows)

    # ── charts ──

    def show_charts(self, host: HostView | None) -> None:
        if not self._right.is_mounted:
            return
        if self._right.make_charts():
            self.show(host)
        self._charted = (self._pair.a, self._pair.b)
        self._right.charts.draw(self._pair, self.runs.current if self.runs.busy else None)

    # ── room and keys ──

    def fit_to(self, width: int, height: int) -> None:
        self._terminal = (width, height)
        self.set_class(width < WIDE, "narrow")
        self.set_class(width < TWO_COLUMNS, "single")

    def take_focus(self) -> None:
        self.runs.book.open()
        self.focus_on(self._switches)

    def _redraw(self) -> None:
        self.show(self.session.host)
        if self.session.host is not None:
            self.show_charts(self.session.host)

    def _warn(self, text: str) -> None:
        self.session.notices.say(text, "warn")
        self.session._changed()

    def do_next_pane(self) -> None:
        """Go from the switches to the runs, and back."""
        to_runs = not self._table.has_focus
        if to_runs and not self._table.display:
            self._view = "runs"
        if self._terminal[0] < TWO_COLUMNS:
            self._side = "right" if self._side == "left" else "left"
            to_runs = self._side == "right"
        self._redraw()
        self.focus_on(self._table if to_runs else self._switches)

    def do_move(self, by: int) -> None:
        """Go to the next switch, or to the one before."""
        self._switches.move(by)
        self._redraw()

    def do_open(self) -> None:
        """Any value of the switch under the cursor, by typing it."""
        program(self.app).open("lab_value", self.runs, self._switches.current)

    def do_lab_turn(self, by: int) -> None:
        """Change the switch under the cursor, or change it back."""
        self.runs.turn(self._switches.current, by)
        self._redraw()

    def do_lab_default(self) -> None:
        """Set the switch as it is by default."""
        self.runs.put(self._switches.current.name, self._switches.current.default)
        self._redraw()

    def do_lab_nearest(self) -> None:
        """Take the nearest combination that works."""
        nearest = self.runs.nearest
        if nearest is not None:
            self.runs.take(nearest)
        else:
            self._warn(
                "these settings work together"
                if not self.runs.verdicts()
                else "no similar combination works"
            )
        self._redraw()

    def do_lab_run(self) -> None:
        """Start the trainer, or restart it with these switches.

        Where somebody else uses the device, it asks first.
        """
        outcome = self.runs.start()
        if outcome == "held":
            program(self.app).open("lab_held", self.runs)
        elif outcome == "refused":
            key = (
                f"  {key_of('lab_nearest')}: the nearest that works"
                if self.runs.nearest is not None
                else ""
            )
            refusal = self.runs.refusal
            self._warn(f"not started: {refusal.what if refusal else ''}{key}")
        elif outcome == "searching":
            self._warn(f"a search uses the GPU: {key_of('lab_stop')} stops it")
        self._redraw()

    def do_lab_stop(self) -> None:
        """Stop the trainer after its step; one that is stopping already ends at once."""
        if self.runs.busy and self.runs.current is not None and self.runs.current.last is None:
            self._warn("stopped before its first step: nothing was measured")
        self.runs.stop_or_kill()
        self._redraw()

    def do_lab_repeat(self) -> None:
        """Choose how often, then measure A and B in turns."""
        a, b = self._pair.configs(self.runs)
        if a is None or b is None:
            self._warn("first mark a run as A; B is another run, or the current settings")
        elif self.runs.repeats is not None and not self.runs.repeats.over:
            self._warn(f"repeats are running: {key_of('lab_stop')} stops it")
        else:
            program(self.app).open("lab_repeat", self.runs, a, b)

    def do_lab_tune(self) -> None:
        """The search for the fastest settings, or the question for a new one."""
        if self.runs.tuning is not None:
            program(self.app).open("lab_tune")
        elif self.runs.refusal is not None:
            self._warn(f"the settings cannot be trained: {self.runs.refusal.what}")
        else:
            program(self.app).open("lab_tune_new", self.runs)

    def do_lab_pitfalls(self) -> None:
        """The list of demonstration scripts."""
        program(self.app).open("lab_pitfalls", self.runs)

    def do_lab_recording(self) -> None:
        """A recording becomes B."""
        program(self.app).open("lab_recording", self.runs, self._take_recording)

    def _take_recording(self, entry: Entry) -> None:
        self._pair.follow(self.runs.book.entries or (), None)
        self._pair.mark("b", entry.id)
        self._redraw()

    def do_lab_view(self) -> None:
        """The next panel comes first, where there is no room for all."""
        if self._spread:
            self._warn("comparison, curves and runs are all on the screen")
            return
        now = self._view or self._fitting(0)[0]
        self._view = VIEWS[(VIEWS.index(now) + 1) % len(VIEWS)]
        self._redraw()

    def do_lab_mark(self, side: str) -> None:
        """Make the run under the cursor A or B."""
        chosen = next(
            (shown.entry for shown in self._shown if shown.key == self._table.cursor_key), None
        )
        if chosen is None:
            here = self._table.cursor_key == NOW
            self._warn("only a finished run can be compared" if here else "there is no run yet")
        else:
            self._pair.mark(side, chosen.id)
        self._redraw()

    def on_switches_turned(self, event: Switches.Turned) -> None:
        event.stop()
        self.runs.turn(event.toggle, event.by)
        self._redraw()

    def on_switches_moved(self, event: Switches.Moved) -> None:
        event.stop()
        self._redraw()

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        if self._spread:
            self._show_chosen()

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        shown = next((one for one in self._shown if one.key == event.key), None)
        run = self.runs.current if event.key == NOW else None
        if shown is not None or run is not None:
            program(self.app).open("lab_run", self.runs, list(shown.entries) if shown else [], run)


def _text_of(row: TableRow) -> str:
    return " ".join(
        cell
        if isinstance(cell, str)
        else "".join(text for text, _ in cell)
        if isinstance(cell, (list, tuple))
        else ""
        for cell in row.cells.values()
    )
