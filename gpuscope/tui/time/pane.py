"""This tab shows where every millisecond of a trainer's wall clock goes.

The rows of its ledger add up to the clock. Beside them stand their course over ten minutes, the
ranks of its job, what a look found on its GPU, and the doctor's findings about time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...doctor.live_causes import Judged, of_ledger
from ...doctor.live_scene import LiveScene
from ...model.pace import PARTS_STEPS
from ...model.rank_times import Odd, rank_to_report
from ...model.ranks import name_of
from ...model.slowdown import PARTS, of_trainers
from ...model.stragglers import Straggler, straggler
from ...model.time_ledger import TimeLedger, of_trainer
from ...model.useful_work import sentence as work_sentence
from ...store.view import HostView, TrainerView
from ...text import styled
from ...text.styled import Line
from ...text.units import percent_text, short_age_text
from ..charts.strips import Painted
from ..doctor.text import SEVERITY_TOKENS, top
from ..overview.finding_list import FindingList, go_to_finding
from ..shell.keymap import key_of
from ..shell.session import Session
from ..widgets.pane import WAITING, set_title
from ..widgets.program import program
from ..widgets.table import LiveTable
from .answers import Answers
from .history import WINDOW_SECONDS, layers, tokens_of
from .panels import HEAD_EDGES, WIDE, TimePanels
from .rows import (
    CLOCK,
    GPU,
    TOTAL,
    clock_rows,
    rank_columns,
    rank_rows,
    row_of,
    split_rows,
    with_names,
)
from .severities import of_ranks, of_rows, severities
from .text import (
    TIME,
    answer,
    coverage_text,
    gpu_detail,
    no_minutes,
    no_trainer,
    row_detail,
    stopped_lines,
    who,
)

if TYPE_CHECKING:
    from ...doctor.finding import Severity
    from ...store.time_minutes import Minute
    from ..doctor.finding_history import Case

MOST_FINDINGS = 4
MAX_RANKS, MAX_LEDGERS = 64, 1024


class TimePane(TimePanels):
    """The tab with the rows of the clock at the left, and their history and the ranks at the right.

    On a narrow terminal one of the other panels stands below the rows; a key chooses which.
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._chosen = ""
        self._ledgers: dict[str, tuple[tuple[Minute, ...], TimeLedger]] = {}
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

        Where none was chosen here, it is the rank of the job on the highlighted device that the
        others wait for.
        """
        trainers = self._trainers(host)
        found = next((t for t in trainers if t.key == self._chosen), None)
        if found is not None or not trainers:
            return found
        usual = super().chosen(host)
        first = next((t for t in trainers if usual and t.key == usual.key), trainers[0])
        ranks = self._ranks_of(host, first)
        key = self._rank_to_report(ranks)[0]
        found = next((t for t in ranks if t.key == key), first)
        if self._ledger(found).sure:  # before that another may turn out to be the odd one
            self._chosen = found.key
        return found

    def chosen_pid(self) -> int | None:
        host = self.session.host
        trainer = self.chosen(host) if host is not None else None
        return trainer.definition.pid if trainer is not None else None

    def _ledger(self, trainer: TrainerView) -> TimeLedger:
        """Return the ledger of a trainer's last ten minutes, which changes when a minute comes."""
        kept = self._ledgers.get(trainer.key)
        if kept is None or kept[0] is not trainer.minutes:
            if len(self._ledgers) >= MAX_LEDGERS:  # of trainers that have ended
                self._ledgers.clear()
            kept = self._ledgers[trainer.key] = (
                trainer.minutes,
                of_trainer(trainer, WINDOW_SECONDS),
            )
        return kept[1]

    def _rank_to_report(self, ranks: Sequence[TrainerView]) -> tuple[str, Odd | None]:
        """Return the key of the rank that is shown first, and how it differs from the others."""
        names = {name_of(t): t.key for t in ranks[:MAX_RANKS]}
        slow = self._straggler(ranks)
        found, odd = rank_to_report(
            {name_of(t): self._ledger(t) for t in ranks[:MAX_RANKS]},
            name_of(slow.trainer) if slow is not None else None,
        )
        return names[found], odd

    def _straggler(self, ranks: Sequence[TrainerView]) -> Straggler | None:
        """Return the rank whose own work takes longer than that of the others."""
        if len(ranks) < 2:
            return None
        return straggler(ranks[:MAX_RANKS], self.session.history, self.session.host)

    # ── drawing ──

    def show(self, host: HostView | None) -> None:
        trainer = self.chosen(host) if host is not None else None
        if host is None or trainer is None:
            lines = no_trainer(host, self.session.state.filter) if host else [[(WAITING, "muted")]]
            self._show_nothing([], lines)
            return
        ranks = self._ranks_of(host, trainer)[:MAX_RANKS]
        look, age = self._answers.look(trainer)
        work = self._answers.work(trainer, host)
        slower = of_trainers([trainer], host, self.session.history)
        slow = self._straggler(ranks)
        told = self._told = severities(self._cases(ranks))
        everything, stopped = self._trainers(host), stopped_lines(trainer)
        place = next((i for i, t in enumerate(everything) if t.key == trainer.key), 0)
        drawn = (
            trainer.key,
            [t.minutes for t in ranks],
            trainer.gone,
            bool(trainer.number("step")),
            stopped,
            (place, len(everything)),
            (look, int((age or 0.0) / 60), work),
            (slower, slow.brief if slow is not None else ""),
            self._terminal,
            (self.app.theme, host.link.state),
            told,
        )
        if drawn == self._drawn:
            return
        self._drawn = drawn
        ledger = self._ledger(trainer)
        hint = f"   {place + 1} of {len(everything)}, {key_of('next_trainer')}: next"
        ended = "   ended" if trainer.gone is not None else ""
        subject: Line = [
            (who(trainer), "title"),
            (ended, "warn"),
            (hint if len(everything) > 1 else "", "faint"),
        ]
        room = self._terminal[0] - HEAD_EDGES - styled.cells(subject) - 3
        if ledger.rows:
            subject.append((f"   {coverage_text(ledger, room)}", "muted"))
        else:
            self._show_no_ledger(subject, host, trainer)
            return
        key, odd = self._rank_to_report(ranks)
        useful = work_sentence(work, ledger.step_seconds) if work is not None else ""
        job = next((job for job in host.jobs if any(t.key == key for t in job.trainers)), None)
        self._judged = of_ledger(LiveScene(host, self.session.history), trainer, ledger, job)
        causes = tuple(one.cause for one in self._judged)
        shown_odd = odd if len(ranks) > 1 else None
        weight = of_ranks(told)
        token = "text" if weight == "info" else SEVERITY_TOKENS[weight]
        sentence = answer(ledger, shown_odd, slow, slower, useful, causes, look, token)
        width = max(40, self._terminal[0] - HEAD_EDGES)
        self._head.show([subject, *styled.hang_lines([*stopped, *sentence], width)])
        glyphs = self._clock.tokens.glyphs
        self._clock.show_columns(with_names((row.words for row in ledger.whole), CLOCK))
        curable = of_rows(self._judged, told)
        self._clock.show(clock_rows(ledger, tokens_of(ledger), glyphs, curable))
        if len(ranks) > 1:
            by_key = {t.key: self._ledger(t) for t in ranks}
            names = {t.key: name_of(t) for t in ranks}
            self._ranks.show_columns(rank_columns(by_key, odd))
            self._ranks.show(rank_rows(by_key, names, odd, key, glyphs, weight))
            if not self._ranks.has_focus:
                self._ranks.move_to(trainer.key)
            set_title(self._ranks, "Ranks, time a step")
        else:
            self._ranks.show([])
        self._look = look
        self._show_gpu()
        if look is not None:
            ago = f"{short_age_text(age)} ago" if age is not None and age >= 60 else "just now"
            set_title(self._gpu, f"On the GPU, {ago}: busy {percent_text(look.busy_share)}")
        self._show_detail()
        self._list_findings(self._cases(ranks))
        self._share_out()

    def _show_no_ledger(self, subject: Line, host: HostView, trainer: TrainerView) -> None:
        """Say why there is no ledger, and show what the probe timed of the last steps."""
        lines = [*stopped_lines(trainer), *no_minutes(host, trainer)]
        rows = split_rows(trainer, self._clock.tokens.glyphs)
        if not rows:
            self._show_nothing([subject], lines)
            return
        basis = f"Below is the mean of the last {PARTS_STEPS} steps."
        self._show_nothing([subject, *lines, [(basis, "muted")]], [])
        self._clock.show_columns(with_names(PARTS.values(), GPU))
        self._clock.show(rows)

    def _show_nothing(self, head: Sequence[Line], lines: Sequence[Line]) -> None:
        self._drawn = ()
        self._head.show(head)
        self._clock.show_columns(())
        self._clock.show_empty(lines)
        self._look = None
        for table in (self._clock, self._ranks, self._gpu):
            table.show([])
        self._findings.show_findings([])
        self._share_out()

    def _about(self, table: LiveTable, key: str) -> tuple[str, list[Line]]:
        """Return the heading and the lines for a row of the clock or of the GPU."""
        host = self.session.host
        trainer = self.chosen(host) if host is not None else None
        if trainer is None:
            return "", []
        look, ledger = self._answers.look(trainer)[0], self._ledger(trainer)
        if table is self._gpu:
            name = row_of(key)
            seen_row = next((row for row in look.rows if row.name == name), None) if look else None
            if look is not None and seen_row is not None:
                return seen_row.words.capitalize(), list(gpu_detail(seen_row, look))
            return "", []
        row = next((row for row in ledger.whole if row.name == key), None)
        if row is not None:
            return row.words.capitalize(), list(row_detail(row, ledger, look, self._judged))
        return "Wall clock", [[(f"{coverage_text(ledger).capitalize()}.", "text")]]

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
        lines = top(about, self._findings.tokens.glyphs, MOST_FINDINGS, leave_out=frozenset())
        before = self._findings.rows
        self._findings.show_findings(lines)
        if before != len(lines):
            self._share_out()

    def show_charts(self, host: HostView) -> None:
        trainer = self.chosen(host)
        if trainer is None or not self._right.is_mounted or not self._right.display:
            return
        ledger = self._ledger(trainer)
        if not ledger.rows or not self._chart.display:
            return
        end = max(m["m"] / 1e9 + (m.get("seconds") or 0.0) for m in trainer.minutes)
        now = end if trainer.gone is not None else max(end, host.sampled_seconds or 0.0)
        column = int(now / (WINDOW_SECONDS / 100))
        ago = self.session.ago_seconds if trainer.gone is None else 0.0
        charted = (trainer.key, trainer.minutes, column, int(ago), self._terminal, self.app.theme)
        if charted == self._charted:
            return
        self._charted = charted
        recent = [m for m in trainer.minutes if m["m"] / 1e9 > now - WINDOW_SECONDS - 60.0]
        stack, moments = layers(recent, tokens_of(ledger))
        self._chart.show_empty("no steps in the last ten minutes")
        self._chart.show(
            stack, moments, WINDOW_SECONDS, None, now=now, title="Ten minutes, a step", ago=ago
        )

    def fit_to(self, width: int, height: int) -> None:
        self._drawn = self._charted = ()
        super().fit_to(width, height)

    # ── keys ──

    def take_focus(self) -> None:
        self.focus_on(self._clock)

    def do_next_pane(self) -> None:
        """Go to the next list; on a narrow terminal it takes the place below the rows.

        The history comes in turn there, too, where it has no room beside the rows.
        """
        lists = [one for one in (self._gpu, self._findings, self._ranks) if one.rows]
        panels: list[Painted] = [self._clock, *lists]
        now = next((panel for panel in panels if panel.has_focus), None)
        if self._terminal[0] < WIDE:
            panels.insert(1, self._chart)
            now = self._chart if self._below is self._chart else now
        panel = panels[(panels.index(now) + 1) % len(panels)] if now is not None else self._clock
        self._below = None if panel is self._clock else panel
        self._share_out()
        self.focus_on(self._clock if panel is self._chart else panel)
        if panel is self._chart and (host := self.session.host) is not None:
            self.show_charts(host)

    def do_down(self) -> None:
        """The next row or finding."""
        self._move(1)

    def do_up(self) -> None:
        """The row or finding before."""
        self._move(-1)

    def _move(self, by: int) -> None:
        if self._findings.has_focus:
            self._findings.move(by)
        else:
            self._clock.action_move(by)

    def do_next_trainer(self) -> None:
        self._turn(1)

    def do_previous_trainer(self) -> None:
        self._turn(-1)

    def _turn(self, by: int) -> None:
        host = self.session.host
        trainer = self.chosen(host) if host is not None else None
        if host is None or trainer is None:
            return
        keys = [t.key for t in self._trainers(host)]
        self._choose(keys[(keys.index(trainer.key) + by) % len(keys)])

    def _choose(self, key: str) -> None:
        self._chosen = key
        host = self.session.host
        if host is not None:
            self.show(host)
            self.show_charts(host)

    def do_look(self) -> None:
        """Ask whether to look at the GPU of this trainer."""
        from ..trainer.trainer_actions import open_act

        host = self.session.host
        open_act(program(self.app), "look", self.chosen(host) if host is not None else None)

    def do_work(self) -> None:
        """Derive the work of a step of this trainer; where none was counted, ask whether to."""
        from ..trainer.trainer_actions import open_act

        host = self.session.host
        trainer = self.chosen(host) if host is not None else None
        work = self._answers.work(trainer, host) if host is not None and trainer else None
        if work is not None and trainer is not None:
            step = self._ledger(trainer).step_seconds
            program(self.app).open("work", trainer.key, work, step)
        else:
            open_act(program(self.app), "work", trainer)

    def do_open(self) -> None:
        """What is known of the row, the rank or the finding under the cursor."""
        if self._findings.has_focus:
            self._findings.open()
        elif self._clock.cursor_key:
            self._open(self._clock, self._clock.cursor_key)

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        if event.table is self._clock:
            self._show_detail()

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        self._open(event.table, event.key)

    def _open(self, table: LiveTable, key: str) -> None:
        if table is self._ranks:
            self._choose(key)
        elif key != TOTAL:
            heading, lines = self._about(table, key)
            program(self.app).open("time_row", heading, lines)
        else:
            self.session.notices.hint("the wall clock is the sum of all rows: open one of them")

    async def on_finding_list_opened(self, event: FindingList.Opened) -> None:
        event.stop()
        await go_to_finding(self, event.key)
