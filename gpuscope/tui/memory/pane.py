"""This tab shows where every byte of one device is, and how that has changed.

It also has the allocator's own figures and the bytes by module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from ...model.fullest import PEAK_BASIS
from ...model.fullest_account import account_at_the_fullest
from ...model.reading_age import old_seconds
from ...store.view import HostView, TrainerView
from ...text.units import window_text
from ..shell.clock_at import clock_at
from ..shell.frozen_view import first_trainer_text
from ..shell.keymap import key_of
from ..shell.session import Session
from ..widgets.pane import Pane, set_title
from ..widgets.program import program
from ..widgets.table import LiveTable
from ..widgets.text import Lines
from .advice import SaidBefore, advice, alarm_of, fit_lines, is_growth, worst_of
from .first_subject import found_wrong, keys_of, least_headroom, room_of_subject, selected
from .more import More
from .side_by_side import FRAME_ROWS as FRAME
from .side_by_side import rows_of, side_by_side, title_of
from .subjects import Subject, kind_of, nothing_lines, page_of, subjects
from .views import ModulesView, SummaryView, show_account
from .waterfall import FRAME_ROWS, WaterfallChart
from .what_if import WhatIfView

if TYPE_CHECKING:
    from ...model.process_kind import ProcessKind
    from ..charts.stacked import StackedChart

WIDE, WIDEST = 100, 160
"""Columns from which on the timeline stands beside the waterfall, and tables beside it, too.

Between them the waterfall is the wider one: its bars say where every byte is.
"""
LEFT_SHARE = 0.6
TALL, CHART_ROWS = 20, 7
AROUND_ROWS = 4
"""Of the terminal: status line, tabs, the subject's line, footer."""
ROWS_FOR_A_CURE = 3
"""What to do about a lost device is worth the free rows of the waterfall, and its smallest part."""
TAB = "memory"


class MemoryPane(Pane, can_focus=True):
    """The tab with the waterfall at the left and the timeline at the right.

    On a narrow terminal the timeline stands below. A table takes the place of the waterfall, or
    on a wide terminal that of the timeline.
    """

    DEFAULT_CSS = """
    MemoryPane #subject { height: auto; padding: 0 2; }
    MemoryPane #memory-body, MemoryPane #waterfall, MemoryPane #timeline { height: 1fr; }
    MemoryPane #advice, MemoryPane #about-fix { padding: 0 2; }
    MemoryPane #modules, MemoryPane #what-if, MemoryPane #others,
    MemoryPane #counts, MemoryPane #more-chart { height: 1fr; }
    MemoryPane.narrow #memory-body { layout: vertical; }
    MemoryPane #left, MemoryPane #right { width: 1fr; height: 1fr; }
    MemoryPane.uneven #left { width: 3fr; }
    MemoryPane.uneven #right { width: 2fr; }
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._subject = Lines([[("waiting for the first reading", "muted")]], id="subject")
        self._waterfall = WaterfallChart(id="waterfall", classes="panel")
        self._advice = Lines(id="advice")
        self._others = Lines(id="others", classes="panel")
        self._right = Vertical(id="right")
        self._summary = SummaryView(session)
        self._modules = ModulesView(session)
        self._what_if = WhatIfView(session)
        self._more = More(session)
        self._chart: StackedChart | None = None
        self._chosen = self._wrong = self._first = ""
        self._view = "waterfall"
        self._terminal = (120, 40)
        self._wanted = 0
        self._window = 60.0
        self._drawn: tuple[object, ...] = ()
        self._found: tuple[str, ProcessKind | None] = ("", None)
        self._said: tuple[str, SaidBefore] = ("", SaidBefore())

    def compose(self) -> ComposeResult:
        self._waterfall.border_title = "Where the bytes are"
        self._others.border_title = "All GPUs"
        self._others.display = False
        for view in (self._summary, self._modules, self._what_if):
            view.table.display = False
        self._what_if.about.display = False
        yield self._subject
        with Horizontal(id="memory-body"):
            with Vertical(id="left"):
                yield self._waterfall
                yield self._advice
                yield self._others
                yield from self._more.below_waterfall
            with self._right:
                yield self._summary.table
                yield self._modules.table
                yield self._what_if.table
                yield self._what_if.about
                yield self._more.course
                yield self._more.fixes

    # ── numbers ──

    def _current(self, host: HostView) -> tuple[list[Subject], int]:
        """Return all subjects and the place of the chosen one.

        Where nothing is selected, it is a trainer whose memory the doctor finds wrong, else the one
        with the least headroom. It stays.
        """
        everything = subjects(host, self.session.state.filter)
        keys, selection = [subject.key for subject in everything], self.session.selection
        if selection.leads(TAB):
            if self._chosen in keys and selected(everything[keys.index(self._chosen)], selection):
                return everything, keys.index(self._chosen)
            places = (i for i, one in enumerate(everything) if selected(one, selection))
            if (place := next(places, None)) is not None:
                return everything, place
        if self._wrong not in keys:
            self._wrong = found_wrong(self.session, everything)
        if self._first not in keys:
            self._first = least_headroom(host, everything, self.session.history)
        first = self._wrong or self._first
        place = keys.index(first) if first else 0
        if first:
            selection.propose(TAB, *keys_of(everything[place]))
        return everything, place

    def _subject_now(self, host: HostView) -> Subject | None:
        everything, place = self._current(host)
        return everything[place] if everything else None

    def chosen(self, host: HostView) -> TrainerView | None:
        subject = self._subject_now(host)
        return subject.trainer if subject else None

    def show(self, host: HostView | None) -> None:
        everything, place = self._current(host) if host else ([], 0)
        if host is not None and self._view == "what_if":
            self._what_if.rows = self._terminal[1] - AROUND_ROWS
            self._what_if.show(host, everything[place] if everything else None)
        if host is None or not everything:
            self._subject.show(nothing_lines(host, self.session.state.filter))
            self._waterfall.show([])
            self._advice.show([])
            self._others.display = False
            self._more.hide()
            return
        subject = everything[place]
        hint = (
            f"   {place + 1} of {len(everything)}, {key_of('next_subject')}: next"
            if len(everything) > 1
            else ""
        )
        alarm = alarm_of(subject, self._subject.tokens.glyphs)
        self._subject.show([[(subject.title, "title"), *alarm, (hint, "faint")]])
        if self._has_left_side:
            self._show_waterfall(host, subject, everything)
        if self._view == "summary":
            before = self._summary.rows
            self._summary.show(subject)
            if self._summary.rows != before:
                self._share_out()
        elif self._view == "modules":
            self._modules.show(subject)

    def _show_waterfall(
        self, host: HostView, subject: Subject, everything: Sequence[Subject]
    ) -> None:
        found, now, seen = account_at_the_fullest(
            host, subject.device, subject.allocator, self.session.history
        )
        own = room_of_subject(host, subject, self.session.history)
        age = old_seconds(host, subject.allocator)
        show_account(self._waterfall, host, subject, found, now, seen, own, age)
        columns, rows = self._terminal
        finding = self._found[1] if self._found[0] == subject.key else None
        needed = len(found.parts) + FRAME_ROWS
        if self._said[0] != subject.key:
            self._said = (subject.key, SaidBefore())
        cases = self.session.doctor.cases if any(self.session.found) else ()
        diagnosis = worst_of(subject, cases)
        first = first_trainer_text(self.session.replay)
        lines = advice(host, subject, found, finding, diagnosis, self._said[1], seen, first)
        share = 1.0 if columns < WIDE else LEFT_SHARE if columns < WIDEST else 0.5
        width, beside = max(30, int(columns * share) - 4), int(columns * (1 - share)) - 4
        spare = rows - AROUND_ROWS - needed - len(found.beside) - 1
        if columns < WIDE and alarm_of(subject, self._waterfall.tokens.glyphs):
            spare += ROWS_FOR_A_CURE
        shown = fit_lines(lines, width, spare)
        self._advice.show(shown)
        left = rows - AROUND_ROWS - needed - len(found.beside) - len(shown)
        high = rows_of(everything, left) if columns >= WIDE else 0
        self._others.display = high > 0
        room, grows = (left - high if columns >= WIDE else 0), is_growth(diagnosis)
        more = self._more.show(host, subject, (width - 2, beside), room, self._view, grows)
        self._others.styles.height = high if more else "1fr"
        self._waterfall.styles.height = needed + len(found.beside) if high or more else "1fr"
        if high:
            past, most, glyphs = self.session.history, high - FRAME, self._others.tokens.glyphs
            set_title(self._others, title_of(everything, most))
            self._others.subtitle([(f"peak {PEAK_BASIS}", "faint")])
            lines = side_by_side(host, everything, subject, past, width - 2, most, glyphs)
            self._others.show(lines)
        if needed + len(shown) != self._wanted:
            self._wanted = needed + len(shown)
            self._share_out()

    def show_findings(self) -> None:
        host = self.session.host
        self.show(host)
        if host is not None:
            self.show_charts(host)  # a finding may lead to another subject

    # ── charts ──

    def show_charts(self, host: HostView) -> None:
        subject = self._subject_now(host)
        if subject is None:
            return
        self._recognise(host, subject)
        self._more.show_chart(host, subject, self._window)
        if not self._right.is_attached or not self._right.display or not self._has_chart:
            return
        from ..charts.stacked import StackedChart
        from .timeline import column_of, timeline

        if self._chart is None:
            self._chart = StackedChart(id="timeline", classes="panel")
            self._right.mount(self._chart, before=self._summary.table)
            self._share_out()
        now, clock = host.sampled_seconds, clock_at(self.session, host)
        drawn = (
            *(subject.key, self._window, column_of(now, self._window), clock is None),
            *(self._terminal, self._view, host.marks, self.app.theme),
        )
        if drawn == self._drawn:
            return
        self._drawn = drawn
        who = subject.device, subject.trainer, subject.allocator
        line = timeline(self.session, host, *who, self._window)
        self._chart.show(
            line.layers,
            line.seconds,
            line.window_seconds,
            line.capacity,
            now=now,
            title="Timeline" + f" {window_text(self._window)}" * (self._window > 60),
            ticks=line.ticks,
            steps=line.steps,
            peak=line.peak,
            clock=clock,
        )
        self._more.share_right(self._chart, self._terminal[1] - AROUND_ROWS, host, subject, line)

    def _recognise(self, host: HostView, subject: Subject) -> None:
        """Say what kind of process it is: seldom, as it looks at minutes."""
        found = subject.key, kind_of(host, subject, self.session.history)
        if found != self._found:
            self._found = found
            self.show(host)

    # ── room and keys ──

    @property
    def _has_left_side(self) -> bool:
        return self._view == "waterfall" or self._terminal[0] >= WIDEST

    @property
    def _has_chart(self) -> bool:
        width, height = self._terminal
        if self._view in ("modules", "what_if"):
            return self._view == "what_if" and self._what_if.roomy
        if self._view == "summary":
            return height - AROUND_ROWS - self._summary.rows - 3 >= CHART_ROWS
        return (
            width >= WIDE
            or self._view == "timeline"
            or (height >= TALL and height - AROUND_ROWS - self._wanted >= CHART_ROWS)
        )

    def fit_to(self, width: int, height: int) -> None:
        self._terminal = (width, height)
        self._drawn = ()
        self._share_out()

    def _share_out(self) -> None:
        """Give each part of the tab its place.

        On a wide terminal the waterfall and the timeline stand side by side; on a narrow one
        the timeline has what the waterfall leaves. A table needs the whole width, or half of a
        very wide terminal; the timeline stays above the summary where there is room.
        """
        if not self._right.is_mounted:
            return  # still starting, or leaving already
        wide, left = self._terminal[0] >= WIDE, self.query_one("#left")
        plain = self._view == "waterfall"
        below = plain and not wide and self._has_chart
        self.set_class(not wide, "narrow")
        self.set_class(plain and WIDE <= self._terminal[0] < WIDEST, "uneven")
        self._right.display = wide or not plain or below
        left.display = self._has_left_side
        left.styles.height = self._wanted if below else None
        if not self._has_left_side:
            self._more.hide()
        self._summary.table.display = self._view == "summary"
        self._summary.table.styles.height = self._summary.rows + 3 if self._has_chart else "1fr"
        self._modules.table.display = self._view == "modules"
        self._what_if.table.display = self._what_if.about.display = self._view == "what_if"
        if self._chart is not None:
            self._chart.display = self._has_chart

    def take_focus(self) -> None:
        tables = {"modules": self._modules.table, "what_if": self._what_if.table}
        self.focus_on(tables.get(self._view, self))

    def _look_at(self, view: str) -> None:
        self._view, self._drawn = view, ()
        host = self.session.host
        self._share_out()
        self.take_focus()
        self.show(host)
        self._share_out()
        if host is not None:
            self.show_charts(host)

    def _move(self, by: int) -> None:
        host = self.session.host
        everything, place = self._current(host) if host else ([], 0)
        if host is not None and everything:
            subject = everything[(place + by) % len(everything)]  # round, as on every other screen
            self._chosen = subject.key
            self.session.selection.choose(*keys_of(subject))
            self.show(host)
            self.show_charts(host)

    def do_down(self) -> None:
        """The next subject; in a table the next rows."""
        self._step(1)

    def do_up(self) -> None:
        """The subject before, or the rows before."""
        self._step(-1)

    def _step(self, by: int) -> None:
        tables = {"summary": self._summary.table, "what_if": self._what_if.table}
        table = tables.get(self._view)
        self._move(by) if table is None else table.action_move(by)

    def do_next_subject(self) -> None:
        self._move(1)

    def do_previous_subject(self) -> None:
        self._move(-1)

    def do_waterfall(self) -> None:
        """From a table or the timeline alone the waterfall, from there the timeline alone."""
        self._look_at("timeline" if self._view == "waterfall" else "waterfall")

    def do_counters(self) -> None:
        """Torch's summary; once more: the waterfall again."""
        self._look_at("waterfall" if self._view == "summary" else "summary")

    def do_modules(self) -> None:
        """Bytes by module; once more: the waterfall again."""
        self._look_at("waterfall" if self._view == "modules" else "modules")

    def do_what_if(self) -> None:
        """What each fix would free; once more: the waterfall again."""
        self._look_at("waterfall" if self._view == "what_if" else "what_if")

    async def do_try_fix(self) -> None:
        """The fix under the cursor as the Lab's switches, in its tab."""
        from ...predict.from_lab_config import config_with

        elsewhere = f"that key acts on the list of fixes: {key_of('what_if')}"
        chosen = self._what_if.chosen() if self._view == "what_if" else elsewhere
        if not isinstance(chosen, str):
            config = config_with(chosen[0], chosen[1].fix)
            if not isinstance(config, str):
                self.session.labs.take(config)
                self.session.notices.say(
                    f"set in the Lab: {chosen[1].fix.title}. {key_of('lab_run')}: run it"
                )
                await program(self.app).action_do("lab")
                return
            chosen = f"{chosen[1].fix.title}: {config}"
        self.session.notices.say(chosen, "warn")

    async def do_back(self) -> None:
        """Go from a table to the waterfall, else back as everywhere."""
        if self._view != "waterfall":
            self._look_at("waterfall")
        else:
            await self.app.main.do_back()  # type: ignore[attr-defined]

    def do_zoom(self) -> None:
        self._zoom(1)

    def do_zoom_back(self) -> None:
        self._zoom(-1)

    def _zoom(self, by: int) -> None:
        from .timeline import longest_window, next_window

        host = self.session.host
        subject = self._subject_now(host) if host else None
        if subject is None:
            return
        entity = subject.device or subject.allocator
        assert entity is not None
        column = "used_bytes" if subject.device else "parameter_bytes"
        replay = self.session.replay
        longest = longest_window(
            self.session.history(entity.id, column), replay.duration_seconds if replay else None
        )
        window = next_window(self._window, longest, by)
        if window == self._window:
            self.session.notices.say(
                f"the timeline covers less than {window_text(self._window)} so far"
            )
            return
        self._window, self._drawn = window, ()
        if replay is not None:
            replay.show_before(window)
        assert host is not None
        self.show_charts(host)

    def do_copy(self) -> None:
        """The summary as text, or the screen."""
        from ..terminal.copying import copy_screen, copy_text

        host = self.session.host
        subject = self._subject_now(host) if host else None
        text = self._summary.text(subject) if self._view == "summary" and subject else ""
        if text:
            copy_text(self.app, self.session.notices.say, text)
        else:
            copy_screen(self.screen, self.session.notices.say)

    async def do_open(self) -> None:
        """Open the device's page, or the job's where the training uses none.

        In the tree of modules it opens a branch, in the list of fixes a fix.
        """
        if self._view == "modules":
            self._modules.turn()
            return
        if self._view == "what_if":
            await program(self.app).action_do("try_fix")
            return
        if (host := self.session.host) and (subject := self._subject_now(host)):
            program(self.app).open(*page_of(host, subject))

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        if self._view == "what_if":  # it says what the fix under the cursor costs
            self.show(self.session.host)

    async def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        if self._view == "what_if":
            await program(self.app).action_do("try_fix")
        else:
            self._modules.turn()

    def do_expand(self) -> None:
        self._in_tree(lambda: self._modules.turn(True))

    def do_collapse(self) -> None:
        self._in_tree(lambda: self._modules.turn(False))

    def do_deeper(self) -> None:
        self._in_tree(lambda: self._modules.deepen(1))

    def do_shallower(self) -> None:
        self._in_tree(lambda: self._modules.deepen(-1))

    def do_order(self) -> None:
        self._in_tree(self._modules.reorder)

    def _in_tree(self, act: Callable[[], None]) -> None:
        if self._view == "modules":
            act()
        else:
            self.session.notices.say(f"that key acts on the tree of modules: {key_of('modules')}")
