"""This screen looks at a job closely, with its ranks side by side.

It says who is behind, who works longest, and who runs out of memory first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ...model.step_time import split_of
from ...text import styled
from ...text.styled import Line
from ..overview.job_rows import SPLIT_TOKENS
from ..shell.keymap import bindings_of, keys_of
from ..widgets.full_screen import Room, absent, footer_keys
from ..widgets.pane import set_title
from ..widgets.program import program
from ..widgets.table import LiveTable
from ..widgets.text import Lines
from .job_text import head_of, standing_out
from .rank_rows import COLUMNS, NOTHING, OPTIONAL, OTHERS, rank_rows
from .trainer_actions import open_act

if TYPE_CHECKING:
    from ...store.view import TrainerView
    from ..shell.session import Session


class JobScreen(Room):
    """The ranks of a job, kept up to date while it is open.

    The cursor chooses a rank, whose readings a key opens; other keys ask that rank.
    """

    DEFAULT_CSS = """
    JobScreen #notes { height: auto; max-height: 50%; }
    JobScreen #ranks { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("JobScreen")]

    def __init__(self, session: Session, key: str) -> None:
        super().__init__()
        self.session = session
        self._key = key
        self._all = False
        self._notes = Lines(id="notes", classes="panel")
        self._ranks = LiveTable(
            COLUMNS, empty="no rank is running", gap=1, id="ranks", classes="panel"
        )

    def compose(self) -> ComposeResult:
        self._notes.border_title, self._ranks.border_title = "Diagnosis", "Ranks"
        yield self.head
        yield self._notes
        yield self._ranks
        yield self.foot

    def on_mount(self) -> None:
        self.set_focus(self._ranks)
        self.call_after_refresh(self._show)
        self.set_interval(0.5, self._show)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def moved(self) -> None:
        self._show()

    def _show(self) -> None:
        if not self.is_mounted:
            return
        host = self.session.host
        job = next((j for j in host.jobs if j.key == self._key), None) if host is not None else None
        notice = self.session.notices.current
        if notice is not None and notice.severity != "ok":
            self.foot.show([[(f" {notice.text}", notice.severity)]])
        else:
            self.say_keys(footer_keys(self.session, keys_of(type(self))))
        if host is None or job is None:
            self.say_head([("Job  ", "bold accent"), (absent(self.session), "muted")], self.session)
            self._notes.show([])
            self._ranks.show([])
            return
        self.say_head(head_of(job), self.session)
        cells = max(30, self._notes.size.width or 76)
        stacks = not self.session.why_not("stacks")
        notes = styled.hang_lines(standing_out(host, job, stacks, self.session.history), cells)
        self._notes.show(notes)
        # the lines at the top and at the bottom; panels have frames, the table a header
        height = self.size.height - 2
        room = None if self._all else max(3, height - min(len(notes) + 2, height // 2) - 3)
        rows = rank_rows(host, job, room, self.session.history)
        empty = {
            name for name in OPTIONAL if all(row.cells.get(name) in (NOTHING, None) for row in rows)
        }
        self._ranks.show_columns([column for column in COLUMNS if column.key not in empty])
        self._ranks.show(rows)
        set_title(self._ranks, "Ranks" if len(job.trainers) > 1 else "Its process")
        legend: Line = []
        for name, token in SPLIT_TOKENS.items():
            legend += [(f"{self._glyph(token)} ", token), (f"{name}  ", "muted")]
        self._ranks.subtitle(
            legend if any(split_of(t) for t in job.trainers) and self.size.width >= 100 else ()
        )

    def _glyph(self, token: str) -> str:
        return self._ranks.tokens.glyphs.fill(token)

    def action_all(self) -> None:
        """All ranks, or the worst and the others as one line."""
        self._all = not self._all
        self._show()

    def _chosen(self) -> TrainerView | None:
        host, key = self.session.host, self._ranks.cursor_key
        if host is None:
            return None
        found = next((t for t in host.trainers if t.key == key), None)
        job = next((j for j in host.jobs if j.key == self._key), None)
        return found or (job.trainers[0] if job is not None and job.trainers else None)

    def action_act(self, name: str) -> None:
        """Ask the rank under the cursor."""
        reason = self.session.why_not(name)
        if reason:
            self.session.notices.say(f"{name}: {reason}", "warn")
            self._show()
        else:
            open_act(program(self.app), name, self._chosen())

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        if event.key != OTHERS:
            program(self.app).open("readings", event.key)
