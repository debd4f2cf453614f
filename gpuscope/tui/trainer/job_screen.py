"""This screen looks at a job closely, with its ranks side by side.

It says who is behind, who works longest, and who runs out of memory first.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ...model.job_ends import end_of
from ...model.job_state import living_members
from ...model.ranks import running
from ...model.stalls import find_stall
from ...model.step_parts import StepParts, step_parts
from ...store.view import by_key
from ...text import styled
from ...text.styled import Line
from ...text.units import window_text
from ..doctor.cure import steps_lines
from ..shared.after_end import after_end
from ..shared.next_step import case_of_job, finding_line, next_lines
from ..shared.step_split import tokens_of
from ..shared.trainer_actions import open_act
from ..shell.keymap import bindings_of
from ..shell.selection import keys_of
from ..theme import Glyphs
from ..widgets.full_screen import FullScreen, absent
from ..widgets.pane import set_title
from ..widgets.program import program
from ..widgets.table import Column, LiveTable, TableRow
from ..widgets.text import Lines
from .job_charts import LEAST_ROWS, JobCharts
from .job_load import devices_of
from .job_text import head_of, standing_out, telling_chart
from .rank_courses import RankCourses
from .rank_rows import COLUMNS, COURSE_FROM, OTHERS, columns_for, rank_rows

if TYPE_CHECKING:
    from ...store.view import HostView, JobView, TrainerView
    from ..background.finding_history import Case
    from ..shell.session import Session


RANKS_FRAME = 3
"""Rows of the table of ranks besides these: its frame and its headings."""
LEAST_SHARE = 0.01
"""Parts of a step below that are not in the legend."""
LEAST_RANKS = 3
"""Rows for ranks at least, where there are so many."""
BRIEF_ROWS = 30
"""Below so many rows the diagnosis leaves out what stands below it too."""
FRAME_CELLS = 4
LOW_ROWS = 10
"""A chart with its frame is low below so many rows."""


class JobScreen(FullScreen):
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
        self._charts = JobCharts(session)
        self._courses = RankCourses()
        self._hangs = False
        self._states: list[str] = []
        self._case: Case | None = None
        self._is_selected = False

    def key_states(self) -> Collection[str]:
        """Whether there are several ranks, one that can be asked, and one that can be ended."""
        return self._states

    def compose(self) -> ComposeResult:
        self._notes.border_title, self._ranks.border_title = "Findings", "Ranks"
        yield self.head
        yield self._notes
        yield self._ranks
        yield self._charts
        yield self.foot

    async def on_mount(self) -> None:
        self.set_focus(self._ranks)
        await self.show_first(self._show)
        self.set_interval(0.5, self._show)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def moved(self) -> None:
        self._show()

    def _show(self) -> None:
        if not self.is_attached:
            return
        host = self.session.host
        job = by_key(host.jobs, self._key) if host is not None else None
        self._states = _states_of(job) if job is not None else []
        self.say_own_keys(self.session)
        if host is None or job is None:
            self.say_head([("Job  ", "bold accent"), (absent(self.session), "muted")], self.session)
            self._notes.show([])
            self._ranks.show([])
            return
        self.say_head(head_of(job), self.session)
        cells = max(30, self._notes.size.width or 76)
        sent = self.session.happened.stopped
        live = not self.session.why_not("stacks")
        told = "cure" in self._charts.shown  # a panel of its own says it with the code
        cases = self.session.doctor.cases
        first = [] if told else list(next_lines(host, job, cases, live))
        if end_of(job) is not None:
            first = [*after_end(self.session, host, job), *first]
        brief = self.size.height < BRIEF_ROWS
        finding = finding_line(case_of_job(host, job, cases), self._glyphs)
        history = self.session.history
        found = standing_out(host, job, history, first, sent, brief, cells, finding)
        notes = styled.hang_lines(found, cells)
        self._notes.show(notes)
        # the lines at the top and at the bottom; panels have frames, the table a header
        height = self.size.height - 2 - min(len(notes) + 2, self.size.height // 2) - RANKS_FRAME
        self._hangs = find_stall(job.trainers) is not None
        parts = step_parts(running(job.trainers), host, self.session.history)
        rows, columns = self._fit(host, job, height, parts)
        self._ranks.show_columns(columns)
        self._ranks.show(rows)
        set_title(self._ranks, "Ranks" if len(job.trainers) > 1 else "Its process")
        legend: Line = []
        for name, token in (tokens_of(parts) if parts is not None else {}).items():
            if parts is not None and parts.shares.get(name, 0.0) >= LEAST_SHARE:
                legend += [(f"{self._glyph(token)} ", token), (f"{parts.words[name]}  ", "muted")]
        bars = self.size.width >= 100 and any(column.key == "split" for column in columns)
        self._ranks.subtitle(legend if bars else ())
        self._select(host, job)
        self._show_lower(host, job)

    def _select(self, host: HostView, job: JobView) -> None:
        """Have the tabs below begin with this job, however its page was opened."""
        trainer, selection = self._chosen(), self.session.selection
        if self._is_selected or trainer is None:
            return
        self._is_selected = True
        if by_key(job.trainers, selection.trainer) is None:
            selection.choose(*keys_of(host, trainer))

    def _fit(
        self, host: HostView, job: JobView, height: int, parts: StepParts | None
    ) -> tuple[list[TableRow], list[Column]]:
        """Share ``height`` rows between the ranks and the charts, and return the ranks' table.

        A few ranks leave the charts most of it. Of many, the worst have half of it, and those that
        are alike have one row where the chart would be low.
        """
        few, glyphs = max(LEAST_RANKS, height // 2), self._ranks.tokens.glyphs
        count, history = len(job.trainers), self.session.history
        fold = not self._all and (count > few or height - count < LOW_ROWS)
        rows = rank_rows(host, job, few if fold else None, history, fold, glyphs, parts)
        charts = not self._all and height - len(rows) >= LEAST_ROWS
        if fold and not charts:
            rows = rank_rows(
                host, job, max(LEAST_RANKS, height), history, glyphs=glyphs, parts=parts
            )
        width, window = self.size.width, self._charts.seconds
        if width >= COURSE_FROM:
            rows = self._courses.added_to(rows, host, history, window, self._glyphs)
        columns = columns_for(rows, width, window_text(window))
        known = ["stack"] if self.session.replay is None else []
        known += ["loss"] if self._charts.knows_loss(host, job) else []
        known += ["step"] if parts is not None else []
        known += ["load"] if devices_of(host, job.trainers) else []
        known += ["moving"] if self._charts.loss_moves(host, job) else []
        first, now = job.trainers[0] if job.trainers else None, host.sampled_seconds
        moving = first is not None and self._charts.memory_moves(first, now or 0.0)
        known += ["memory"] if moving else []
        self._case = case_of_job(host, job, self.session.doctor.cases)
        known += ["cure"] if self._case is not None else []
        left = height - len(rows) if charts else 0
        telling = telling_chart(host, job, self.session.history)
        self._charts.fit_to(width, left, self._hangs, known, telling)
        self._ranks.styles.height = len(rows) + RANKS_FRAME if charts else "1fr"
        return rows, columns

    def _show_lower(self, host: HostView, job: JobView) -> None:
        """Draw the charts, the stack and what happened, of the rank under the cursor."""
        trainer = self._chosen()
        if trainer is None:
            return
        self._charts.draw(host, trainer)
        self._charts.show_texts(host, job, trainer)
        if "cure" in self._charts.shown and self._case is not None:
            cure = self._charts.cure
            set_title(cure, "Findings: what to do")
            row = (self.session.doctor.table or {}).get(self._case.finding.pitfall)
            # before it is laid out it would be wrapped into a column that pushes the charts down
            cells = max(30, cure.size.width or self.size.width // 3 - FRAME_CELLS)
            cure.show(list(steps_lines(self._case.finding, row, bool(host.badge), cells)))

    @property
    def _glyphs(self) -> Glyphs:
        return self._ranks.tokens.glyphs

    def _glyph(self, token: str) -> str:
        return self._glyphs.fill(token)

    def action_all(self) -> None:
        """All ranks, or the worst and the others as one line."""
        self._all = not self._all
        self._show()

    def action_chart(self) -> None:
        """Let the next panel of the lower part be the first."""
        self._charts.turn()
        self._show()

    def action_zoom(self, by: int) -> None:
        """Charts over a longer or a shorter time."""
        self._charts.zoom(by)
        self._show()

    def _chosen(self) -> TrainerView | None:
        host, key = self.session.host, self._ranks.cursor_key
        if host is None:
            return None
        found = by_key(host.trainers, key)
        job = by_key(host.jobs, self._key)
        return found or (job.trainers[0] if job is not None and job.trainers else None)

    def action_act(self, name: str) -> None:
        """Ask the rank under the cursor."""
        if not self.refused(self.session, f"act('{name}')"):
            open_act(program(self.app), name, self._chosen())
            self._show()

    def action_signal(self) -> None:
        """Ask which signal the rank under the cursor is to get."""
        trainer = self._chosen()
        if trainer is not None and not self.refused(self.session, "signal"):
            program(self.app).open("signal_to", trainer.definition.pid)
            self._show()

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        host = self.session.host
        trainer = by_key(host.trainers, event.key) if host is not None else None
        if event.by_user and host is not None and trainer is not None:
            self.session.selection.choose(*keys_of(host, trainer))
        self.call_after_refresh(self._show)

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        if event.key.startswith(OTHERS):
            self.action_all()
        else:
            program(self.app).open("readings", event.key)


def _states_of(job: JobView) -> list[str]:
    """Return the states of the page's keys: who can be asked or ended, and what can be folded."""
    out = ["ranks"] if len(job.trainers) > 1 else []
    out += ["answering"] if any(one.gone is None for one in job.trainers) else []
    return [*out, "living"] if living_members(job) else out
