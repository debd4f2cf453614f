"""The job under the cursor on a wide Overview: its ranks, where its steps go, what to do about it.

It is the Job page in brief. Beside the parts of a step stand the lines of code that take the time,
and in a hang the stack of the stuck rank; a recording has no stack, but what the finding is by.
The texts are as high as they are long: below them the curve of a loss that moves has the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from ...model.ranks import name_of
from ...model.stalls import find_stall
from ...model.step_parts import step_parts
from ...model.valid_history import while_it_steps
from ...store.view import by_id
from ...text import styled
from ...text.styled import Line
from ...text.units import window_text
from ..charts.axes import loss_axis
from ..charts.line import LineChart, Series
from ..charts.trends import moves
from ..shared.code_lines import CODE_TITLE, code_lines
from ..shared.event_rows import event_lines
from ..shared.job_series import loss_course
from ..shared.step_split import part_lines
from ..trainer.rank_courses import RankCourses
from ..widgets.pane import set_title
from ..widgets.program import program
from ..widgets.table import LiveTable
from ..widgets.text import Lines

if TYPE_CHECKING:
    from ...doctor.finding import Pitfall
    from ...model.step_parts import StepParts
    from ...store.view import HostView, JobView, TrainerView
    from ..background.finding_history import Case
    from ..shell.session import Session
    from ..theme import Glyphs

RANKS_FRAME, LEAST_BELOW, MOST_RANKS = 3, 5, 16
"""Rows of the table of ranks besides these; those that the panels below it have at least."""
LOSS_ROWS, MOST_LOSS_ROWS, FRAME_ROWS = 7, 16, 2
"""A curve of the loss has so many rows with its frame at least, and at most where others can use
them: a higher one says no more.
"""
MOST_EVENTS, FEW_EVENTS = 12, 6
"""Lines of what happened at most, and above a curve."""
MOST_WORSE = 2
"""Problems elsewhere than at the job under the cursor, each with what to do first."""
MOST_STACK = 24
"""Lines of a stack at most, for which charts above it are lower."""
MOST_CODE, LEAST_CODE_CELLS = 8, 40
"""Lines of code at most, and the cells of one while its panel has no size yet."""


class JobBrief(Vertical):
    """Ranks and the parts of a step at the left, the diagnosis and what happened at the right.

    A loss that moves has its curve below them.
    """

    DEFAULT_CSS = """
    JobBrief { height: 1fr; }
    JobBrief .texts { height: 1fr; }
    JobBrief .left { width: 13fr; height: 1fr; }
    JobBrief .right { width: 7fr; height: 1fr; }
    JobBrief .right > Lines { max-height: 100%; }
    JobBrief .ranks-only { layout: vertical; }
    JobBrief .ranks-only > .left { width: 1fr; height: auto; }
    JobBrief .ranks-only > .right { width: 1fr; layout: horizontal; }
    JobBrief .ranks-only > .right > Lines { width: 1fr; height: 1fr; }
    JobBrief .below > * { width: 1fr; height: 1fr; }
    JobBrief .events { height: 1fr; }
    JobBrief .curve { height: 1fr; }
    JobBrief .curve > LineChart { width: 13fr; height: 1fr; }
    JobBrief .curve > Lines { width: 7fr; height: 1fr; }
    """

    def __init__(self, session: Session, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.session = session
        self._ranks = LiveTable((), empty="no rank is running", gap=1, cursor=False)
        self._ranks.can_focus = False
        self._ranks.add_class("panel")
        self._stack = Lines(counts_rest=True, classes="panel")
        self._split = Lines(classes="panel")
        self._asked = False
        """Whether the stack of a rank is asked for; else its panel has the lines of code."""
        self._stack_rows = 0
        """The lines of that stack, 0 while there is no answer."""
        self._loss, self._memory = LineChart(classes="panel"), Lines(classes="panel")
        self._curve = Horizontal(classes="curve")
        self._about = Lines(counts_rest=True, classes="panel")
        self._events = Lines(classes="panel events")
        self._texts = Horizontal(classes="texts")
        self._courses = RankCourses()
        self._loss_moved: set[str] = set()
        """Jobs whose loss has moved: its curve stays while the job is looked at."""
        self._key = ""
        self._event_rows = 0
        self._last: tuple[HostView, str, float, float | None] | None = None

    def on_mount(self) -> None:
        """Show what came before its panels were there: the next picture may be long in coming."""
        self.on_resize()

    def on_resize(self) -> None:
        """Fit the lists to the room, which is not known when they are first shown."""
        if self._last is not None:
            self.call_after_refresh(self.show, *self._last)

    def compose(self) -> ComposeResult:
        with self._texts:
            with Vertical(classes="left"):
                yield self._ranks
                with Horizontal(classes="below"):
                    yield self._split
                    yield self._stack
            with Vertical(classes="right"):
                yield self._about
                yield self._events
        with self._curve:
            yield self._loss
            yield self._memory

    @property
    def wanted(self) -> int:
        """The rows that its texts and a curve need; 0 while the lines of a stack are not known."""
        if not self._key or (self._asked and not self._stack_rows):
            return 0
        if self._curve.display:
            return self._text_rows(FEW_EVENTS) + MOST_LOSS_ROWS
        return self._text_rows(MOST_EVENTS)

    def _text_rows(self, events: int) -> int:
        """Return the rows in which all texts are whole, with so many lines of events at most."""
        beside = self._stack_rows if self._asked else self._stack.rows
        told = max(self._split.rows, beside * self._stack.display)
        ranks, happened = len(self._ranks.rows) + RANKS_FRAME, min(self._event_rows, events)
        if not self.query_one(".below").display:
            return ranks + max(self._about.rows, happened) + FRAME_ROWS
        below = max(told + FRAME_ROWS, LEAST_BELOW) if self._split.display else 0
        return max(ranks + below, self._about.rows + happened + 2 * FRAME_ROWS)

    def show(
        self, host: HostView, key: str, seconds: float, clock: float | None, curve: bool = True
    ) -> None:
        """Bring it up to date for the job of this key, without one for the first that trains.

        Without ``curve`` only texts are: other panels of the same screen show the same moment.
        """
        self._last = host, key, seconds, clock
        job = next((one for one in host.jobs if one.key == key), None)
        if job is None or not job.trainers:
            job = next((one for one in host.jobs if one.trainers), job)
        if job is None or not self.is_mounted or not self.size.height:
            return  # without its size it would leave out the curve, and then need no more rows
        self._key = job.key
        living = [t for t in job.trainers if t.gone is None]
        stall = find_stall(living)
        alone = living[0] if stall is not None and len(living) == 1 else None
        stuck = stall.behind[0] if stall is not None and stall.behind else alone
        asked = self._asked = stuck is not None and self.session.replay is None
        parts = step_parts(living, host, self.session.history)
        code = self._code_of(parts) if not asked else []
        why = self._why_of(host, job) if stall is not None and not asked else []
        self._split.display, self._stack.display = parts is not None, asked or bool(code or why)
        below = self.query_one(".below")
        below.display = self._split.display or self._stack.display
        # with nothing below them, the ranks would leave most of a column blank
        self._texts.set_class(not below.display, "ranks-only")
        self._show_ranks(host, job, seconds, below.display, parts)
        if asked and stuck is not None:
            from ..trainer.hung_stack import hung_lines, stack_title

            others = ", which holds up the others" if alone is None else ""
            set_title(self._stack, f"{stack_title(stuck)}{others}")
            height, width = self._stack.size.height, self._stack.size.width
            self._stack.show(hung_lines(self.session, stuck, height, width))
            known = self.session.asker.seen(stuck, "stacks").value is not None
            whole = hung_lines(self.session, stuck, MOST_STACK, width) if known else ()
            self._stack_rows = len(whole)
        elif code or why:
            set_title(self._stack, CODE_TITLE if code else "Findings: why")
            self._stack.show(code or why)
        if parts is not None:
            self._show_parts(parts, stall is not None)
        self._show_about(host, job)
        self._show_loss(host, living, seconds, clock, not asked, curve)

    def _show_ranks(
        self, host: HostView, job: JobView, seconds: float, below: bool, parts: StepParts | None
    ) -> None:
        from ..trainer.rank_rows import columns_for, rank_rows

        glyphs, width = self._ranks.tokens.glyphs, max(self._ranks.size.width + 4, 100)
        least = LEAST_BELOW if below else 0
        least += LOSS_ROWS if self._curve.display else 0
        most = max(min(self.size.height - least - RANKS_FRAME, MOST_RANKS), 2)
        fold, history = len(job.trainers) > most, self.session.history
        rows = rank_rows(host, job, most, history, fold, glyphs, parts)
        rows = self._courses.added_to(rows, host, history, seconds, glyphs)
        self._ranks.show_columns(columns_for(rows, width, window_text(seconds)))
        self._ranks.show(rows)
        self._ranks.styles.height = len(rows) + RANKS_FRAME
        many = len(job.trainers) > 1
        set_title(self._ranks, f"{job.title}: ranks" if many else f"{job.title}: its process")

    def _code_of(self, parts: StepParts | None) -> list[Line]:
        """Return the lines of code that take the time of a step, where they are known."""
        if parts is None or parts.ledger is None:
            return []
        cells = max(self._stack.size.width, LEAST_CODE_CELLS)
        return code_lines(parts.ledger, cells, self._stack.tokens.glyphs, MOST_CODE)

    def _why_of(self, host: HostView, job: JobView) -> list[Line]:
        """Return what speaks for the finding on a job that hangs in a recording."""
        from ...doctor.report import evidence_lines
        from ..shared.next_step import case_of_job

        case = case_of_job(host, job, self.session.doctor.cases)
        cells = max(self._stack.size.width, LEAST_CODE_CELLS)
        evidence = case.finding.evidence if case is not None else ()
        return [line for one in evidence for line in evidence_lines(one, cells)]

    def _show_parts(self, parts: StepParts, before: bool) -> None:
        what = "Where a step went" if before else "Where a step goes"
        set_title(self._split, f"{what}, {parts.basis}")
        room = self._split.size.width
        self._split.show(part_lines(parts, room, self._split.tokens.glyphs))

    def _show_loss(
        self,
        host: HostView,
        living: Sequence[TrainerView],
        seconds: float,
        clock: float | None,
        steps: bool,
        drawn: bool,
    ) -> None:
        history = self.session.history
        found = loss_course(host, living, history, seconds)
        if found is not None:
            telling, past = found
            past = while_it_steps(past, history(telling.id, "step", seconds), telling)
            if moves(past):
                self._loss_moved.add(self._key)
        texts = self._text_rows(FEW_EVENTS)
        room = self.size.height - texts >= LOSS_ROWS
        self._curve.display = steps and room and self._key in self._loss_moved
        self._texts.styles.height = texts if self._curve.display else "1fr"
        if found is None or not self._curve.display:
            return
        self._show_memory(host, living)
        from ..shared.job_rows import loss_piece

        # the title is of now, as the table beside it, also where the chart is not drawn anew
        loss = loss_piece(host, [telling])
        set_title(self._loss, f"Loss {loss[0]}" if loss is not None else "Loss")
        if not drawn:
            return
        low, high = loss_axis(past.values)
        line = Series("loss", "series3", past.seconds, past.values)
        now = host.sampled_seconds
        self._loss.show([line], seconds, low, high, now=now, clock=clock)

    def _show_memory(self, host: HostView, living: Sequence[TrainerView]) -> None:
        """Say what the memory of the fullest rank is made of, beside the curve."""
        from ..processes.training_text import memory_lines

        fullest = max(living, key=_peak_of)
        process = by_id(host.processes, fullest.process)
        cells, glyphs = max(30, self._memory.size.width), self._memory.tokens.glyphs
        lines = memory_lines(host, process, cells, glyphs) if process is not None else []
        self._memory.display = bool(lines)
        what = name_of(fullest) if len(living) > 1 else "the training"
        set_title(self._memory, f"Memory of {what}")
        self._memory.show(lines)

    def _show_about(self, host: HostView, job: JobView) -> None:
        from ..shared.next_step import case_of_job
        from ..trainer.job_text import standing_out

        session, doctor = self.session, self.session.doctor
        cells = max(30, self._about.size.width)
        case = case_of_job(host, job, doctor.cases)
        worse = worst_elsewhere(host, case, doctor.cases)
        if case is not None or worse:
            set_title(self._about, "Findings: what to do")
            glyphs = self._about.tokens.glyphs
            self._about.show(list(what_to_do(host, case, worse, doctor.table, glyphs, cells)))
        else:
            set_title(self._about, "Findings")
            stopped = session.happened.stopped
            found = standing_out(host, job, session.history, (), stopped, False, cells)
            self._about.show(styled.hang_lines(found, cells))
        past = session.frozen_view.past(host.key) is not None or session.replay
        until = host.wall_seconds if past else None
        events = session.happened.on(host).of_job(job.key, until)
        height, width = self._events.size.height, self._events.size.width
        set_title(self._events, "What happened")
        beside = not self.query_one(".below").display  # both then have the whole height
        left = self.query_one(".right").size.height - self._about.rows - FRAME_ROWS
        self._events.display = beside or left > FRAME_ROWS  # else it would be an empty frame
        glyphs, now = self._events.tokens.glyphs, host.wall_seconds
        width = width or self._about.size.width
        lines = event_lines(events, glyphs, max(height, MOST_EVENTS), width, now)
        self._event_rows = min(len(lines), MOST_EVENTS)
        self._events.show(lines[: height or None])  # without a height it is laid out later

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        """A click on a rank opens its job."""
        event.stop()
        if self._key:
            program(self.app).open("job", self._key)

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()


def worst_elsewhere(host: HostView, case: Case | None, cases: Sequence[Case]) -> list[Case]:
    """Return the problems of a host besides the finding on a job, where that is none itself.

    Of those that the machine and a trainer on it have alike there is one: they have one cure.
    """
    if case is not None and case.finding.severity == "problem":
        return []
    bad = [one for one in cases if one.finding.severity == "problem" and one.grave and not one.dead]
    return list({one.finding.pitfall: one for one in reversed(bad)}.values())[::-1]


def what_to_do(
    host: HostView,
    case: Case | None,
    worse: Sequence[Case],
    table: Mapping[str, Pitfall] | None,
    glyphs: Glyphs,
    cells: int,
) -> Iterator[Line]:
    """Yield what to do about a job, which is wrong as its row says; first about what is worse."""
    from ..doctor.cure import steps_lines
    from ..shared.next_step import finding_line

    several = bool(worse)
    for one in (*worse[:MOST_WORSE], *([case] if case is not None else [])):
        if several:
            sign, *title = finding_line(one, glyphs)
            yield from styled.hang([sign], title, cells)
        row, most = (table or {}).get(one.finding.pitfall), 1 if one is not case else None
        yield from steps_lines(one.finding, row, bool(host.badge), cells, bool(most), most=most)


def _peak_of(trainer: TrainerView) -> float:
    peaks = [one.number("peak_allocated_bytes") or 0.0 for one in trainer.allocators]
    return max(peaks, default=0.0)
