"""This is the one screen behind the tabs, which also carries out the actions.

It has the status line, the tabs, the visible pane, the filter and the footer.
"""

from __future__ import annotations

import math
import time
from inspect import isawaitable
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen

from ...text.styled import Line
from ..charts.chart_schedule import ChartPace
from ..shell.actions import ACTIONS, BY_NAME, handler_of
from ..shell.footer import tab_ends, tab_hints
from ..shell.keymap import bindings, key_of
from ..shell.session import Session
from ..terminal.soon import Silence, draw_before_showing, once_after_refresh, soon
from ..widgets.key_line import KeyLine
from ..widgets.pane import Pane, ViewChanged, Waiting
from ..widgets.program import program
from ..widgets.status import Situation, StatusLine
from .garbage import collect_seldom
from .header import TabLine
from .tabs import PANELS, TABS, make_pane

if TYPE_CHECKING:
    from textual.timer import Timer

    from ...store.view import HostView

AGES_SECONDS = 1.0
BUSY_PERCENT = 95.0
"""From this load of all cores on, a slow terminal is the machine's doing."""


class MainScreen(Screen[None], inherit_bindings=False):
    """The tabs of one session."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]

    def __init__(self, session: Session, start: str) -> None:
        super().__init__()
        self.session = session
        session.tab = self._start = self._wish = start
        """The visible tab, the first one, and the one asked for last: it is visible as soon as it
        is built.
        """
        self._panes: dict[str, Pane] = {}
        self._charts = ChartPace()
        self._charts_timer: Timer | None = None
        self._pictured: HostView | None = None
        """The host as it was in the last picture."""
        self._silence = Silence(AGES_SECONDS, self._tick)
        self._foot_drawn = 0.0
        self._said: tuple[object, ...] = ()
        self._fleet_offered = False
        self._announced = False
        """Whether a new picture waits for its turn."""
        self._stale = False
        """Whether pictures came that were not drawn, because a screen covers the tabs."""

    def compose(self) -> ComposeResult:
        yield StatusLine(id="status")
        yield TabLine(
            [tab for tab in TABS if tab != "fleet" or self.tab == tab], self.tab, id="tabs"
        )
        yield Waiting(PANELS[self.tab])
        yield KeyLine(id="footer")

    async def _reveal(self, tab: str) -> None:
        """Make a tab the visible one; its first visit builds it.

        Where another tab is asked for meanwhile, that one is shown.
        """
        self._wish = tab
        if not self.is_attached:  # somebody leaves already, maybe before the first tab was built
            return
        new = tab not in self._panes
        if new:
            pane = self._panes[tab] = make_pane(self.session, tab)
            pane.display = False
            await self.mount(pane, before="#footer")
            if not pane.is_mounted:  # somebody has left meanwhile
                return
            pane.fit_to(*self.size)
        if tab != self._wish or not self._panes[tab].is_mounted:  # it is being built
            return
        with self.app.batch_update():  # the first frame that is shown has what is known already
            self.session.tab = tab
            self.query("#waiting").remove()
            for name, pane in self._panes.items():
                pane.display = name == tab
            await draw_before_showing(self, self.pane, self.refresh_all, new)
            if self.is_running and not self.pane.typing:
                self.pane.take_focus()

    def on_mount(self) -> None:
        self.refresh_frame()
        self.call_after_refresh(self._begin)

    async def _begin(self) -> None:
        """Start listening after the first paint, and look after what ages by itself."""
        collect_seldom()
        self.session.start(self._announce)
        # somebody may have been quicker, and what they asked for is being built
        await self._reveal(self._wish)
        if not self.is_running:
            return
        self.refresh_all()
        if self.session.many:
            await self._offer_fleet()
        self._silence.heard(self.app)

    def _tick(self) -> None:
        """Update ages on screen when no picture has come for a while."""
        if not self.is_running:
            return
        self.refresh_frame()
        waits = self.session.doctor.waits and self.session.paused_seconds is None
        if waits or self.session.replay is not None:  # stopped or moved by whoever: charts follow
            self._draw()
        self._silence.heard(self.app)

    def _announce(self) -> None:
        if self.session.many and not self._fleet_offered:
            self.post_message(ViewChanged())  # offering it waits for a tab to be built
        elif not self._announced:
            self._announced = True
            soon(self.app, self._view_changed)

    # ── drawing ──

    @property
    def tab(self) -> str:
        return self.session.tab

    @property
    def pane(self) -> Pane:
        """The visible tab."""
        return self._panes[self.tab]

    async def on_view_changed(self, _: ViewChanged) -> None:
        if self.session.many and self.tab in self._panes:
            await self._offer_fleet()
        self._view_changed()

    def _view_changed(self) -> None:
        self._announced = False
        if not self.is_running:
            return
        self._open_wanted()
        if self.session.alerts is not None and self.session.alerts.rings():
            self.app.bell()
        self._silence.heard(self.app)
        if self._waits_for_charts():
            return
        self._top()
        if time.monotonic() - self._foot_drawn > 0.9 * AGES_SECONDS:
            self._footer()  # what can be asked of a trainer comes and goes with it
        if self.session.paused_seconds is None:
            self._draw()
        elif (
            self.tab in self._panes
            and self.pane.is_mounted
            and (host := self.session.host) is not None
        ):
            self._draw_charts(host)  # their axes say how long ago it was

    async def _offer_fleet(self) -> None:
        """Begin with all hosts where there are several.

        Whoever came for a process of one host sees that one.
        """
        if self._fleet_offered:
            return
        self._fleet_offered = True
        self.query_one(TabLine).offer(list(TABS))
        # who has gone elsewhere by now stays there
        here = self._wish == self._start and self.tab in self._panes
        if (
            here
            and not self.pane.typing
            and self.session.hosts is not None
            and not self.session.hosts.wanted
        ):
            await self.show_tab("fleet")

    def refresh_all(self) -> None:
        """Draw everything now, charts too: after a change of what is looked at."""
        self._charts.now()
        self._said = ()  # there may be more room, or less
        self.refresh_frame()
        self._draw()

    def _draw(self) -> None:
        drawn = self.is_running and self.is_attached  # else somebody leaves
        if not drawn or self.tab not in self._panes or not self.pane.is_mounted:
            return
        # First, so that the numbers and the findings of a frame are of one picture.
        judged = self.session.host is not None and self.session.judge()
        host = self.session.host
        self._pictured = host
        if self.session.replay is not None:
            self._top()  # its clock is that of the panels
        self._stale = any(getattr(one, "covers_all", False) for one in self.app.screen_stack)
        if not self._stale:
            self.pane.show(host)
            now = self.session.host
            if now is not None and (host is None or now.key != host.key):
                self._top()  # a list of hosts began with another one
            if host is not None:
                self._draw_charts(host)
        if judged:
            self.show_findings()

    def on_screen_resume(self) -> None:
        """Nothing covers the tabs any more: what they missed is drawn."""
        if self._stale:
            self._stale = False
            self.refresh_all()

    def show_findings(self) -> None:
        """The doctor has looked, or learnt something aside."""
        self._top()
        if self.tab in self._panes and self.pane.is_mounted and not self._stale:
            self.pane.show_findings()

    def _waits_for_charts(self) -> bool:
        """Leave a picture of a fast replay out until its charts are due: all is of one moment."""
        session = self.session
        if session.replay is None or not session.replay.fast or session.host is None:
            return False
        wait = self._charts.wait(time.monotonic(), session.host.sampled_seconds, 0.0)
        if 0 < wait < math.inf and self._charts_timer is None:
            self._charts_timer = self.set_timer(wait, self._draw_late)
        return 0 < wait < math.inf

    def _draw_charts(self, host: HostView) -> None:
        now, moment = time.monotonic(), host.sampled_seconds
        if moment is not None:
            moment += self.session.ago_seconds
        wait = self._charts.wait(now, moment, self.session.charts_seconds)
        if wait == 0:
            self._charts.drawn(now, moment)
            self.pane.show_charts(host)
            return
        self.pane.show_figures(host)
        if wait < math.inf and self._charts_timer is None:
            # the last picture of a burst gets its charts too
            self._charts_timer = self.set_timer(wait, self._draw_late)

    def _draw_late(self) -> None:
        self._charts_timer = None
        self._draw()

    def refresh_frame(self) -> None:
        """Draw the status line, the tabs and the footer again."""
        self._top()
        self._footer()

    def _footer(self) -> None:
        session, self._foot_drawn = self.session, time.monotonic()
        frozen = session.paused_seconds is not None
        on_jobs = self.focused is not None and self.focused.id == "jobs"
        hints = tab_hints(self.tab, session.why_not, frozen, session.hangs, on_jobs)
        self.query_one(KeyLine).show(hints, tab_ends())

    def _top(self) -> None:
        """Status line and tabs."""
        session, host = self.session, self.session.host
        if session.replay is not None and session.replay.fast:
            host = self._pictured or host  # findings come between two pictures
        place = session.hosts.place() if session.hosts is not None else ""
        load = host.number("cpu_percent") if host is not None else None
        busy = load is not None and load >= BUSY_PERCENT
        slow = session.link.text(session.charts_seconds, busy) if session.link is not None else ""
        situation = Situation(
            *(session.frozen_text(), session.replay_text(), session.cpu_percent(), place, slow),
            *session.found[2:],
        )
        self.query_one(StatusLine).show(host, situation, session.history)
        notice = session.notices.current
        said_now: Line = (
            [(notice.text, "text" if notice.severity == "ok" else notice.severity)]
            if notice
            else []
        )
        tabs = self.query_one(TabLine)
        alerts = session.alerts.active if session.alerts is not None else []
        hint = tabs.hint([one.text for one in alerts], self.filter_text, session.state.mine)
        drawn = (self.tab, said_now, hint, session.found)
        if drawn == self._said:
            return
        self._said = drawn
        tabs.count("doctor", *session.found[:2])
        fits = tabs.has_room_for(hint)
        tabs.show(self.tab, hint if fits else ())
        self.query_one(KeyLine).say(said_now or (() if fits else hint))

    def on_resize(self, event: events.Resize) -> None:
        self._fit_to(event.size.width, event.size.height)

    def _fit_to(self, width: int, height: int) -> None:
        self.set_class(height < 20, "tiny")
        for pane in self._panes.values():
            pane.fit_to(width, height)
        once_after_refresh(self, self.refresh_all)

    # ── actions ──

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action != "do":
            return True
        return BY_NAME[str(parameters[0])].applies(self.tab)

    async def action_do(self, name: str) -> None:
        """Carry out an action of the registry; say why when this session cannot."""
        self.session.notices.unhint()
        reason = self.session.why_not(name)
        if reason:
            self.tell(f"{BY_NAME[name].label}: {reason}")
        elif name in TABS:
            await self.show_tab(name)
        else:
            pane = self._panes.get(self.tab)  # none before the first frame
            handler = handler_of(name, pane, self, self.app)
            done = handler() if handler else None
            if isawaitable(done):
                await done
            self.refresh_frame()

    async def go_and_do(self, name: str) -> None:
        """Carry out an action from anywhere: one that is for another tab goes there first."""
        where = [tab for tab in BY_NAME[name].where if not self.session.why_not(tab)]
        if where and self.tab not in where and not self.session.why_not(name):
            await self.show_tab(where[0])
        await self.action_do(name)

    def hosts_changed(self) -> None:
        """Another host is looked at, or there is one more."""
        if self.session.many:
            self._fleet_offered = True
            self.query_one(TabLine).offer(list(TABS))
        self.refresh_all()

    async def show_tab(self, name: str) -> None:
        """Go to a tab, and draw it once more when its first frame is on the screen."""
        await self._reveal(name)
        once_after_refresh(self, self.refresh_all)

    async def on_tab_line_chosen(self, event: TabLine.Chosen) -> None:
        await self.show_tab(event.name)

    def do_pause(self) -> None:
        self.session.toggle_pause()
        self.refresh_all()

    def do_speed(self, faster: bool) -> None:
        """Take more samples a second, or play a recording faster."""
        session = self.session
        (session.change_rate if session.replay is None else session.change_speed)(faster)
        self.refresh_frame()

    def do_seek(self, seconds: float) -> None:
        self.session.seek(seconds)
        if self.session.replay is None:  # a replay says itself when it has moved
            self.refresh_all()
        self.refresh_frame()

    def do_host(self, by: int) -> None:
        self.session.next_host(by)
        self.refresh_all()

    def do_connect_again(self) -> None:
        self.session.connect_again()
        self.refresh_all()

    def _open_wanted(self) -> None:
        """Open the job of the process that somebody came for, once it is seen.

        It takes the keyboard, so it waits until nobody types a filter or is asked something.
        """
        if self.app.screen is not self or (self.tab in self._panes and self.pane.typing):
            return
        found = self.session.sought()
        if found is not None:
            program(self.app).open("pid", *found)

    def do_mine(self) -> None:
        state, key = self.session.state, key_of("mine")
        state.mine = not state.mine
        self.session.notices.say(f"only what is mine, {key}: all" if state.mine else "all users'")
        self.refresh_all()

    async def do_filter(self) -> None:
        """Open the line to type into.

        This is awaited: the next key belongs to the line already.
        """
        from ..widgets.filter import FilterLine

        if self.is_attached and not self.query(FilterLine):
            line = FilterLine(self.filter_text)
            await self.mount(line, before="#footer")
            self.set_focus(line)

    @property
    def filter_text(self) -> str:
        """What must stand in a row to be shown; hosts have a filter of their own."""
        return self.session.fleet_filter if self.tab == "fleet" else self.session.state.filter

    def set_filter(self, text: str) -> None:
        """Show only what contains ``text``."""
        if self.tab == "fleet":
            self.session.fleet_filter = text
        else:
            self.session.state.filter = text
        self.refresh_all()

    async def do_back(self) -> None:
        if self.session.paused_seconds is not None:
            self.do_pause()
        elif self.filter_text:
            self.set_filter("")
        elif self.session.many and self.tab != "fleet":
            await self.show_tab("fleet")
        else:
            self.tell(f"nothing is open to go back from. {key_of('quit')} leaves gpuscope")

    def do_move(self, by: int) -> None:
        """A list that has the focus moves by itself; panes without one have nothing to move."""
        self.do_next_pane()

    def do_next_pane(self) -> None:
        self.tell("this tab has no list to move in")

    def do_open(self) -> None:
        """Say that there is no row to open; a table under the cursor opens its rows itself."""
        self.tell("there is no row to open here")

    def tell(self, text: str) -> None:
        """Say for a while what a key would need, or where it does something."""
        self.session.notices.hint(text)
        self.refresh_frame()

    def do_copy(self) -> None:
        from ..terminal.copying import copy_screen

        copy_screen(self, self.session.notices.say)
        self.refresh_frame()

    def do_theme(self) -> None:
        from ..theme import next_theme

        name = next_theme(self.app.theme)
        program(self.app).choose_theme(name)
        after = (
            "NO_COLOR hides its colours" if self.app.no_color else f"{key_of('theme')}: the next"
        )
        self.session.notices.say(f"theme: {name}, {after}")

    def do_palette(self) -> None:
        self.app.action_command_palette()

    def do_act(self, name: str) -> None:
        """Ask whether the trainer that is looked at is to do this."""
        from ..shared.trainer_actions import open_act

        host = self.session.host
        open_act(program(self.app), name, self.pane.chosen(host) if host is not None else None)
        self.refresh_frame()

    def do_attach(self) -> None:
        program(self.app).open("attach", self.pane.chosen_pid())

    def do_processes(self) -> None:
        program(self.app).open("processes")

    def do_signal(self) -> None:
        """Ask which signal the process that is looked at is to get."""
        program(self.app).open("signal_to", self.pane.chosen_pid())
        self.refresh_frame()

    def do_redraw(self) -> None:
        program(self.app).redraw()

    def do_help(self) -> None:
        top = self.app.screen  # another one, where the palette over it was asked
        here = [action.keys for action in ACTIONS if top is self and action.applies(self.tab)]
        on_tab = [key for keys in here for key in keys]
        program(self.app).open("help", top, on_tab)

    def do_quit(self) -> None:
        program(self.app).quit()
