"""This screen lists the processes of a host and lets a user act on one.

It says who holds which GPU and since when it is idle, with the ranks of a job together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Input

from ...model.stalls import worst_rank
from ...text import styled
from ..shared.process_trends import living_uses
from ..shared.trainer_actions import ask_in
from ..shell.keymap import bindings_of
from ..widgets.filter import typing_keys
from ..widgets.full_screen import FullScreen
from ..widgets.program import program
from ..widgets.table import LiveTable
from ..widgets.text import Lines
from .details import ProcessDetails
from .idle import Idleness
from .rows import CHOICES, HEADING, SORTS, Choice, columns, job_gpus, listing

if TYPE_CHECKING:
    from ...store.view import HostView, ProcView
    from ..shell.session import Session

ASK_SECONDS = 5.0
DETAILS_FROM_ROWS = 24
"""A terminal with fewer rows has the list alone."""
FRAME_ROWS, MOST_ROWS = 3, 24
"""The frame and the heading of the list, and the rows that it keeps beside the details."""


class FilterInput(Input):
    """A line that filters while it is typed.

    One key keeps the filter, another drops it.
    """

    DEFAULT_CSS = (
        "FilterInput { height: 1; border: none; padding: 0 1; } FilterInput:focus { border: none; }"
    )
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("FilterInput")]

    def action_drop(self) -> None:
        """Close it and show everything again."""
        self.value = ""
        self.post_message(self.Submitted(self, ""))


class ProcessScreen(FullScreen):
    """The list of a host's processes, kept up to date while it is open.

    Sort, filter, tree and columns are remembered.
    """

    DEFAULT_CSS = """
    ProcessScreen #totals { height: auto; max-height: 4; padding: 0 2; }
    ProcessScreen #processes { height: 1fr; }
    ProcessScreen #notes { height: auto; max-height: 5; padding: 0 2; }
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._totals = Lines(id="totals")
        self._notes = Lines(id="notes")
        self._table = LiveTable(
            (), empty="no process uses a GPU here", gap=1, id="processes", classes="panel"
        )
        self._details = ProcessDetails(session)
        self._idleness = Idleness()
        self._job_gpus: frozenset[int] | None = None
        self._why_job = ""
        self._said = ""

    def compose(self) -> ComposeResult:
        self._table.border_title = "Processes"
        yield self.head
        yield self._totals
        yield self._table
        yield self._details
        yield self._notes
        yield self.foot

    async def on_mount(self) -> None:
        self.set_focus(self._table)  # now: a filter may have been asked for already
        await self.show_first(self.show_now)
        self.set_interval(0.5, self.show_now)

    def on_resize(self) -> None:
        self.call_after_refresh(self.show_now)

    def moved(self) -> None:
        self.show_now()

    @property
    def choice(self) -> Choice:
        """How to look, from what is remembered."""
        state = self.session.state
        hidden = frozenset(name for name in state.process_hidden.split(",") if name in CHOICES)
        return Choice(
            state.process_sort,
            state.mine,
            state.process_filter,
            state.process_tree,
            hidden,
            self._job_gpus,
        )

    def show_now(self) -> None:
        """Draw the picture of this moment."""
        if not self.is_attached:
            return
        host, choice = self.session.host, self.choice
        typing = isinstance(self.focused, FilterInput)
        self.foot.show_typing(typing_keys() if typing else ())
        self.say_own_keys(self.session)
        if host is None:
            self.say_head(
                [("Processes  ", "bold accent"), ("waiting for the first reading", "muted")]
            )
            return
        history, glyphs, room = self.session.history, self._table.tokens.glyphs, self.size.width - 4
        found = listing(
            host, history, choice, self._why_job, self._idleness, glyphs=glyphs, room=room
        )
        parts = [
            f"{found.shown} of {found.all}" if found.shown != found.all else f"{found.all}",
        ]
        parts += [f"sorted by {choice.sort}"]
        parts += ["mine only"] if choice.mine else []
        parts += ["my Slurm job's GPUs"] if choice.job_gpus is not None else []
        parts += ["tree"] if choice.tree else []
        parts += [f"filter: {choice.text}"] if choice.text else []
        self.say_head([("Processes  ", "bold accent"), (" · ".join(parts), "muted")], self.session)
        cells = max(30, self.size.width - 4)
        self._totals.show(styled.hang_lines([found.totals], cells) if found.totals else [])
        lines = styled.hang_lines(found.notes, cells)
        lines += styled.wrap([(self._said, "warn")], cells) if self._said else []
        self._notes.show(lines)
        self._table.show_columns(columns(choice, found.rows, room))
        self._table.show_empty("no process matches" if found.all else self._why_none())
        self._table.show(found.rows)
        self._show_details(host, len(found.rows))

    def _show_details(self, host: HostView, rows: int) -> None:
        """Give what the list does not need to the process under the cursor."""
        process = self.chosen()
        width, height = self.size.width, self.size.height
        around = 2 + self._totals.rows + self._notes.rows + bool(self.query(FilterInput))
        needed = min(rows, MOST_ROWS) + FRAME_ROWS
        if process is None or height < DETAILS_FROM_ROWS:
            self._details.display = False
            return
        devices = {
            d.id: self._idleness.of_device(d, self.session.history)
            for d in host.devices
            if d.gone is None
        }
        idle = self._idleness.of_process(
            process, living_uses(process), devices, self.session.history, host.wall_seconds
        )
        self._details.show(host, process, idle, width)
        self._details.fit_to(width, height - around - needed)
        self._details.draw(host, process, self.session.history)

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        """Show the details of the row that the cursor has come to."""
        event.stop()
        self.call_after_refresh(self.show_now)

    def _why_none(self) -> str:
        host = self.session.host
        if host is not None and host.nvml is not None:
            return f"no process with a probe, and the driver lists none: {host.nvml.text}"
        return "no process uses a GPU here"

    def chosen(self) -> ProcView | None:
        """Return the process under the cursor; of a heading the rank that keeps the others."""
        host, key = self.session.host, self._table.cursor_key
        if host is None or key is None:
            return None
        keys = [row.key for row in self._table.rows]
        below = keys[keys.index(key) :] if key in keys else []
        by_key = {process.key: process for process in host.processes if process.gone is None}
        if key.startswith(HEADING):
            ranks = [job.trainers for job in host.jobs if f"{HEADING}job {job.key}" == key]
            worst = worst_rank(ranks[0])[0] if ranks else None
            found = [one for one in by_key.values() if worst and one.id == worst.process]
            if found:
                return found[0]
        return next((by_key[one] for one in below if one in by_key), None)

    # ── keys ──

    def action_sort(self, by: int) -> None:
        """The next column to sort by."""
        state = self.session.state
        state.process_sort = SORTS[(SORTS.index(state.process_sort) + by) % len(SORTS)]
        self.show_now()

    def on_live_table_header_clicked(self, event: LiveTable.HeaderClicked) -> None:
        """Sort by that column."""
        event.stop()
        if event.column in SORTS:
            self.session.state.process_sort = event.column
            self.show_now()

    def action_mine(self) -> None:
        """Show only my processes, or all."""
        self.session.state.mine = not self.session.state.mine
        self.show_now()

    def action_tree(self) -> None:
        """Children below their parents, or sorted."""
        self.session.state.process_tree = not self.session.state.process_tree
        self.show_now()

    def action_column(self) -> None:
        program(self.app).open("columns", then=lambda _: self.show_now())

    async def action_filter(self) -> None:
        """Open the line to type into.

        This is awaited: the next key belongs to the line already.
        """
        if not self.query(FilterInput):
            text = "filter: user, command, pid, container, slurm 4711, gpu 3"
            line = FilterInput(
                self.session.state.process_filter, text, max_length=100, select_on_focus=False
            )
            await self.mount(line, before=self.foot)
            self.set_focus(line)
            self.show_now()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.session.state.process_filter = event.value
        self.show_now()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        event.input.remove()
        self.set_focus(self._table)
        self.show_now()

    def action_job(self) -> None:
        """Show only the GPUs of the Slurm job that gpuscope runs in, or all.

        On a far host that is the job of its agent.
        """
        if self._job_gpus is not None:
            self._job_gpus, self._said = None, ""
            self.show_now()
        elif self._work is None or self._work.done():
            self.begin(self._ask_job())

    async def _ask_job(self) -> None:
        from ...store.pending_requests import SourceError

        if self.session.hosts is None:
            self._said = "my Slurm job: a recording does not show which GPUs belong to it"
            self.show_now()
            return
        try:
            answer = await self.session.hosts.source.request("environment", {}, ASK_SECONDS)
            variables = answer.value.get("environment")
            self._job_gpus, self._why_job = job_gpus(
                variables if isinstance(variables, dict) else {}
            )
            self._said = "" if self._job_gpus is not None else f"my Slurm job: {self._why_job}"
        except SourceError as error:
            self._said = f"my Slurm job: {error.what}"
        self.show_now()

    def action_signal(self) -> None:
        """Ask which signal to send to the process under the cursor."""
        process = self.chosen()
        if self.refused(self.session, "signal"):
            return
        if (self._table.cursor_key or "").startswith(HEADING):
            self.session.notices.say(
                "Signal: to one process at a time; put the cursor on a rank", "warn"
            )
            self.show_now()
        elif process is not None:
            program(self.app).open("signal", process)
            self.show_now()

    def action_act(self, name: str) -> None:
        """Ask the trainer under the cursor, or of a job the rank that keeps the others."""
        host, process = self.session.host, self.chosen()
        if host is None or process is None or self.refused(self.session, f"act('{name}')"):
            return
        ask_in(program(self.app), name, host, process)
        self.show_now()

    def action_attach(self) -> None:
        """Choose how to put a probe into the process under the cursor."""
        process = self.chosen()
        if process is not None and not self.refused(self.session, "attach"):
            program(self.app).open("attach", process.definition.pid)

    def action_environment(self) -> None:
        """What the process was started with, as far as an allow-list goes."""
        process = self.chosen()
        if process is not None and not self.refused(self.session, "environment"):
            program(self.app).open("environment", process)

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        process = self.chosen()
        if process is not None:
            program(self.app).open("process", process.key)
