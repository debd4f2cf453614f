"""No more is sent ahead of a key's answer than the link takes.

The rate of the link is learnt, charts wait, and what waits is not lost.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from textual.app import ComposeResult

from gpuscope.tui import theme
from gpuscope.tui.charts.line import LineChart, Series
from gpuscope.tui.terminal.minimal_updates import LeanApp
from gpuscope.tui.terminal.terminal_rate import AHEAD_SECONDS, ASK, DEAF_SECONDS, TerminalLink
from gpuscope.tui.widgets.text import Lines
from tests.tui.pilot import WAIT_SECONDS
from tests.tui.snapshots import run
from tests.tui.terminal import Mirrored


@pytest.fixture
def no_frames_for_nobody():
    """What goes to the terminal is looked at here."""


class Wire:
    """A link of a given rate with a terminal behind it that answers.

    ``trip`` is the seconds there and back.
    """

    def __init__(self, rate: float, asks: bool = True, trip: float = 0.02) -> None:
        self.now, self.rate, self.trip = 100.0, rate, trip
        self.link = TerminalLink(lambda: self.now)
        self.link.watched, self.link.asks = True, asks
        self._free = 0.0
        self._due: list[tuple[float, int]] = []
        self.total = 0

    def frame(self, count: int) -> None:
        self.link.sent(count)
        self.total += count
        self._free = max(self._free, self.now) + count / self.rate
        if self.link.mark() == ASK or not self.link.asks:
            self._due.append((self._free + (self.trip if self.link.asks else 0.0), self.total))

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, total = self._due.pop(0)
            self.link.answered() if self.link.asks else self.link.arrived(total)
        self.now = end

    @property
    def behind(self) -> float:
        """Seconds until what was sent has arrived: how long a key would wait."""
        return max(self._free - self.now, 0.0)


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("rate", [3_000.0, 30_000.0, 80_000.0])
def test_the_rate_is_learnt_and_little_is_sent_ahead(rate: float, asks: bool) -> None:
    wire = Wire(rate, asks)
    wire.frame(40_000)
    wire.wait(40_000 / rate + 1)
    assert wire.link.rate == pytest.approx(rate, rel=0.1)
    assert wire.link.slow
    longest = 0.0
    for _ in range(200):  # more than the link takes: what there is room for goes
        room = wire.link.room()
        if room > 0:
            wire.frame(int(min(room, 5_000)))
        longest = max(longest, wire.behind)
        wire.wait(0.05)
    assert longest <= max(AHEAD_SECONDS * 1.2, 650 / rate)
    assert wire.link.rate == pytest.approx(rate, rel=0.35)


def test_a_fast_link_is_never_held_up_and_says_nothing() -> None:
    wire = Wire(50e6)
    for _ in range(50):
        wire.frame(8_000)
        wire.wait(0.5)
        assert wire.link.room() == float("inf")
    assert wire.link.text(2.0) == ""
    assert wire.link.charts_seconds(2.0) == 2.0


def test_a_link_that_gets_better_is_not_slow_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(20_000)
    wire.frame(20_000)
    wire.wait(2)
    assert wire.link.slow
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert not wire.link.text(2.0), "one pause is not worth a word"
    for _ in range(6):
        wire.frame(20_000)
        wire.wait(2)
    assert wire.link.text(2.0).startswith("slow terminal: ")
    assert not wire.link.text(2.0, busy=True), "the machine is busy, not the terminal"
    monkeypatch.setenv("SSH_CONNECTION", "198.51.100.7 50022 198.51.100.8 22")
    assert wire.link.text(2.0, busy=True) == "slow link: 19.1 KiB/s, charts every 2 s"
    wire.rate = 1e7
    wire.frame(2_900)
    wire.wait(1)
    assert not wire.link.slow


def test_a_terminal_that_does_not_answer_is_not_waited_for() -> None:
    now = [0.0]
    link = TerminalLink(lambda: now[0])
    link.watched = link.asks = True
    link.sent(3_000)
    assert link.mark() == ASK
    for _ in range(40):
        now[0] += 0.5
        link.sent(1_000)
        assert link.room() == float("inf")
        link.mark()
        if not link.asks:  # from then on it counts what the system takes
            link.arrived(link.total)
    assert now[0] > DEAF_SECONDS
    assert not link.asks


def test_charts_take_a_third_of_a_slow_link_and_come_at_least_twice_a_minute() -> None:
    wire = Wire(4_000)
    wire.frame(8_000)
    wire.wait(5)
    wire.link.charts_took(6_000)
    assert wire.link.charts_seconds(2.0) == pytest.approx(5, abs=1)
    assert wire.link.charts_seconds(0.0) == 0.0, "a replay that stands still draws at once"
    wire.link.charts_took(600_000)
    assert wire.link.charts_seconds(2.0) == 30.0


class Panel(LeanApp[Any], Mirrored):
    draws = True

    def __init__(self) -> None:
        super().__init__()
        theme.register(self)
        self.theme = theme.DARK

    def compose(self) -> ComposeResult:
        yield Lines([[("number 0", "text")]])
        yield LineChart()

    def draw(self, number: int) -> None:
        self.query_one(Lines).show([[(f"number {number}", "text")]])
        steady = Series("x", "series1", [n / 2 for n in range(121)], [float(number)] * 121)
        self.query_one(LineChart).show([steady], 60, 0, 100)


def test_numbers_go_before_charts_and_what_waits_comes_as_it_is_then() -> None:
    async def body(pilot: Any) -> None:
        app, room = pilot.app, [float("inf")]
        app.link.room = lambda: room[0]
        app.draw(10)
        await pilot.pause(0.1)
        before = app.terminal.text()
        room[0] = 1.0
        app.draw(30)
        await pilot.pause(0.1)
        assert "number 30" in app.terminal.text()
        assert app.terminal.text().replace("number 30", "number 10") == before, (
            "no chart while there is no room"
        )
        room[0] = 0.0
        for number in (40, 50, 60):
            app.draw(number)
            await pilot.pause(0.05)
        assert "number 30" in app.terminal.text()
        room[0] = float("inf")
        async with asyncio.timeout(WAIT_SECONDS):  # it is asked again in a quarter of a second
            while "number 60" not in app.terminal.text():
                await pilot.pause(0.05)
        await pilot.pause()
        assert app.terminal.rows == app.redrawn().rows

    run(Panel, body, 70, 16)


@pytest.mark.parametrize("room", [0.0, 1.0])
def test_what_waits_for_a_panel_that_shrinks_meanwhile_is_drawn_as_it_is_then(room: float) -> None:
    """A room of 1 byte is enough for the line, not for the chart."""

    async def body(pilot: Any) -> None:
        app, rooms = pilot.app, [float("inf")]
        app.link.room = lambda: rooms[0]
        app.draw(10)
        await pilot.pause()
        rooms[0] = room
        app.draw(90)
        await pilot.pause()
        app.query_one(LineChart).styles.height = 3
        await pilot.pause()
        rooms[0] = float("inf")
        app.direct.send()
        await pilot.pause()
        assert app.terminal.rows == app.redrawn().rows

    run(Panel, body, 70, 16)


@pytest.mark.parametrize("room", [1.0, 100.0, 200.0, 400.0, 1600.0])
def test_labels_of_two_axes_never_stand_in_one_chart(room: float) -> None:
    """Where the link has room for a part of a chart only, an axis that changes waits as a whole."""

    async def body(pilot: Any) -> None:
        app, rooms = pilot.app, [float("inf")]
        app.link.room = lambda: rooms[0]

        def labels() -> list[str]:
            return re.findall(r"([\d.]+)[┤└]", app.terminal.text())

        def show(top: float) -> None:
            line = Series("x", "series1", [n / 2 for n in range(121)], [top / 2] * 121)
            app.query_one(LineChart).show([line], 60, 0, top)

        show(6)
        await pilot.pause(0.1)
        old = labels()
        rooms[0] = room
        show(40)
        await pilot.pause(0.1)
        between = labels()
        rooms[0] = float("inf")
        app.direct.send()
        await pilot.pause(0.1)
        assert len(old) > 2
        assert old != labels()
        assert between in (old, labels())
        assert app.terminal.rows == app.redrawn().rows

    run(Panel, body, 70, 16)
