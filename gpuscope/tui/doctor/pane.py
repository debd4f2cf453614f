"""This tab shows what is wrong, the worst first.

It has the arithmetic of each finding, what helps now, and the fixes for the next run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll

from ...doctor.order import SEVERITIES
from ...doctor.steps import copied_steps, marked_step, paste_of, steps_of
from ...store.view import HostView, TrainerView, by_key, by_pid
from ...text import styled
from ...text.styled import Line
from ...text.width import cells as text_cells
from ..background.finding_history import FOLDED, CaseGroup, all_well, group_cases
from ..background.log_entry import PROBE_LOST
from ..shell.keymap import key_of
from ..shell.selection import USER, keys_of, on_device
from ..shell.session import Session
from ..widgets.pane import WAITING, Pane, set_title
from ..widgets.program import program
from ..widgets.table import LiveTable
from ..widgets.text import Lines
from .as_it_was import as_it_was
from .case_table import CaseTable
from .checked_text import about, elsewhere, ended_page, happened, known_pitfalls, related
from .filter_text import text_of
from .finding_course import FindingCourse
from .proof import Proof, proof_of
from .text import (
    ABOUT,
    COLUMNS,
    TABLE_GAP,
    about_row,
    columns,
    detail,
    row_of,
)

if TYPE_CHECKING:
    from ...doctor.finding import Pitfall
    from ..background.doctor_watch import DoctorWatch

EXAMINED, ELSEWHERE = "What was checked", "What else can be checked"
WIDE = 160
"""Columns from which on a finding stands beside what was checked."""
KINDS_OF_PAST = ("jobs", "memory", "gpu", "probe")
"""What happened besides findings, which the other panel has."""
STACK_SECONDS = 5.0
"""How often a trainer that hangs is asked where it stands, while that is shown."""
CHECKED_SECONDS = 2.0
"""How old the figures of what was checked may be, on the clock of the host."""
PAINTED_SECONDS = 0.1
"""After this long the list is looked at again, whose width decides what the finding says."""
AROUND_ROWS, TITLE_EDGES = 3, 4
"""Status line, tabs and footer; cells of a border that its title leaves free."""
ROOMY_ROWS, COURSE_ROWS = 30, 50
LIST_SHARE, LIST_ROWS = 0.34, 3
"""Of the rows that the list may take above a finding, and how many it has in any case."""


class DoctorPane(Pane):
    """The tab with the list of findings, and below it the one under the cursor in full.

    Where there is room, what was checked stands beside that one. The list has the whole width: its
    rows are told to their end there, with where and since when.
    """

    DEFAULT_CSS = """
    DoctorPane #doctor-below { height: 1fr; }
    DoctorPane #finding { height: 1fr; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    DoctorPane #examined { display: none; width: 44%; height: 1fr; }
    DoctorPane #doctor-right { width: 1fr; height: 1fr; }
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._table = CaseTable(
            COLUMNS, empty=WAITING, gap=TABLE_GAP, id="findings", classes="panel"
        )
        self._lines = Lines()
        self._wrapped = 0, 0, 0
        """For how many cells the finding, what was examined, and the list were written."""
        self._scroll = VerticalScroll(self._lines, id="finding", classes="panel", can_focus=True)
        self._examined = Lines(id="examined", classes="panel")
        self._course = FindingCourse(classes="panel")
        self._groups: dict[str, CaseGroup] = {}
        self._shown = ""
        self._unfolded = False
        """Whether each trainer that ended earlier has a row of its own."""
        self._checked: tuple[object, float, list[Line]] = None, 0.0, []
        """What the page of what was checked was made for, when, and the page."""
        self._related: tuple[tuple[str, int], list[Line]] = ("", 0), []
        self._turned = 0
        self._height = 0
        self._keys: tuple[object, ...] = ()
        self._terminal = (120, 40)

    def compose(self) -> ComposeResult:
        self._table.border_title = "Findings"
        self._examined.border_title = EXAMINED
        yield self._table
        with Horizontal(id="doctor-below"):
            yield self._examined
            with Vertical(id="doctor-right"):
                yield self._scroll
                yield self._course

    @property
    def doctor(self) -> DoctorWatch:
        """What the doctor of this session knows."""
        return self.session.doctor

    # ── drawing ──

    def show(self, host: HostView | None) -> None:
        if host is None:
            return
        glyphs = self._table.tokens.glyphs
        needle = self.session.state.filter.casefold()
        every = group_cases(self.doctor.cases)
        if self._unfolded and (folded := next((one for one in every if one.key == FOLDED), None)):
            every += folded.unfolded()
        groups = [group for group in every if needle in text_of(group, host)]
        self._groups = {group.key: group for group in groups}
        hidden = len(every) - len(groups)
        self._table.border_subtitle = (
            f"{hidden} more without {needle!r}   {key_of('back')}: all" if hidden else ""
        )
        rows = [row_of(group, host, glyphs, self.doctor.ended) for group in groups]
        checked = about_row(self.doctor, host, glyphs)
        rows = [checked, *rows] if all_well(self.doctor.cases) else [*rows, checked]
        self._table.show_columns(columns(rows, self._table.size.width or self._terminal[0] - 4))
        self._table.show(rows)
        if not self._table.held and self._is_graver(rows[0].key):
            self._table.move_to(rows[0].key)
        self._share_out(len(rows))
        self._show_chosen(host)
        self.doctor.see_deaths()

    def _is_graver(self, key: str) -> bool:
        """Return whether the finding of this row is graver than the one under the cursor.

        That one is being read.
        """
        here, there = self._group(), self._groups.get(key)
        if key == ABOUT:
            return here is None or here.first.dead or here.first.past
        if here is None or there is None or here.first.past:
            return True
        if here.first.dead != there.first.dead:
            return here.first.dead
        return SEVERITIES[there.first.finding.severity] < SEVERITIES[here.first.finding.severity]

    def choose(self, pitfall: str, where: str) -> bool:
        """Put the cursor on a finding; return whether it is there."""
        self.show(self.session.host)
        alike = [
            (case.finding.where == where, group.key)
            for group in self._groups.values()
            for case in (group.first, *group.others)
            if case.finding.pitfall == pitfall
        ]
        if alike:
            self._table.hold(max(alike)[1])
            self.show(self.session.host)
        return bool(alike)

    def show_findings(self) -> None:
        self.show(self.session.host)

    def _show_chosen(self, host: HostView) -> None:
        """The finding under the cursor in full."""
        group = self._group()
        key = group.key if group is not None else ABOUT
        if key != self._shown:
            self._shown, self._turned = key, 0
            self._scroll.scroll_home(animate=False)
        glyphs, cells = self._table.tokens.glyphs, self._cells()
        self._wrapped = self._widths()
        if group is None:
            self.doctor.why_no_proof, self.doctor.more_fixes = "no finding is selected", False
            self._lines.show(self._about(host, cells))
            set_title(self._scroll, EXAMINED)
        elif group.key == FOLDED:
            self.doctor.why_no_proof, self.doctor.more_fixes = "several trainers in one row", False
            self._lines.show(ended_page(group, self.doctor.ended, host, glyphs, cells))
            set_title(self._scroll, "Jobs that ended")
        else:
            proof = self._proof(group)
            if self.session.replay is not None and isinstance(proof, Proof):
                proof = f"{proof.text}   in a live session: this is a replay"
            self.doctor.why_no_proof = proof if isinstance(proof, str) else ""
            replayed = bool(host.badge)
            finding = group.first.finding
            mark = marked_step(finding, replayed, self._turned)
            self.doctor.more_fixes = len(copied_steps(finding, replayed)) > 1
            row = (self.doctor.table or {}).get(finding.pitfall)
            tight = self._terminal[1] < ROOMY_ROWS
            stack = self._stack(group, host)
            rest = self._background(group, row, cells) if row is not None and not tight else ()
            fits = text_cells(finding.title) <= cells - TITLE_EDGES
            titled = not fits and not self._shows_title(group, host)
            self._lines.show(
                detail(group, host, row, proof, mark, glyphs, cells, tight, stack, titled, rest)
            )
            room = cells - TITLE_EDGES
            set_title(self._scroll, styled.plain(styled.cut_whole([(finding.title, "")], room)))
        taken = AROUND_ROWS + self._height + self._lines.rows + 2
        free = self._terminal[1] - taken if self._is_wide else 0
        self._course.follow(self.session, host, group.first if group is not None else None, free)
        self._show_examined(group, host)
        keys = (self.doctor.why_no_proof, self.doctor.more_fixes)
        if keys != self._keys:  # what the footer offers has changed
            self._keys = keys
            self.call_later(self.app.main._footer)  # type: ignore[attr-defined]
        self.call_after_refresh(self._say_more)

    def _show_examined(self, group: CaseGroup | None, host: HostView) -> None:
        """Fill the place beside a finding: with what was checked, or with what can be."""
        self._examined.display = self._is_wide
        if not self._examined.display:
            return
        cells = self._examined_cells()
        set_title(self._examined, EXAMINED if group is not None else ELSEWHERE)
        if group is None:
            events = self.session.happened.on(host).newest(KINDS_OF_PAST)
            lines = elsewhere(cells)
            glyphs, now = self._table.tokens.glyphs, host.wall_seconds
            before = self.doctor.ended_here
            lines += happened(self.doctor.deaths, events, glyphs, cells, now, before)
            rows = self._examined.size.height - len(lines)
            lines += known_pitfalls(self.doctor.table or {}, cells, rows)
            self._examined.show(lines)
            return
        lines, table = self._about(host, cells), self.doctor.table or {}
        if (row := table.get(group.first.finding.pitfall)) is not None:
            if (row.id, cells) != self._related[0]:
                self._related = (row.id, cells), related(row, table, cells)
            lines = [*lines, *self._related[1]]
        self._examined.show(lines)

    def _about(self, host: HostView, cells: int) -> list[Line]:
        """Return what was checked, and the findings that there were until now.

        Its figures are read from many histories. They are read again after a while, and at once
        where anything was found, ended or happened, or where another moment is looked at.
        """
        known = tuple((c.number, c.past, c.finding.severity) for c in self.doctor.cases)
        journal, now = self.session.happened.on(host), host.sampled_seconds or 0.0
        key = (
            host.key, cells, self._terminal, self.app.theme, known, id(journal), journal.changes,
            self.doctor.table is None, self.session.paused_seconds, len(self.doctor.pending),
        )  # fmt: skip
        before, at, lines = self._checked
        if key != before or not 0 <= now - at < CHECKED_SECONDS:
            lines = self._checked_now(host, cells)
            self._checked = key, now, lines
        return lines

    def _checked_now(self, host: HostView, cells: int) -> list[Line]:
        journal = self.session.happened.on(host)
        opened = journal.of_group("findings")
        ends = [one for one in journal.of_group("jobs") if one.serial.endswith("/end")]
        over = [one for one in ends if one.word != PROBE_LOST]
        tight = self._terminal[1] < ROOMY_ROWS
        return about(
            self.doctor,
            host,
            self.session.history,
            opened,
            self._table.tokens.glyphs,
            cells,
            tight,
            over,
            self._is_wide and self._terminal[1] >= COURSE_ROWS,
            as_it_was(self.session, host, self._table.tokens.glyphs, cells),
        )

    def _background(self, group: CaseGroup, row: Pitfall, cells: int) -> list[Line]:
        """Return the rest of what is known of the pitfall."""
        from ...doctor.explain import background

        replayed = self.session.replay is not None
        return background(row, steps_of(group.first.finding, replayed), cells, replayed)

    def _shows_title(self, group: CaseGroup, host: HostView) -> bool:
        """Return whether the row of a finding in the list shows its title to the end."""
        cell = row_of(group, host, self._table.tokens.glyphs).cells["what"]
        return isinstance(cell, list) and styled.cells(cell) <= self._table.width_of("what")

    def _stack(self, group: CaseGroup, host: HostView) -> list[Line]:
        """Return the stack of a hung trainer, which is requested only while it is on screen."""
        case = group.first
        trainer = by_pid(host.trainers, case.pid)
        if not case.finding.cause.startswith("stall.") or case.past:
            return []
        if trainer is None or trainer.gone is not None or self.session.replay is not None:
            return []
        from .stack_text import stack_text

        asker = self.session.asker
        if self.session.paused_seconds is not None:
            return stack_text(asker.seen(trainer, "stacks"))
        return stack_text(asker.latest(trainer, "stacks", every_seconds=STACK_SECONDS))

    def _say_more(self) -> None:
        """Say that there is more text than room.

        That, and how wide the room is, are known once the text is laid out.
        """
        if self._wrapped != self._widths():
            self.show_findings()
            return
        if self._table.size.width and not self._table.width_of("what"):
            self.set_timer(PAINTED_SECONDS, self._say_more)  # the list is not drawn yet
        more = (
            f"{key_of('text_down')}: more"
            if self._scroll.max_scroll_y > self._scroll.scroll_y
            else ""
        )
        if str(self._scroll.border_subtitle or "") != more:
            self._scroll.border_subtitle = more

    def _widths(self) -> tuple[int, int, int]:
        return self._cells(), self._examined_cells(), self._table.width_of("what")

    def _cells(self) -> int:
        """Cells of a line of the finding."""
        return max(30, (self._scroll.size.width or self._terminal[0] - 5) - 1)

    def _examined_cells(self) -> int:
        return max(30, (self._examined.size.width or 80) - 1)

    def _group(self) -> CaseGroup | None:
        return self._groups.get(self._table.cursor_key or "")

    def _proof(self, group: CaseGroup) -> Proof | str:
        finding = group.first.finding
        row = (self.doctor.table or {}).get(finding.pitfall)
        replay = self.session.replay
        return proof_of(finding, row, None if replay is None else replay.path)

    # ── room ──

    @property
    def _is_wide(self) -> bool:
        return self._terminal[0] >= WIDE

    def fit_to(self, width: int, height: int) -> None:
        self._terminal = (width, height)
        self._share_out(len(self._table.rows))

    def _share_out(self, rows: int) -> None:
        """The list takes what it needs up to its share."""
        height = self._terminal[1]
        frame = 0 if height < 20 else 2
        most = max(LIST_ROWS, int((height - AROUND_ROWS) * LIST_SHARE) - frame)
        wanted = min(max(rows, 1) + 1, most) + frame
        if self._height != wanted:
            self._height = wanted
            self._table.styles.height = wanted

    # ── keys ──

    def take_focus(self) -> None:
        self.focus_on(self._table)
        host, selection = self.session.host, self.session.selection
        if host is not None and selection.by == USER:
            self.show(host)
            found = by_key(host.trainers, selection.trainer)
            device = by_key(host.devices, selection.device)
            found = found or (on_device(host, device) if device is not None else None)
            pid = found.definition.pid if found is not None else None
            of_it = (g.key for g in self._groups.values() if pid and pid in _pids_of(g))
            if (here := self._group()) is None or pid not in _pids_of(here):
                self._table.hold(next(of_it, ""))

    def choose_row(self, key: str) -> None:
        """Put the cursor on this finding, where it still holds."""
        self.show(self.session.host)
        self._table.hold(key)

    def chosen(self, host: HostView) -> TrainerView | None:
        """Return the trainer that the finding is about."""
        group = self._group()
        pid = group.first.pid if group is not None else None
        found = by_pid(sorted(host.trainers, key=lambda t: t.gone is not None), pid)
        return found or super().chosen(host)

    def chosen_pid(self) -> int | None:
        """Return the process that the finding is about, while it runs."""
        return self.chosen_trainer_pid()

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        host, group = self.session.host, self._group()
        if host is not None:
            trainer = by_pid(host.trainers, group.first.pid) if group is not None else None
            if event.by_user and trainer is not None and trainer.gone is None:
                self.session.selection.choose(*keys_of(host, trainer))
            self._show_chosen(host)

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        self.do_open()

    def do_scroll(self, by: int) -> None:
        """Read on or back by half a page in the finding."""
        self.do_move(by * max(1, self._scroll.size.height // 2))

    def do_move(self, by: int) -> None:
        """Read on or back in the finding where it has the focus."""
        self._scroll.scroll_relative(y=by, animate=False)
        self.call_after_refresh(self._say_more)

    def do_next_pane(self) -> None:
        """Go from the list to the text, and back."""
        self.focus_on(self._scroll if self._table.has_focus else self._table)

    def do_next_fix(self) -> None:
        """Mark the next fix that can be copied."""
        self._turned += 1
        self.show_findings()

    def do_copy(self) -> None:
        """The marked fix if it has a line that runs; where no finding is marked, the screen."""
        from ..terminal.copying import copy_screen, copy_text

        main = self.app.main  # type: ignore[attr-defined]
        group = self._group()
        replayed = self.session.replay is not None
        finding = group.first.finding if group is not None and group.key != FOLDED else None
        mark = marked_step(finding, replayed, self._turned) if finding is not None else None
        if finding is None:
            copy_screen(main, self.session.notices.say)
        elif mark is None:
            self.session.notices.say("not copied: this fix has no command that runs unchanged")
        else:
            text = paste_of(steps_of(finding, replayed)[mark])
            copy_text(self.app, self.session.notices.say, text + "\n")
        main.refresh_frame()

    def do_open(self) -> None:
        """Open the whole explanation of the pitfall, or unfold what ended earlier."""
        group = self._group()
        if group is not None and group.key == FOLDED:
            self._unfolded = not self._unfolded
            self.show_findings()
            return
        table = self.doctor.table or {}
        row = table.get(group.first.finding.pitfall) if group is not None else None
        if row is not None:
            program(self.app).open("pitfall", row)

    async def do_prove(self) -> None:
        """Prove the finding in the Lab, by a script, by switches, or by measuring.

        Each of them asks before it starts.
        """
        group = self._group()
        proof = self._proof(group) if group is not None else ""
        if isinstance(proof, Proof):
            await self._prove(proof)

    async def _prove(self, proof: Proof) -> None:
        """Go to the Lab and lay the proof ready there.

        Nothing starts before it is confirmed.
        """
        app, runs = program(self.app), self.session.labs
        await app.action_do("lab")
        if proof.pitfall:
            app.open("lab_pitfalls", runs, proof.pitfall)
        elif proof.words:
            app.open("proof", runs, proof)
        elif len(proof.configs) == 2:
            app.open("lab_repeat", runs, *proof.configs)
        else:
            runs.take(proof.configs[0])
            flags = " ".join(proof.configs[0].flags())
            then = "r runs them, then compare with a run without"
            self.session.notices.say(f"set to reproduce it ({flags}): {then}")


def _pids_of(group: CaseGroup) -> set[int | None]:
    """Return the processes that a finding still holds for."""
    return {case.pid for case in (group.first, *group.others) if not case.past}
