"""This dialog lists the pitfalls, and starts them.

Each is a training with one common mistake, beside the same one cured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from ...text import styled
from ...text.styled import Line
from ..runs.demo import Demo, state_text
from ..runs.ledger_view import in_own_thread
from ..runs.runs import LabRuns
from ..shell.keymap import key_of
from ..widgets.dialog import Dialog
from ..widgets.table import Column, LiveTable, TableRow
from ..widgets.text import Lines
from .text import occupant_text

if TYPE_CHECKING:
    from ...lab.pitfalls import PitfallScripts
    from ...model.occupants import Occupant

COLUMNS = (
    Column("title", "WHAT IS WRONG", 30, flex=3, most=64),
    Column("needs", "RUNS ON", 9),
    Column("shows", "SHOWS IN", 8, priority=2),
)
SHOWN = {"error": "an error", "warning": "warnings", "figures": "numbers"}


def load_pitfalls() -> list[PitfallScripts]:
    """Return all of the index.

    Raises :class:`~gpuscope.checked_rows.TableError`.
    """
    from ...lab.pitfalls import load

    return load()


def command_of(pitfall: PitfallScripts, cured: bool) -> list[str]:
    """Return the command that is started, which is our own verb.

    It finds a Python with torch and puts the probe into it.
    """
    return [
        sys.executable,
        "-m",
        "gpuscope",
        "lab",
        "pitfall",
        pitfall.id,
        *(["--cured"] if cured else []),
    ]


class PitfallsDialog(Dialog):
    """The list of pitfalls, each to be started with its mistake or without.

    A script goes on when the dialog is closed.
    """

    DEFAULT_CSS = """
    PitfallsDialog .dialog { width: 110; height: 92%; }
    PitfallsDialog #pitfalls { height: 1fr; }
    PitfallsDialog #pitfall-about { height: 6; margin: 1 0 0 0; }
    PitfallsDialog #pitfall-output { height: 30%; border-top: solid $gs-border; border-title-color: $gs-title; }
    """  # noqa: E501

    def __init__(self, runs: LabRuns, first: str = "") -> None:
        """Begin with the cursor on the script ``first``, or on the one that proves that finding."""
        super().__init__()
        self.runs = runs
        self._first = first
        self._pitfalls: Sequence[PitfallScripts] = ()
        self._problem = ""
        self._held: list[Occupant] = []
        self._asked: tuple[PitfallScripts, bool] | None = None
        """What was not started because somebody else uses its device."""
        self._table = LiveTable(COLUMNS, empty="reading the list", gap=2, id="pitfalls")
        self._about = Lines(id="pitfall-about")
        self._output = Lines(id="pitfall-output")

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = "Pitfalls"
            yield self._table
            yield self._about
            yield self._output

    async def on_mount(self) -> None:  # type: ignore[override]  # it waits for the list
        self.set_focus(self._table)  # now: the next key may be there already
        self.set_interval(0.5, self._show)
        from ...checked_rows import TableError

        try:
            self._pitfalls = await in_own_thread(load_pitfalls)
        except TableError as error:
            self._problem = str(error)
            self._table.show_empty("the scripts are not installed")
        self._show()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    # ── drawing ──

    def _gpus(self) -> int | None:
        """Return how many GPUs there are; None while that is not known."""
        return self.runs.gpus

    def _why_not(self, pitfall: PitfallScripts, cured: bool) -> str:
        needs, there = pitfall.needs_gpus(cured), self._gpus()
        return (
            f"needs {pitfall.needs(cured)}, and {there} are available"
            if there is not None and needs > there
            else ""
        )

    def _show(self) -> None:
        if not self.is_open:
            return
        first = sorted(self._pitfalls, key=lambda one: bool(self._why_not(one, False)))
        self._table.show([self._row(pitfall) for pitfall in first])
        if self._pitfalls and self._first:
            from ...lab.pitfalls import find

            chosen = find(self._first, self._pitfalls)
            self._table.move_to(chosen.id if chosen is not None else self._first)
            self._first = ""
        cells = max(30, self._about.size.width or 70)
        about = styled.hang_lines(self._text(), cells)
        self._about.show(about[: max(3, self._about.size.height)])
        demo = self.runs.demo
        self._output.display = demo is not None
        if demo is not None:
            rows = max(1, self._output.size.height)
            lines: list[Line] = [[(text, "muted")] for text in list(demo.output)[-rows:]]
            if demo.problem:
                lines = [[(demo.problem, "bad")]]
            self._output.show(lines or [[("no output yet", "faint")]])
            title = f" {state_text(demo)} "
            if str(self._output.border_title or "") != title:
                self._output.border_title = title

    def _row(self, pitfall: PitfallScripts) -> TableRow:
        off = bool(self._why_not(pitfall, False) and self._why_not(pitfall, True))
        demo = self.runs.demo
        here = demo is not None and not demo.over and demo.name == pitfall.id
        token = "faint" if off else "ok" if here else "text"
        processes = pitfall.processes(False)
        needs = pitfall.needs() + (f" ×{processes}" if processes > 1 else "")
        return TableRow(
            pitfall.id,
            {
                "title": [("● " if here else "", "ok"), (pitfall.title, token)],
                "needs": [(needs, "faint" if off else "muted")],
                "shows": [
                    (SHOWN.get(pitfall.shows_as, pitfall.shows_as), "faint" if off else "muted")
                ],
            },
        )

    def _text(self) -> Iterable[Line]:
        if self._problem:
            yield [("▲ ", "bad"), (self._problem, "text")]
            return
        chosen = self._chosen()
        if chosen is None:
            return
        if self._held and self._asked is not None:
            yield [
                ("▲ not started: ", "warn"),
                (occupant_text(self._held[0]), "text"),
                (f", and {len(self._held) - 1} more" if len(self._held) > 1 else "", "text"),
            ]
            yield [
                ("         ", "text"),
                (key_of("force", "PitfallsDialog"), "accent"),
                (": run although the GPU is in use", "muted"),
            ]
        yield [(chosen.title, "title")]
        why = self._why_not(chosen, False)
        if why:
            yield [("not here ", "warn"), (why, "text")]
        yield [("fix      ", "muted"), (chosen.cure, "text")]
        how = {"error": "it ends with: ", "warning": "it says: "}.get(chosen.shows_as, "look at: ")
        yield [("shows    ", "muted"), (how + chosen.expect, "text")]
        if chosen.note:
            yield [("note     ", "muted"), (chosen.note, "muted")]

    def _chosen(self) -> PitfallScripts | None:
        return next(
            (pitfall for pitfall in self._pitfalls if pitfall.id == self._table.cursor_key), None
        )

    # ── keys ──

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        self._held = []
        self._show()

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        self.action_start(False)

    def action_start(self, cured: bool) -> None:
        """Start the script under the cursor; another one is asked to end first."""
        chosen = self._chosen()
        if chosen is None or self._why_not(chosen, cured):
            return
        self._held = self.runs.on_first(chosen.needs_gpus(cured))
        self._asked = (chosen, cured)
        if not self._held:
            self._begin()
        self._show()

    def action_force(self) -> None:
        """Start it although the GPU is in use."""
        if self._held:
            self._held = []
            self._begin()

    def _begin(self) -> None:
        assert self._asked is not None
        pitfall, cured = self._asked
        self._asked = None
        self.runs.show_demo(Demo(pitfall.id, cured, command_of(pitfall, cured), self._show))
        self._show()

    def action_stop(self) -> None:
        if self.runs.demo is not None:
            self.runs.demo.stop()
        self._show()
