"""This tab shows where every millisecond of a trainer's wall clock goes.

The rows of its ledger add up to the clock. Beside them stand their course over ten minutes, the
ranks of its job, what a look found on its GPU, and the doctor's findings about time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...doctor.live_causes import Judged, is_calm, of_ledger
from ...doctor.live_scene import LiveScene
from ...model.late_rank import LateRank, late_rank
from ...model.odd_parts import odd_parts
from ...model.pace import pace_of
from ...model.ranks import name_of
from ...model.slowdown import of_trainers
from ...model.stalls import worst_rank
from ...model.standstill import stands_still
from ...model.step_parts import ledger_of_steps, reported
from ...model.step_time import split_of
from ...model.stragglers import MAX_RANKS
from ...model.time_ledger import TimeLedger, recent
from ...model.useful_work import sentence as work_sentence
from ...store.view import HostView, TrainerView, by_key
from ...text import styled
from ...text.styled import Line
from ...text.units import percent_text, short_age_text, window_text
from ..charts.strips import Painted
from ..doctor.text import top
from ..overview.finding_list import FindingList, go_to_finding
from ..shared.windows import window_of
from ..shell.clock_at import clock_at
from ..shell.frozen_view import first_trainer_text
from ..shell.keymap import key_of
from ..shell.selection import keys_of
from ..shell.session import Session
from ..trainer.job_load import devices_of
from ..trainer.step_layers import of_ledger as of_ledger_layers
from ..trainer.time_history import courses, tokens_of
from ..widgets.pane import WAITING, set_title
from ..widgets.program import program
from ..widgets.table import LiveTable
from .about_rows import about_clock_row, about_gpu_row, lost_lines, why_it_stands
from .answers import Answers
from .aside import aside_lines
from .hang_rows import add_hang, hang_lines, hang_of, with_hang
from .measured_panels import MeasuredPanels
from .panels import HEAD_EDGES, WIDE
from .rows import (
    CLOCK,
    COURSE_CELLS,
    NARROW_CLOCK,
    SPLIT,
    TOTAL,
    clock_rows,
    rank_columns,
    rank_rows,
    with_names,
)
from .severities import (
    marks_line,
    most_to_gain,
    of_ranks,
    of_rows,
    rank_marks,
    severities,
    worst_of,
)
from .text import (
    TIME,
    answer,
    coverage_text,
    late_lines,
    no_minutes,
    no_trainer,
    pace_text,
    slower_lines,
    who,
)
from .without_ledger import next_window, part_detail

if TYPE_CHECKING:
    from ...doctor.finding import Severity
    from ..background.finding_history import Case

MOST_FINDINGS = 4
TAB = "time"


class TimePane(MeasuredPanels):
    """The tab with the rows of the clock at the left, and their history and the ranks at the right.

    On a narrow terminal one of the other panels stands below the rows; a key chooses which.
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._chosen = ""
        self._answers = Answers(session)
        self._judged: list[Judged] = []
        """What makes the trainer slow, what brings most first."""
        self._told: dict[str, Severity] = {}
        """How grave the doctor took each cause when this was drawn."""
        self._drawn: tuple[object, ...] = ()
        self._charted: tuple[object, ...] = ()

    # ── whose time ──

    def _trainers(self, host: HostView) -> list[TrainerView]:
        """Return those to choose from: those that run, else those that have ended."""
        text = self.session.state.filter.casefold()
        everything = [t for job in host.jobs for t in job.trainers if text in who(t).casefold()]
        return [t for t in everything if t.gone is None] or everything

    def _ranks_of(self, host: HostView, trainer: TrainerView) -> list[TrainerView]:
        for job in host.jobs:
            if any(one.key == trainer.key for one in job.trainers):
                return [t for t in job.trainers if (t.gone is None) == (trainer.gone is None)]
        return [trainer]

    def chosen(self, host: HostView) -> TrainerView | None:
        """Return the trainer that is looked at.

        Where none is selected, it is the rank of the job on the highlighted device that hangs or
        that the others wait for.
        """
        trainers, selection = self._trainers(host), self.session.selection
        if selection.leads(TAB) and (found := selection.trainer_of(host, trainers)) is not None:
            return found
        found = next((t for t in trainers if t.key == self._chosen), None)
        if found is not None or not trainers:
            return found
        usual = super().chosen(host)
        first = next((t for t in trainers if usual and t.key == usual.key), trainers[0])
        ranks = self._ranks_of(host, first)
        late = self._late(ranks)
        stuck = worst_rank(ranks)[0] if stands_still(first) else None
        odd = next((t for t in ranks if t.key in odd_parts(ranks)), first)
        told = reported(ranks, late) or late
        found = stuck or (told.trainer if told is not None else odd)
        if recent(found).sure:  # before that another may turn out to be the odd one
            self._chosen = found.key
            selection.propose(TAB, *keys_of(host, found))
        return found

    def chosen_pid(self) -> int | None:
        return self.chosen_trainer_pid()

    def _late(self, ranks: Sequence[TrainerView]) -> LateRank | None:
        """Return the rank that the others wait for."""
        return late_rank(ranks, self.session.history, self.session.host)

    # ── drawing ──

    def show(self, host: HostView | None) -> None:
        trainer = self.chosen(host) if host is not None else None
        if host is not None:
            job = host.job_of(trainer)
            self._bring_up_to_date(host, job.key if job is not None else None)
        if host is None or trainer is None:
            self._drawn = ()
            if host is not None:
                begins = first_trainer_text(self.session.replay)
                self._show_host(host, no_trainer(host, self.session.state.filter, begins))
            else:
                self._clear()
                self._head.show([[(WAITING, "muted")]])
            self._share_out()
            return
        ranks = self._ranks_of(host, trainer)[:MAX_RANKS]
        look, age = self._answers.look(trainer)
        work = self._answers.work(trainer, host)
        slower = of_trainers([trainer], host, self.session.history)
        late = self._late(ranks)
        told = self._told = severities(self._cases(ranks))
        job = host.job_of(trainer)
        everything = self._trainers(host)
        stopped = why_it_stands(self.session, host, trainer)
        lost = lost_lines(self.session, host, trainer) if not stopped else []
        place = next((i for i, t in enumerate(everything) if t.key == trainer.key), 0)
        drawn = (
            trainer.key,
            [t.minutes for t in ranks],
            trainer.gone,
            bool(trainer.number("step")),
            (stopped, lost),
            (place, len(everything)),
            (look, int((age or 0.0) / 60), work),
            (slower, late.text if late is not None else ""),
            (self._terminal, len(self._processes.rows), self._events.rows),
            (self.app.theme, host.link.state),
            told,
        )
        if drawn == self._drawn:
            return
        self._drawn = drawn
        ledger = ledger_of_steps(trainer)
        hint = f"   {place + 1} of {len(everything)}, {key_of('next_trainer')}: next"
        ended = "   ended" if trainer.gone is not None else ""
        subject: Line = [
            (who(trainer), "title"),
            (ended, "warn"),
            (hint if len(everything) > 1 else "", "faint"),
        ]
        room = self._terminal[0] - HEAD_EDGES - styled.cells(subject) - 3
        stands = stands_still(trainer)
        if ledger.sure:
            subject.append((f"   {coverage_text(ledger, room, stands)}", "muted"))
        else:
            self._drawn = ()
            self._without_ledger(host, trainer, ranks, subject)
            return
        hang = hang_of(trainer) if stands else None
        set_title(self._clock, "Where the time went before" if stands else "Where the time goes")
        self._steps.show([])
        late = late if not stopped else None
        first = reported(ranks, late) if not stopped else None
        key = first.trainer.key if first is not None else trainer.key
        odd = late.odd if late is not None else None
        useful = work_sentence(work, ledger.step_seconds) if work is not None else ""
        # nothing is to be gained from a faster step while none ends
        self._judged = (
            of_ledger(LiveScene(host, self.session.history), trainer, ledger, late)
            if not stopped
            else []
        )
        causes = tuple(one.cause for one in self._judged)
        narrow = self._terminal[0] < WIDE
        found = most_to_gain(self._cases(ranks), self._clock.tokens.glyphs)
        calm = is_calm(self._judged, ledger) and not lost
        sentence = (
            answer(ledger, trainer, late, slower, useful, causes, look, narrow, found, calm)
            if not stopped
            else ()
        )
        width = max(40, self._terminal[0] - HEAD_EDGES)
        self._head.show([subject, *styled.hang_lines([*stopped, *lost, *sentence], width)])
        glyphs = self._clock.tokens.glyphs
        course = courses(trainer.minutes, COURSE_CELLS) if narrow and trainer.minutes[1:] else {}
        columns = with_hang(NARROW_CLOCK if course else CLOCK, hang)
        self._clock.show_columns(with_names((row.words for row in ledger.whole), columns))
        curable = of_rows(self._judged, told)
        self._clock.subtitle(marks_line(curable.values(), glyphs))
        rows = clock_rows(ledger, tokens_of(ledger), glyphs, curable, course)
        self._clock.show(add_hang(rows, hang, glyphs))
        if len(ranks) > 1:
            by_key = {t.key: ledger_of_steps(t) for t in ranks}
            names = {t.key: name_of(t) for t in ranks}
            self._ranks.show_columns(rank_columns(by_key, odd))
            weight = worst_of(of_ranks(told), late)
            marks = rank_marks(job, key if not stopped else "", weight, glyphs)
            self._ranks.show(rank_rows(by_key, names, odd, marks))
            self._point_at(self._ranks, trainer.key)
            set_title(self._ranks, "Time per step, by rank")
        else:
            self._ranks.show([])
        self._look, self._devices = look, devices_of(host, ranks)
        self._drawn_ranks = ranks
        self._set_aside(trainer, ranks, ledger)
        self._show_gpu()
        if look is not None:
            ago = f"{short_age_text(age)} ago" if age is not None and age >= 60 else "just now"
            set_title(self._gpu, f"On the GPU, {ago}: busy {percent_text(look.busy_share)}")
        self._show_detail()
        self._list_findings(self._cases(ranks))
        self._share_out()

    def _set_aside(
        self, trainer: TrainerView, ranks: Sequence[TrainerView], ledger: TimeLedger | None
    ) -> None:
        cells, glyphs = self._left_cells() - HEAD_EDGES, self._detail.tokens.glyphs
        self._aside = aside_lines(self.session, trainer, ranks, ledger, cells, glyphs)
        self._explained = not stands_still(trainer) and len(ranks) == 1

    def _without_ledger(
        self, host: HostView, trainer: TrainerView, ranks: Sequence[TrainerView], subject: Line
    ) -> None:
        """Show what is measured of a job that has no ledger."""
        job = host.job_of(trainer)
        hang = hang_of(trainer, job) if stands_still(trainer) else None
        stopped = why_it_stands(self.session, host, trainer)
        late = self._late(ranks) if not stopped else None
        slower = of_trainers(ranks, host, self.session.history) if not stopped else None
        weight = worst_of(of_ranks(self._told), late)
        lost = lost_lines(self.session, host, trainer) if not stopped else []
        lines = [*stopped, *lost, *late_lines(late), *slower_lines(slower)]
        room = self._terminal[0] - HEAD_EDGES - styled.cells(subject)
        subject = [*subject, (pace_text(pace_of(ranks), room), "muted")]
        glyphs, narrow = self._clock.tokens.glyphs, self._terminal[0] < WIDE
        cases = self._cases(ranks)
        odd = odd_parts(ranks) if not stopped else {}
        worst = late.trainer.key if late is not None else next(iter(odd), "")
        if odd and weight == "info" and any(case.grave for case in cases):
            weight = "warning"
        marks = rank_marks(job, worst, weight, glyphs)
        told = top(cases, glyphs, 1) if narrow and not lines else []
        lines += [line for _, line in told]  # there is no room for the panel
        ledger = recent(trainer)
        head = [subject, *lines, *no_minutes(host, trainer, narrow, ledger)]
        self._set_aside(trainer, ranks, None)
        self._show_measured(host, trainer, ranks, head, marks, hang)
        self._list_findings(cases)
        self._share_out()

    def _about(self, table: LiveTable, key: str) -> tuple[str, list[Line]]:
        """Return the heading and the lines for a row of the clock or of the GPU."""
        host = self.session.host
        trainer = self.chosen(host) if host is not None else None
        if trainer is None:
            return "", []
        stands = stands_still(trainer)
        job = host.job_of(trainer) if host is not None and key.startswith(SPLIT) else None
        hang = hang_of(trainer, job) if stands else None
        in_hang = hang_lines(key, hang, split_of(trainer))
        if key.startswith(SPLIT) and host is not None:
            name, ranks = key.removeprefix(SPLIT), self._ranks_of(host, trainer)
            heading, lines = part_detail(name, ranks)
            return heading, [*in_hang, *lines]
        look = self._answers.look(trainer)[0]
        if table is self._gpu:
            return about_gpu_row(key, look)
        judged = self._judged if not stands else None
        live = not self.session.why_not("stacks")
        heading, lines = about_clock_row(key, ledger_of_steps(trainer), look, judged, live)
        return heading, [*in_hang, *lines]

    def show_findings(self) -> None:
        host = self.session.host
        trainer = self.chosen(host) if host is not None else None
        if host is None or trainer is None:
            return
        about = self._cases(self._ranks_of(host, trainer))
        if severities(about) != self._told:
            self.show(host)  # with the marks that the doctor gives now
        else:
            self._list_findings(about)

    def _cases(self, ranks: Sequence[TrainerView]) -> list[Case]:
        """Return what the doctor says about the time of these ranks."""
        pids = {t.definition.pid for t in ranks}
        return [
            case
            for case in self.session.doctor.cases
            if case.finding.cause in TIME and (case.pid is None or case.pid in pids)
        ]

    def _list_findings(self, about: Sequence[Case]) -> None:
        # a hang is told at the top
        about = [case for case in about if not case.finding.cause.startswith("stall.")]
        lines = top(about, self._findings.tokens.glyphs, MOST_FINDINGS)
        before = self._findings.rows
        self._findings.show_findings(lines)
        if before != len(lines):
            self._share_out()

    def show_charts(self, host: HostView) -> None:
        trainer = self.chosen(host)
        shown = (self._chart.display and self._right.display, self._load.display)
        if not self._right.is_mounted or not any(shown):
            return
        ended = trainer is not None and trainer.gone is not None
        minutes = trainer.minutes if trainer is not None else ()
        ends = [m["m"] / 1e9 + (m.get("seconds") or 0.0) for m in minutes]
        now = max([*ends, *([] if ended and ends else [host.sampled_seconds or 0.0])])
        clock = clock_at(self.session, host, now)
        window = self._zoomed or window_of(self.session, host, trainer)
        every = window / 100 if ends else self.session.charts_seconds or 0.1
        charted = (
            *(trainer.key if trainer is not None else "", minutes, int(now / every), clock is None),
            *(self._terminal, self._load_rows, shown, self._steps_known, self.app.theme),
            self._zoomed,
        )
        if charted == self._charted:
            self.show_figures(host)
            return
        self._charted = charted
        if trainer is None or not self._has_ledger:
            self._draw_measured(host, trainer)
            return
        if shown[0]:
            found = of_ledger_layers(self.session, trainer, ledger_of_steps(trainer), window, now)
            self._draw_steps(host, trainer, found, window, now)
        self._draw_load(host, window, now, clock)

    def show_figures(self, host: HostView) -> None:
        trainer = self.chosen(host)
        if not self._charted or not self._right.is_mounted:
            return  # they are drawn with the others first
        window, now = window_of(self.session, host, trainer), host.sampled_seconds
        window, clock = self._zoomed or window, clock_at(self.session, host)
        if self._load.display and (trainer is None or trainer.gone is None):
            self._draw_load(host, window, now, clock)
        if self._chart is self._lines and self._lines.display and not self._has_ledger:
            self._draw_ranks(window, now, clock)

    def fit_to(self, width: int, height: int) -> None:
        self._drawn = self._charted = ()
        super().fit_to(width, height)

    # ── keys ──

    def take_focus(self) -> None:
        self.focus_on(self._first)

    @property
    def _first(self) -> LiveTable:
        """The table that a user most likely wants."""
        tables = (self._clock, self._steps, self._ranks, self._processes)
        return next((one for one in tables if one.rows and one.display), self._clock)

    def do_next_pane(self) -> None:
        """Go to the next list; on a narrow terminal it takes the place below the rows.

        The history and the load come in turn there, too.
        """
        first, narrow = self._first, self._terminal[0] < WIDE
        others: list[Painted] = [
            one
            for one in (self._steps, self._gpu, self._findings, self._ranks)
            if one.rows and one is not first
        ]
        if self._processes.display and self._processes is not first:
            others.append(self._processes)
        charts: list[Painted] = [self._chart] if self._has_ledger or self._steps_known else []
        charts += [self._load] if self._devices else []
        panels: list[Painted] = [first, *(charts if narrow else []), *others]
        now = next((panel for panel in panels if panel.has_focus), None)
        now = self._below if narrow and self._below in charts else now
        panel = panels[(panels.index(now) + 1) % len(panels)] if now is not None else first
        self._below = None if panel is first else panel
        self._share_out()
        self.focus_on(first if panel in charts else panel)
        if panel in charts and (host := self.session.host) is not None:
            self.show_charts(host)

    def do_move(self, by: int) -> None:
        if self._findings.has_focus:
            self._findings.move(by)
        else:
            self._first.action_move(by)

    def do_zoom_by(self, by: int) -> None:
        """Draw charts over a longer time, as far as there is history, or over a shorter one."""
        host = self.session.host
        trainer = self.chosen(host) if host is not None else None
        if host is None:
            return
        now = self._zoomed or window_of(self.session, host, trainer)
        self._zoomed, longest = next_window(self.session, host, now, by)
        self.session.notices.say(
            f"chart window: {window_text(self._zoomed)} (history so far: {window_text(longest)})"
        )
        self.show_charts(host)

    def do_trainer(self, by: int) -> None:
        host = self.session.host
        trainer = self.chosen(host) if host is not None else None
        if host is None or trainer is None:
            return
        keys = [t.key for t in self._trainers(host)]
        self._choose(keys[(keys.index(trainer.key) + by) % len(keys)])

    def _choose(self, key: str) -> None:
        self._chosen, self._browsed = key, None
        host = self.session.host
        if host is not None:
            self.session.selection.choose(*keys_of(host, by_key(host.trainers, key)))
            self.show(host)
            self.show_charts(host)

    def do_work(self) -> None:
        """Derive the work of a step of this trainer; where none was counted, ask whether to."""
        from ..shared.trainer_actions import open_act

        host = self.session.host
        trainer = self.chosen(host) if host is not None else None
        work = self._answers.work(trainer, host) if host is not None and trainer else None
        if work is not None and trainer is not None:
            step = recent(trainer).step_seconds
            program(self.app).open("work", trainer.key, work, step)
        else:
            open_act(program(self.app), "work", trainer)

    def do_open(self) -> None:
        """What is known of the row, the rank or the finding under the cursor."""
        if self._findings.has_focus:
            self._findings.open()
        elif self._first.cursor_key:
            self._open(self._first, self._first.cursor_key)

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        self._open(event.table, event.key)

    def _open(self, table: LiveTable, key: str) -> None:
        if table is self._processes:
            program(self.app).open("process", key)
        elif table in (self._ranks, self._steps):
            self._choose(key)
        elif key != TOTAL:
            heading, lines = self._about(table, key)
            program(self.app).open("time_row", heading, lines)
        else:
            self.session.notices.hint("the wall clock is the sum of all rows: open one of them")

    async def on_finding_list_opened(self, event: FindingList.Opened) -> None:
        event.stop()
        await go_to_finding(self, event.key)
