"""The one screen behind the tabs: status line, tabs, the visible pane, filter, footer; who carries out actions."""

from __future__ import annotations

import gc
import time
from importlib import import_module
from inspect import isawaitable
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.screen import Screen

from ..actions import ACTIONS, BY_NAME
from ..cells import age_text
from ..keymap import bindings
from ..session import SEEK_SECONDS, Session
from ..widgets.header import FooterLine, TabLine
from ..widgets.status import Situation, StatusLine
from .pane import Pane

if TYPE_CHECKING:
    from ..app import GpuscopeApp

TABS = {"overview": "OverviewPane", "memory": "MemoryPane", "lab": "LabPane", "log": "LogPane"}
"""Tab → class in the module of that name; imported at the first visit."""


class ViewChanged(Message):
    """There is a new picture. One that waits is replaced by the next: a slow terminal gets fewer, not older ones."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ViewChanged)


class MainScreen(Screen[None], inherit_bindings=False):
    """The tabs of one session."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]

    def __init__(self, session: Session, start: str) -> None:
        super().__init__()
        self.session = session
        self.tab = start
        self._panes: dict[str, Pane] = {}
        self._charts_at = 0.0
        self._charts_due: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield StatusLine(id="status")
        yield TabLine(list(TABS), self.tab, id="tabs")
        yield self._make(self.tab)
        yield FooterLine(id="footer")

    def _make(self, tab: str) -> Pane:
        cls = getattr(import_module(f"gpuscope.tui.screens.{tab}"), TABS[tab])
        pane: Pane = cls(self.session, id=tab)
        self._panes[tab] = pane
        return pane

    def on_mount(self) -> None:
        self._frame()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """After the first paint: start listening, and tick for what ages by itself (pause, notices, silence)."""
        gc.freeze()  # what is loaded by now stays: no need to look at it again and again
        gc.enable()
        self.session.start(self._announce)
        if not self.query("FilterLine"):  # somebody was quicker than the first frame
            self.pane.take_focus()
        self.refresh_all()
        self.set_interval(1.0, self._frame)

    def _announce(self) -> None:
        self.post_message(ViewChanged())

    # ── drawing ──

    @property
    def pane(self) -> Pane:
        """The visible tab."""
        return self._panes[self.tab]

    def on_view_changed(self, _: ViewChanged) -> None:
        self._frame()
        if self.session.paused_seconds is None:
            self._draw()

    def refresh_all(self) -> None:
        """Draw everything now, charts too: after a change of what is looked at."""
        self._charts_at = 0.0
        self._frame()
        self._draw()

    def _draw(self) -> None:
        if not self.pane.is_mounted:
            return
        host = self.session.host
        self.pane.show(host)
        now = time.monotonic()
        if host is not None and now - self._charts_at >= self.session.charts_seconds - 0.1:
            self._charts_at = now
            self.pane.show_charts(host)

    def _frame(self) -> None:
        """Status line, tabs and footer."""
        session = self.session
        age = session.paused_seconds
        paused = "" if age is None else f"PAUSED {age_text(age)}"
        self.query_one(StatusLine).show(session.host, Situation(paused, session.replay_text(), session.cpu_percent()))
        notice = session.notices.current
        pieces = [(notice.text, "text" if notice.severity == "ok" else notice.severity)] if notice else self._hint()
        self.query_one(TabLine).show(self.tab, pieces)
        self.query_one(FooterLine).show(self.tab, [a.name for a in ACTIONS if not session.why_not(a.name)])

    def _hint(self) -> list[tuple[str, str]]:
        state = self.session.state
        parts = [f"filter: {state.filter}"] if state.filter else []
        parts += ["mine only"] if state.mine else []
        return [(" · ".join(parts), "accent")] if parts else []

    def on_resize(self, event: events.Resize) -> None:
        self._fit_to(event.size.width, event.size.height)

    def _fit_to(self, width: int, height: int) -> None:
        self.set_class(height < 20, "tiny")
        for pane in self._panes.values():
            pane.fit_to(width, height)
        self.call_after_refresh(self.refresh_all)

    # ── actions ──

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action != "do":
            return True
        return BY_NAME[str(parameters[0])].applies(self.tab)

    async def action_do(self, name: str) -> None:
        """Carry out an action of the registry; say why when this session cannot."""
        reason = self.session.why_not(name)
        if reason:
            self.session.notices.say(f"{BY_NAME[name].label}: {reason}", "warn")
            self._frame()
        elif name in TABS:
            await self.show_tab(name)
        else:
            handler = getattr(self.pane, f"do_{name}", None) or getattr(self, f"do_{name}")
            done = handler()
            if isawaitable(done):
                await done

    async def show_tab(self, name: str) -> None:
        """Make a tab visible; its first visit builds it."""
        if name not in self._panes:
            pane = self._make(name)
            pane.display = False
            await self.mount(pane, before="#footer")
            pane.fit_to(*self.size)
        for tab, pane in self._panes.items():
            pane.display = tab == name
        self.tab = self.session.state.tab = name
        self.pane.take_focus()
        self.call_after_refresh(self.refresh_all)

    async def on_tab_line_chosen(self, event: TabLine.Chosen) -> None:
        await self.show_tab(event.name)

    def do_pause(self) -> None:
        self.session.toggle_pause()
        self.refresh_all()

    def do_faster(self) -> None:
        self.session.change_rate(True)
        self._frame()

    def do_slower(self) -> None:
        self.session.change_rate(False)
        self._frame()

    def do_replay_faster(self) -> None:
        self.session.change_speed(True)
        self._frame()

    def do_replay_slower(self) -> None:
        self.session.change_speed(False)
        self._frame()

    def do_replay_back(self) -> None:
        self.session.seek(-SEEK_SECONDS)

    def do_replay_forward(self) -> None:
        self.session.seek(SEEK_SECONDS)

    def do_mine(self) -> None:
        self.session.state.mine = not self.session.state.mine
        self.refresh_all()

    async def do_filter(self) -> None:
        """Open the line to type into. Awaited: the next key belongs to it already."""
        from ..widgets.filter import FilterLine

        if not self.query(FilterLine):
            line = FilterLine(self.session.state.filter)
            await self.mount(line, before="#footer")
            self.set_focus(line)

    def set_filter(self, text: str) -> None:
        """Show only what contains ``text``."""
        self.session.state.filter = text
        self.refresh_all()

    def do_back(self) -> None:
        if self.session.state.filter:
            self.set_filter("")

    def do_down(self) -> None:
        """A list that has the focus moves by itself; panes without one have nothing to move."""

    do_up = do_next_pane = do_open = do_down

    def do_copy(self) -> None:
        from ..copying import copy_screen

        copy_screen(self)
        self._frame()

    def do_theme(self) -> None:
        from ..theme import DARK, LIGHT

        order = (DARK, LIGHT, "ansi-dark")
        now = order.index(self.app.theme) if self.app.theme in order else -1
        self.app.theme = self.session.state.theme = order[(now + 1) % len(order)]

    def do_palette(self) -> None:
        self.app.action_command_palette()

    def do_help(self) -> None:
        from ..widgets.help import HelpScreen

        self.app.push_screen(HelpScreen(self.session.why_not))

    def do_quit(self) -> None:
        cast("GpuscopeApp", self.app).leave()
