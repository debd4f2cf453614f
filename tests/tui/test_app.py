"""The app behaves: keys, filter, pause, tabs, replay and leaving.

Also what it does where a terminal cannot show it.
"""

from __future__ import annotations

import asyncio
import io
import logging
import math
import re
import sys
import threading
import time
import types
from collections.abc import Mapping
from typing import Any

import pytest

from gpuscope.config import THEMES, Settings
from gpuscope.store.store import Store
from gpuscope.store.view import Capabilities, Link
from gpuscope.tui.app import launch
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.main_screen import MainScreen, ViewChanged
from gpuscope.tui.background import view_state
from gpuscope.tui.background.view_state import ViewState
from gpuscope.tui.charts.chart_schedule import ChartPace
from gpuscope.tui.charts.line import LineChart
from gpuscope.tui.charts.load_strips import LoadStrips
from gpuscope.tui.charts.stacked import StackedChart
from gpuscope.tui.shell import session as session_module
from gpuscope.tui.shell.actions import BY_NAME
from gpuscope.tui.shell.session import Session
from gpuscope.tui.terminal.soon import once_after_refresh
from gpuscope.tui.theme import THEME_NAMES
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.recordings import REDACTED, SHIPPED
from tests.tui.pilot import WAIT_SECONDS, feed, in_loop, make_app, until
from tests.tui.snapshots import text


class Script:
    """A source that delivers frames and then waits; it remembers what it was asked for."""

    key, label, badge = views.SOURCE, "node-17", ""

    def __init__(self, frames: list[f.Frame], hangs_on_close: bool = False) -> None:
        self.frames, self.taps, self.asked = frames, [], []  # type: ignore[var-annotated]
        self.hangs_on_close = hangs_on_close

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities({"rate": ""})

    async def run(self, sink: Any, on_link: Any) -> None:
        on_link(Link("live"))
        for frame in self.frames:
            sink(frame, time.monotonic())
        await asyncio.Event().wait()

    async def request(
        self, name: str, args: Mapping[str, f.Scalar], deadline: float = 10.0
    ) -> f.Result:
        self.asked.append((name, dict(args)))
        return f.Result(1, dict(args))

    def prelude(self) -> list[bytes]:
        return []

    async def close(self) -> None:
        pass


def live_app(frames: list[f.Frame], **options: Any) -> tuple[GpuscopeApp, Script]:
    source = Script(frames)
    return GpuscopeApp(Session(Store(), source, **options)), source


@in_loop
async def test_the_first_frame_needs_no_source():
    app = GpuscopeApp(Session())
    async with app.run_test(size=(120, 40)):
        screen = text(app)
        for part in ("1 Overview", "Jobs", "─ GPUs", "waiting for the first reading", "q Quit"):
            assert part in screen


@in_loop
async def test_a_source_is_made_off_the_loop_after_the_first_frame():
    seen, drawn = [], threading.Event()

    def slow(hz: float) -> Script:
        seen.append(hz)
        assert drawn.wait(20)
        return Script(views.training(3.0))

    app = GpuscopeApp(Session(make_source=slow))
    async with app.run_test(size=(120, 40)) as pilot:
        assert "waiting for the first reading" in text(app)
        drawn.set()
        await until(pilot, "train.py ×7", "8×H200")
        assert seen == [1.0]


@in_loop
async def test_a_source_that_fails_is_told_and_the_screen_stays():
    def broken(hz: float) -> Script:
        raise OSError("no such thing")

    app = GpuscopeApp(Session(make_source=broken))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "The source failed", "no such thing")
        await pilot.press("6")
        await until(pilot, "no such thing")


@in_loop
async def test_what_a_failed_source_had_told_is_not_called_live():
    class Breaks(Script):
        async def run(self, emit, link):
            for frame in views.training(3.0):
                emit(frame, 1.0)
            link(Link("live"))
            await asyncio.sleep(0.1)
            raise ValueError("a frame that nobody expected")

    app = GpuscopeApp(Session(make_source=lambda hz: Breaks([])))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train.py", "ended", absent="live")
        await pilot.press("6")
        await until(pilot, "a frame that nobody expected")


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_tabs_change_by_key_and_by_mouse():
    app = make_app(views.training(3.0))
    async with app.run_test(size=(120, 40)) as pilot:
        for key, wanted in (
            ("2", "Where the bytes are"),
            ("3", "Where its time goes is shown once"),
            ("4", "Findings"),
            ("5", "Demo trainer"),
            ("6", "WHAT"),
            ("1", "─ GPUs"),
        ):
            await pilot.press(key)
            await until(pilot, wanted)
        await pilot.click("#tabs", offset=(17, 0))
        await until(pilot, "Where the bytes are")
        assert app.main.tab == app.session.tab == "memory"


def test_the_program_opens_on_the_overview_with_what_is_remembered(monkeypatch):
    from gpuscope.tui.app import launch

    path = view_state.state_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"sort": "used"}')
    begun = []
    monkeypatch.setattr(launch, "why_unusable", lambda *_: "")
    monkeypatch.setattr(launch, "prepare_environment", lambda _: None)
    monkeypatch.setattr(launch.gc, "disable", lambda: None)
    monkeypatch.setattr(
        launch, "_run", lambda session, start, *_: begun.append((start, session.state.sort)) or 0
    )
    assert launch.run_app() == 0
    assert begun == [("overview", "used")]


@in_loop
async def test_a_tab_asked_for_while_the_program_begins_is_the_one_that_is_shown():
    app = make_app(views.training(3.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        asked = asyncio.create_task(app.main.show_tab("log"))
        await asyncio.sleep(0)  # it is being built
        await app.main._begin()
        await asked
        assert app.main.tab == "log"


@in_loop
async def test_moving_highlights_another_device_and_enter_opens_it():
    app = make_app(views.training(6.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "VRAM of GPU 5")
        await pilot.press("home", "j", "j", "down")
        await until(pilot, "VRAM of GPU 3")
        await pilot.press("k")
        await until(pilot, "VRAM of GPU 2")
        await pilot.press("enter")
        await until(pilot, "GPU 2  NVIDIA H200", "jupyter", "tensor cores busy")
        await pilot.press("q")
        await until(pilot, "VRAM of GPU 2", absent="tensor cores busy")
        assert app.is_running
        await pilot.press("2")
        await until(pilot, "GPU 2 H200 · train.py rank 2")


@in_loop
async def test_enter_on_a_job_opens_its_ranks_and_on_a_rank_its_trainer():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train.py ×7")
        await pilot.press("tab", "tab", "enter")
        await until(pilot, "Findings", "Ranks")
        await pilot.press("home", "enter")
        await until(pilot, "Trainer 48218, rank 5", "torch version", "2.13.0")


@in_loop
async def test_the_filter_narrows_devices_and_jobs_and_escape_clears_it():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train.py")
        await pilot.press("slash", *"jupyter")
        screen = await until(pilot, "filter: jupyter", absent="train.py ×7")
        assert "▸   2  H200" in screen
        assert screen.count("H200 ") <= 3
        await pilot.press(*"zz")
        await until(pilot, "no GPU contains 'jupyterzz'", "no process matches")
        await pilot.press("enter", "j", "escape")
        await until(pilot, "train.py ×7")
        assert app.session.state.filter == ""


@in_loop
async def test_keys_typed_into_the_filter_do_nothing_else():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("slash", *"q2 u")
        await pilot.pause()
        assert app.session.state.filter == "q2 u"
        assert app.main.tab == "overview"
        assert not app.session.state.mine
        assert app.session.paused_seconds is None


@in_loop
async def test_mine_hides_what_others_do():
    app = make_app(views.crowd(3.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train0.py", " lin ")
        await pilot.press("u")
        await until(pilot, "train0.py", "only what is mine, u: all", absent=" lin ")
        view_state.save(app.session.state)
        assert not view_state.load()[0].mine, "the next session shows all again"
        await until(pilot, "mine only")
        await pilot.press("u")
        await until(pilot, " lin ")


@in_loop
async def test_the_next_theme_says_its_name():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("t")
        await until(pilot, "theme: light, t: the next")


@in_loop
async def test_sorting_moves_rows_and_keeps_the_cursor_on_its_device():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "▸   5  H200")
        await pilot.press("home", "greater_than_sign")
        screen = await until(pilot, "USED▾")
        rows = [line for line in screen.splitlines() if " H200 " in line]
        assert " 3  H200" in rows[0]
        assert "▸   0  H200" in screen
        await pilot.press("less_than_sign")
        screen = await until(pilot, "#", absent="USED▾")
        assert " 0  H200" in next(line for line in screen.splitlines() if " H200 " in line)


@in_loop
async def test_pausing_freezes_the_picture_shows_its_age_and_keeps_listening():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "69.7/140")
        await pilot.press("space")
        await until(pilot, "PAUSED")
        feed(app, f.Sample(900, int((views.END + 1) * 1e9), g=[views.device_row(0, 33.3, 12.0)]))
        await until(pilot, "PAUSED 1 s", "69.7/140", absent="33.3/140")
        await pilot.press("2")
        assert "71.5 GiB" in await until(pilot, "used (= nvidia-smi)", "GPU 5")
        await pilot.press("1", "space")
        await until(pilot, "33.3/140", absent="PAUSED")


@in_loop
async def test_the_rate_is_asked_of_the_source():
    app, source = live_app(views.training(3.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train.py")
        await pilot.press("right_square_bracket", "right_square_bracket")
        await until(pilot, "5 samples per second")
        await pilot.press("left_square_bracket", "left_square_bracket")
        await until(pilot, "1 samples per second")
        assert [arguments["hz"] for _, arguments in source.asked] == [2.0, 5.0, 2.0, 1.0]
        assert app.session.state.rate_hz == 1.0


def test_over_ssh_charts_are_drawn_less_often():
    over, local = Session(over_ssh=True), Session()
    assert (over.wanted_hz, over.charts_seconds) == (1.0, 5.0)
    assert (local.wanted_hz, local.charts_seconds) == (1.0, 2.0)
    mine = Session(over_ssh=True, settings=Settings(rate_hz=10.0, charts_seconds=0.5))
    assert (mine.wanted_hz, mine.charts_seconds) == (10.0, 0.5)
    assert Session(state=ViewState(rate_hz=5.0)).wanted_hz == 5.0


@in_loop
async def test_copy_goes_to_the_clipboard_and_to_a_file_whose_path_is_shown(tmp_path):
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train.py")
        await pilot.press("y")
        await until(pilot, "copied, and written")
        assert str(tmp_path) in app.session.notices.all[-1].text
        (path,) = (tmp_path / "gpuscope" / "copies").iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        assert "69.7/140" in path.read_text()
        assert app.clipboard == path.read_text()


@in_loop
async def test_the_theme_goes_round():
    app = make_app(views.training(3.0))
    async with app.run_test(size=(120, 40)) as pilot:
        names = []
        for _ in range(3):
            await pilot.press("t")
            await pilot.pause()
            names.append(app.session.state.theme)
            assert app.theme == THEME_NAMES[names[-1]]
            assert "train.py" in text(app)
        assert names == ["light", "colour-blind", "ansi"]


def test_the_theme_that_was_chosen_goes_before_that_of_the_file():
    state, settings = ViewState(theme="light"), Settings(theme="ansi")
    app = make_app(views.training(3.0), state=state, settings=settings)
    assert app.theme == "gpuscope-light"


def test_the_themes_of_the_settings_are_those_of_the_screen():
    assert (*THEME_NAMES,) == THEMES
    assert BY_NAME["theme"].help == ", ".join(THEMES)


@in_loop
async def test_a_notice_is_shortened_in_the_last_line_for_a_while():
    app = make_app(views.training(3.0))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "train.py", "Tab Next list")
        app.session.notices.say(
            "copied, and written to ~/.local/state/gpuscope/copies/of/today/and/now/gpuscope-1.txt"
        )
        app.main._top()
        screen = await until(pilot, "~/…/gpuscope-1.txt", "1 Overview", absent="Tab Next list")
        assert screen.splitlines()[-1].strip().startswith("copied")
        app.session.notices._said -= 60
        app.main._top()
        await until(pilot, "Tab Next list", absent="copied")


def test_the_own_load_is_not_told_before_it_was_measured(monkeypatch):
    now, used = 100.0, 5.0
    monkeypatch.setattr("gpuscope.tui.shell.self_cpu.MEASURED_SECONDS", 5.0)
    monkeypatch.setattr("gpuscope.tui.shell.self_cpu.time.monotonic", lambda: now)
    monkeypatch.setattr("gpuscope.tui.shell.self_cpu.time.process_time", lambda: used)
    session = Session()
    session.start(lambda: None)
    for now, used in ((100.5, 6.0), (102.9, 6.5), (103.1, 6.5), (107.0, 6.55)):  # noqa: B007
        assert session.cpu_percent() is None
    now, used = 108.4, 6.6
    assert session.cpu_percent() == pytest.approx(2.0, abs=0.3)


# ── drawing ───────────────────────────────────────────────────────────────────────────────────────


def test_pictures_that_wait_are_replaced_by_the_next():
    assert ViewChanged().can_replace(ViewChanged())


@in_loop
async def test_many_frames_at_once_make_one_picture():
    app = make_app(views.training(3.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train.py")
        drawn = 0
        original = MainScreen._draw

        def count(self: MainScreen) -> None:
            nonlocal drawn
            drawn += 1
            original(self)

        MainScreen._draw = count  # type: ignore[method-assign]
        try:
            feed(
                app,
                *(
                    f.Sample(
                        900 + i, int((views.END + i) * 1e9), g=[views.device_row(0, 30.0 + i, 5.0)]
                    )
                    for i in range(50)
                ),
            )
            await until(pilot, "79.0/140")
        finally:
            MainScreen._draw = original  # type: ignore[method-assign]
        assert drawn <= 3


@in_loop
async def test_an_unchanged_picture_draws_nothing():
    app = make_app(views.training(3.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train.py", "GPU utilisation")
        table = app.main.query_one("#devices")
        drawn: list[object] = []
        refresh = table.refresh
        table.refresh = lambda *regions, **options: (
            drawn.append(regions) or refresh(*regions, **options)
        )  # type: ignore[method-assign]
        app.main.pane.show(app.session.host)
        assert drawn == []


# ── links and replays ─────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_a_link_that_breaks_says_so_and_keeps_the_last_picture():
    app = make_app(views.training(3.0))
    async with app.run_test(size=(160, 40)) as pilot:
        await until(pilot, "● live")
        app.session._hear_link(
            views.SOURCE,
            Link("stale", "the agent ended (signal SIGSEGV); trying again in 2 s", 7.0, 2.0),
        )
        await until(pilot, "▲ no data for 7 s: the agent ended (signal SIGSEGV)", "69.7/140")
        await pilot.press("6")
        await until(pilot, "trying again in 2 s")


@pytest.fixture
def recording(tmp_path):
    """Ten seconds of made-up training as a recording."""
    from gpuscope.wire.codec import encode
    from gpuscope.wire.recording import RecordingWriter

    path = tmp_path / "made-up.gpuscope.gz"
    with RecordingWriter(path, False, "made up", "0") as writer:
        for frame in views.training(10.0):
            writer.write(
                "0",
                getattr(frame, "m", 0) / 1e9 - views.END + 10 if hasattr(frame, "q") else 0.0,
                encode(frame),
            )
    return path


@in_loop
async def test_a_replay_wears_its_badge_and_moves_in_time(recording):
    from gpuscope.store.replay import ReplaySource

    replay = ReplaySource(recording)
    app = GpuscopeApp(Session(replay=replay))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "REPLAY", "train.py", "▶")
        await pilot.press("space")
        await until(pilot, "‖")
        assert replay.paused
        await pilot.press("right_square_bracket")
        await until(pilot, "×2")
        await pilot.press("full_stop", "full_stop")
        await until(pilot, "00:10/00:10")
        await pilot.press("left", "left")
        await until(pilot, "00:00/00:10")
        await pilot.press("left_square_bracket")
        await until(pilot, "×1")
        assert "self" not in text(app), "the cost shown in a recording would be somebody else's"


@pytest.mark.slow
@in_loop
async def test_a_fast_replay_that_is_paused_shows_the_charts_of_that_moment(monkeypatch):
    from gpuscope.store.replay import ReplaySource

    # whoever waits for their turn waits for ever
    monkeypatch.setattr(session_module, "LOCAL_CHARTS_SECONDS", 3600.0)
    replay = ReplaySource(REDACTED / "h200x2-ddp.gsr")
    replay.set_speed(100)
    app = GpuscopeApp(Session(replay=replay))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "2×H200")
        while replay.position_seconds < 50:
            await pilot.pause(0.01)
        replay.pause()
        await until(pilot, "‖")
        await charts_stand(pilot)
        screen = await until(
            pilot, "GPU utilisation", "GPU 0", "allocated", absent="no readings yet"
        )
        chart = app.main.query_one("LoadStrips").region
        rows = [line[chart.x : chart.right] for line in screen.splitlines()[chart.y : chart.bottom]]
        assert sum(map("".join(rows).count, "▅▆▇█")) > 40, "lanes over most of the minute"
        assert any(
            "█" in line[chart.right :] for line in screen.splitlines()[chart.y : chart.bottom]
        ), "the stack too"


async def charts_stand(pilot: Any) -> None:
    """Wait until all charts end at the moment the numbers are of."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        await pilot.pause(0.02)
        host = pilot.app.session.host
        charts = [
            *pilot.app.main.pane.query(LineChart),
            *pilot.app.main.pane.query(LoadStrips),
            *pilot.app.main.pane.query(StackedChart),
        ]
        if charts and host and all(chart._now == host.sampled_seconds for chart in charts):
            return
        assert time.monotonic() < deadline, [chart._now for chart in charts]


@pytest.mark.slow
@in_loop
async def test_seeking_moves_the_charts_at_once_and_keeps_the_cursor(monkeypatch):
    from gpuscope.store.replay import ReplaySource

    # none of them comes because it is its turn
    monkeypatch.setattr(session_module, "LOCAL_CHARTS_SECONDS", 3600.0)
    replay = ReplaySource(REDACTED / "h200x2-ddp.gsr")
    # a slow machine takes long to the first key: less of it counts as playing
    replay.set_speed(0.1)
    app = GpuscopeApp(Session(replay=replay))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "2×H200", "GPU utilisation")
        await pilot.press("j", "space")
        for keys, position in ((("full_stop",) * 5, "00:50"), (("comma",) * 2, "00:30")):
            await pilot.press(*keys)
            await until(
                pilot, f"‖ {position}", "VRAM of GPU 1", "allocated", absent="no readings yet"
            )
            await charts_stand(pilot)
            host = app.session.host
            assert host is not None
            history = app.session.history(host.devices[0].id, "used_bytes", 60.0)
            assert history.seconds[-1] - history.seconds[0] > int(position[-2:]) - 3
        await pilot.press("2")
        await until(pilot, "Timeline, GiB", "allocated")
        await charts_stand(pilot)


CLOCKS = re.compile(r"\d\d:\d\d:\d\d")


@pytest.mark.slow
@in_loop
async def test_a_fast_replay_shows_one_moment_on_all_of_a_picture():
    from gpuscope.store.replay import ReplaySource

    replay = ReplaySource(SHIPPED / "h200-lab.gsr")
    replay.set_speed(20)
    app = GpuscopeApp(Session(replay=replay), "overview")
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "GPU utilisation", "×20")
        seen = set()
        replay.seek(20.0)
        replay.set_speed(10)
        await pilot.pause(0.5)
        while replay.position_seconds < 50:  # no panel comes or goes meanwhile
            await pilot.pause(0.09)
            head, *rows = text(app).splitlines()
            (now,) = CLOCKS.findall(head)
            axis = next((row for row in rows if len(CLOCKS.findall(row)) > 3), "")
            seen.add((now, *CLOCKS.findall(axis)[-1:]))
        told = {one for one in seen if len(one) == 2}
        assert len(told) > 3
        assert all(now == end for now, end in told), told


def test_charts_are_paced_by_our_clock_and_by_the_one_of_the_host():
    pace = ChartPace()
    assert pace.wait(0.0, None, 2.0) == 0, "the first picture has its charts"
    pace.drawn(0.0, 100.0)
    assert pace.wait(0.5, 100.5, 2.0) == math.inf
    assert pace.wait(2.0, 102.0, 2.0) == 0
    assert pace.wait(2.0, 100.0, 2.0) == 0, "what has another source, as a loss, goes on"
    assert pace.wait(0.05, 150.0, 2.0) == pytest.approx(0.15), (
        "a fast replay: not more often than the eye can follow"
    )
    assert pace.wait(0.3, 90.0, 2.0) == 0, "and backwards"
    assert pace.wait(9.0, 100.0, 0.0) == math.inf, "time stands still"
    assert pace.wait(9.0, 100.5, 0.0) == 0
    pace.now()
    assert pace.wait(0.01, 100.0, 0.0) == 0


# ── leaving ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
@in_loop
async def test_leaving_does_not_wait_for_a_source_that_hangs(key):
    released = asyncio.Event()

    class Hangs(Script):
        async def run(self, sink: Any, on_link: Any) -> None:
            try:
                await super().run(sink, on_link)
            finally:
                await released.wait()

    app = GpuscopeApp(Session(Store(), Hangs(views.training(2.0))))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train.py")
        await pilot.press(key)
        await pilot.pause()
        assert app.return_code == 0
        assert not app.is_running or app._exit
        assert not app.session._task.done()
        released.set()


@pytest.mark.parametrize("tab", ["overview", "lab"])
def test_leaving_while_it_still_starts_is_no_error(tab):
    async def leave_after(seconds: float) -> None:
        app = make_app(views.training(2.0), tab)
        async with app.run_test(size=(120, 40)):
            await asyncio.sleep(seconds)

    for milliseconds in range(0, 40, 8):
        asyncio.run(leave_after(milliseconds / 1000))


@in_loop
async def test_ctrl_c_leaves_from_inside_a_dialog():
    app = make_app(views.training(2.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("question_mark", "ctrl+c")
        await pilot.pause()
        assert app.return_code == 0


# ── before there is an app ────────────────────────────────────────────────────────────────────────


class Tty(io.StringIO):
    def __init__(self, tty: bool = True, encoding: str = "utf-8") -> None:
        super().__init__()
        self._tty, self._encoding = tty, encoding

    def isatty(self) -> bool:
        return self._tty

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


@pytest.mark.parametrize(
    ("streams", "environ", "why"),
    [
        ((Tty(), Tty(), Tty()), {"TERM": "xterm"}, ""),
        ((Tty(False), Tty(), Tty()), {"TERM": "xterm"}, "standard input is not a terminal"),
        ((Tty(), Tty(False), Tty()), {"TERM": "xterm"}, "standard output is not a terminal"),
        ((Tty(), Tty(), Tty(False)), {"TERM": "xterm"}, "standard error is not a terminal"),
        ((None, Tty(), Tty()), {"TERM": "xterm"}, "standard input is closed"),
        ((Tty(), Tty(), Tty()), {"TERM": "dumb"}, "TERM=dumb cannot move the cursor"),
        ((Tty(), Tty(), Tty()), {}, "TERM=(not set) cannot move the cursor"),
        ((Tty(), Tty(), Tty(encoding="ascii")), {"TERM": "xterm"}, "not UTF-8"),
    ],
)
def test_why_a_terminal_cannot_be_used(streams, environ, why):
    found = launch.why_unusable(*streams, environ)
    assert (found == "") == (why == "")
    assert why in found


def test_the_log_is_rotated_and_takes_exceptions(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(launch, "LOG_BYTES", 2000)
    path = launch.start_log()
    logger = logging.getLogger("gpuscope")
    try:
        for _ in range(30):
            try:
                raise ValueError("something of ours")
            except ValueError:
                logger.exception("it broke")
        assert path.stat().st_size <= 2000
        assert 1 <= len(list(path.parent.glob("gpuscope.log.*"))) <= launch.LOG_FILES
        assert (
            "ValueError: something of ours"
            in path.read_text() + path.with_name("gpuscope.log.1").read_text()
        )
    finally:
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()


@in_loop
async def test_the_end_of_a_recording_leaves_the_clock_and_the_jobs_on_a_narrow_screen(recording):
    from gpuscope.store.replay import ReplaySource

    replay = ReplaySource(recording)
    replay.seek(replay.duration_seconds)
    app = GpuscopeApp(Session(replay=replay))
    async with app.run_test(size=(84, 24)) as pilot:
        await until(pilot, "train.py", "■ 00:10/00:10")
        top = text(app).splitlines()[0]
        assert re.search(r"1 job · \d+ ranks .*\d\d:\d\d:\d\d", top), top


def test_the_lab_flag_opens_the_tab_of_the_lab(monkeypatch):
    from gpuscope.cli import main as cli

    asked: dict[str, object] = {}
    screen = types.ModuleType("gpuscope.tui.app.launch")
    screen.run_app = lambda **how: asked.update(how) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpuscope.tui.app.launch", screen)
    assert cli.main(["--lab"]) == 0
    assert (asked["start_screen"], asked["lab_autostart"]) == ("lab", True)


@pytest.mark.slow
@in_loop
async def test_after_jumps_to_the_end_of_a_replay_the_doctor_finds_what_holds_there():
    from gpuscope.store.replay import ReplaySource

    app = GpuscopeApp(Session(replay=ReplaySource(SHIPPED / "h200x2-ddp.gsr")), "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Nothing wrong")
        for _ in range(6):
            await pilot.press("full_stop")
            await pilot.pause(0.1)
        shown = await until(pilot, "end of the recording", "Tensor cores idle on GPU 0, 1")
        assert "when gpuscope started" not in shown


@in_loop
async def test_what_waits_for_the_next_layout_is_called_once_however_often_it_is_asked_for():
    app, calls = make_app(views.cpu_only()), []

    def draw() -> None:
        calls.append(1)

    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "gpuscope lab")
        for _ in range(3):
            once_after_refresh(app.main, draw)
        await pilot.pause()
        assert calls == [1]
        once_after_refresh(app.main, draw)
        await pilot.pause()
        assert calls == [1, 1]
