"""These dialogs ask what the Lab has to know.

They ask for a switch's value, about a device that is in use, and how often to measure in turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Input

from ...lab.config import ConfigError, LabConfig
from ...lab.toggles import Toggle, Value
from ...text.styled import Line
from ...text.units import bytes_text
from ..cells import fit
from ..runs.choices import choices, does_nothing
from ..runs.runs import LabRuns
from ..widgets.program import program
from ..widgets.table import Column, LiveTable, TableRow
from ..widgets.text_dialog import TextDialog
from .text import change_text

REPEATS = (2, 3, 5, 7, 10, 15, 20)
STEPS = (10, 20, 50, 100, 200, 500, 1000)
DEFAULT_REPEATS, DEFAULT_STEPS = 5, 50
OPTIONS_SHOWN = 9


class ValueDialog(TextDialog):
    """Choose a value, or type one that no key walks through."""

    DEFAULT_CSS = """
    ValueDialog .dialog { width: 72; }
    ValueDialog LiveTable { margin: 1 0 0 0; }
    ValueDialog Input { height: 1; border: none; margin: 1 0 0 0; padding: 0 1; background: $panel; }
    ValueDialog Input:focus { border: none; }
    """  # noqa: E501

    def __init__(self, runs: LabRuns, toggle: Toggle) -> None:
        super().__init__()
        self.runs = runs
        self.toggle = toggle
        self._values = choices(toggle, getattr(runs.config, toggle.name))
        self._table = LiveTable((Column("value", "", 20, flex=1),), header=False)
        self._input: Input | None = None
        self._problem = ""

    def compose(self) -> ComposeResult:
        typed = self.toggle.factory or not (self.toggle.choices or self.toggle.yes_no)
        with VerticalScroll(classes="dialog") as body:
            body.border_title = self.toggle.name.replace("_", " ")
            yield self.lines
            self._table.styles.height = min(len(self._values), OPTIONS_SHOWN)
            yield self._table
            if typed:
                self._input = Input(placeholder=f"or type: {self._takes()}", max_length=200)
                yield self._input

    def key_states(self) -> Collection[str]:
        return ("typed",) if self._input is not None else ()

    def _takes(self) -> str:
        return "MODULE:FACTORY, your own model" if self.toggle.factory else self.toggle.takes

    def on_mount(self) -> None:
        now = getattr(self.runs.config, self.toggle.name)
        rows = []
        for number, value in enumerate(self._values):
            default = (
                "  default"
                if value == self.toggle.default and type(value) is type(self.toggle.default)
                else ""
            )
            rows.append(
                TableRow(
                    str(number), {"value": [(self.toggle.text(value), "text"), (default, "faint")]}
                )
            )
        self._table.show(rows)
        self._table.move_to(
            str(next(i for i, v in enumerate(self._values) if v == now and type(v) is type(now)))
        )
        self.set_focus(self._table)  # now: the next key may be there already

    def text(self) -> Iterable[Line]:
        yield [(self.toggle.help, "text")]
        why = does_nothing(self.runs.config, self.runs.device).get(self.toggle.name, "")
        if why:
            yield [("here ", "warn"), (why, "text")]
        elif self.toggle.on_cpu:
            yield [("on a CPU: ", "muted"), (self.toggle.on_cpu, "muted")]
        if self._problem:
            yield [(self._problem, "bad")]

    def action_take(self) -> None:
        """What is typed, or the value under the cursor of the list."""
        if self._input is not None and self._input.has_focus:
            self._take(self._input.value.strip())
        elif self._table.cursor_key is not None:
            self._take(self._values[int(self._table.cursor_key)])

    def action_other(self) -> None:
        """Go from the list to typing, and back."""
        if self._input is not None:
            self.set_focus(self._table if self._input.has_focus else self._input)

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        self._take(self._values[int(event.key)])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._take(event.value.strip())

    def _take(self, value: Value) -> None:
        try:
            self.runs.put(self.toggle.name, value)
        except ConfigError as error:
            self._problem = str(error)
            self.redraw()
        else:
            self.dismiss()


class HeldDialog(TextDialog):
    """The question whether to train on a device that is in use.

    It says who uses it, and how much.
    """

    def __init__(self, runs: LabRuns) -> None:
        super().__init__("GPU in use")
        self.runs = runs

    def text(self) -> Iterable[Line]:
        many = len({one.index for one in self.runs.held})
        what = (
            "a GPU of this run is in use." if many == 1 else f"{many} GPUs of this run are in use."
        )
        yield [("Not started  ", "warn"), (what, "text")]
        yield []
        yield [
            (fit("GPU", 5), "muted"),
            (f"{fit('PID', 8, 'right')}  {fit('USER', 12)}", "muted"),
            (f"{fit('MEMORY', 10, 'right')}  COMMAND", "muted"),
        ]
        for one in self.runs.held:
            held = bytes_text(one.used_bytes) if one.used_bytes is not None else "unknown"
            pid = str(one.pid) if one.pid else "–"
            head = (
                f"{fit(str(one.index), 5)}{fit(pid, 8, 'right')}  "
                f"{fit(one.user, 12)}{fit(held, 10, 'right')}  "
            )
            yield [(head, "text"), (one.command, "muted")]
        yield []
        price = (
            "both jobs get slower, the other job distorts the measurements, and may run out of "
            "memory."
        )
        yield [("Consequence  ", "muted"), (price, "text")]
        yield [("Another GPU  ", "muted"), ("CUDA_VISIBLE_DEVICES=N gpuscope --lab", "accent")]

    def action_force(self) -> None:
        """Start beside it."""
        self.runs.start(force=True)
        self.dismiss()


class QuitDialog(TextDialog):
    """The question whether to quit while a run or a search is in progress."""

    WAIT_SECONDS = 2.5
    """How long to wait for the end of the run; a later end is recorded without the viewer."""

    def __init__(self, runs: LabRuns) -> None:
        super().__init__("Quit")
        self.runs = runs
        self._leaving: asyncio.Task[None] | None = None

    def on_mount(self) -> None:
        self.set_interval(0.5, self.redraw)

    def text(self) -> Iterable[Line]:
        run = self.runs.current
        name = run.preset if run is not None else self.runs.config.model
        if self._leaving is not None:
            name = "the search" if self.runs.searching else f"{name} and writing the run down"
            yield [(f"Stopping {name} …", "muted")]
        elif self.runs.searching:
            yield [("Stop the search for the fastest settings?", "title")]
            yield [("What it has measured is kept: the same search continues from there.", "muted")]
        elif run is not None and run.step:
            yield [(f"Stop {name} at step {run.step:,} and keep it as a run?", "title")]
        else:
            yield [(f"Stop {name}? It has made no step yet: nothing is kept.", "title")]

    def action_leave(self) -> None:
        """Stop the run and quit."""
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._stop_and_leave())
            self.redraw()

    async def _stop_and_leave(self) -> None:
        await self.runs.end(self.WAIT_SECONDS)
        program(self.app).leave()


class RepeatDialog(TextDialog):
    """The question how often to measure A and B in turns, and how many steps each time."""

    def __init__(self, runs: LabRuns, a: LabConfig, b: LabConfig) -> None:
        super().__init__("Repeat A and B interleaved")
        self.runs = runs
        self.a, self.b = replace(a, steps=None), replace(b, steps=None)
        self.repeats, self.steps = DEFAULT_REPEATS, DEFAULT_STEPS

    def text(self) -> Iterable[Line]:
        total = 2 * self.repeats
        turns = " ".join("A B" if n % 2 == 0 else "B A" for n in range(min(self.repeats, 4)))
        yield [
            ("A        ", "bold series1"),
            (" ".join(self.a.flags()) or "all settings at their defaults", "text"),
        ]
        yield [
            ("B        ", "bold series4"),
            (" ".join(self.b.flags()) or "all settings at their defaults", "text"),
        ]
        yield [
            ("differ   ", "muted"),
            (change_text(self.a, self.b) or "no setting: any difference is noise", "text"),
        ]
        yield []
        yield [("repeats  ", "muted"), (f"{self.repeats}", "title")]
        yield [("steps    ", "muted"), (f"{self.steps}", "title"), (" in each run", "muted")]
        order = turns + (" …" if self.repeats > 4 else "")
        does = (
            f"{total} runs, {order}, each in a fresh process, so slow drift affects A and B "
            "equally."
        )
        yield [("does     ", "muted"), (does, "text")]
        if self.runs.busy:
            yield [("         ", "muted"), ("The current run is stopped first.", "warn")]

    def action_repeats(self, by: int) -> None:
        """More or fewer."""
        self.repeats = REPEATS[max(0, min(len(REPEATS) - 1, REPEATS.index(self.repeats) + by))]
        self.redraw()

    def action_steps(self, by: int) -> None:
        """Longer or shorter runs."""
        self.steps = STEPS[max(0, min(len(STEPS) - 1, STEPS.index(self.steps) + by))]
        self.redraw()

    def action_begin(self) -> None:
        self.runs.measure(self.a, self.b, self.repeats, self.steps)
        self.dismiss()
