"""Looking back while data keeps coming, charts over hours, and the mouse on the Overview."""

from __future__ import annotations

import inspect
import re
import time
from pathlib import Path

import pytest

from gpuscope.store.view import Link
from gpuscope.text.clock import clock_text
from gpuscope.tui import theme
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.memory.timeline import WINDOWS, next_window
from gpuscope.tui.overview.detail_screen import DetailScreen
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.tui.pilot import feed, in_loop, make_app, place_of, until
from tests.tui.snapshots import text
from tests.tui.terminal import Mirrored


def climbing(first: float, last: float) -> list[f.Frame]:
    """Return the frames of a GPU whose load in percent is the time in minutes, at 1 Hz.

    A process is there from the second minute on.
    """
    out: list[f.Frame] = [views.hello(), views.host_def(), views.gpu(0)]
    out += [f.Def(150, proc=f.ProcDef(51120, 9, views.WALL, "lin", "jupyter", "jupyter", 1, False))]
    out += [f.Def(250, use=f.UseDef(150, 10))]
    return out + more(first, last)


def more(first: float, last: float) -> list[f.Frame]:
    out: list[f.Frame] = []
    for second in range(int(first), int(last)):
        at = views.END - 3600 + second
        sample = f.Sample(second, int(at * 1e9), h=[views.host_row()])
        sample.g = [views.device_row(0, 20 + second / 600, second // 60)]
        if second >= 120:
            sample.p = [views.row("p", 150, cpu_percent=second / 60, rss_bytes=views.GIB)]
            sample.u = [views.row("u", 250, used_bytes=10 * views.GIB)]
        out.append(sample)
    return out


def load_shown(screen: str) -> str:
    """The utilisation in the row of GPU 0."""
    row = next(line for line in screen.splitlines() if " H200 " in line and "%" in line)
    return re.findall(r"\d+ %", row)[0]


def value_in(screen: str, name: str) -> str:
    """What stands beside this name in a list of readings."""
    found = [
        words[words.index(name) + 1]
        for line in screen.splitlines()
        if name in (words := line.split())
    ]
    assert found, screen
    return found[0]


@in_loop
async def test_back_shows_what_was_while_data_keeps_coming_and_space_returns():
    app = make_app(climbing(0, 1800))
    async with app.run_test(size=(120, 40)) as pilot:
        assert load_shown(await until(pilot, "H200")) == "29 %"
        await pilot.press("left_curly_bracket")
        screen = await until(pilot, "PAST ", ", 5 min 00 s ago", "24 %")
        assert load_shown(screen) == "24 %"
        feed(app, *more(1800, 1980))
        await pilot.press("comma")
        screen = await until(pilot, ", 8 min 10 s ago")
        assert load_shown(screen) == "24 %"
        assert app.session.host_of(views.SOURCE).devices[0].number("utilization_percent") == 32
        await pilot.press("full_stop", "full_stop", "right_curly_bracket", "right_curly_bracket")
        assert load_shown(await until(pilot, "PAST, the newest")) == "32 %"
        await pilot.press(*8 * ["left_curly_bracket"])
        await until(pilot, "PAST ", " ago, the oldest")
        await pilot.press("right_curly_bracket")
        await until(pilot, "PAST ", absent="the oldest")
        await pilot.press("space")
        screen = await until(pilot, "32 %", absent="PAST")
        feed(app, *more(1980, 2100))
        assert load_shown(await until(pilot, "34 %")) == "34 %"


@pytest.mark.slow
@in_loop
async def test_charts_and_log_say_how_far_back_they_end():
    ended = f.Event(0, "dropped", int((views.END - 3600 + 1499) * 1e9), "12 samples")
    app = make_app([*climbing(0, 1500), ended])
    feed(app, *more(1500, 1800))
    async with app.run_test(size=(120, 40)) as pilot:
        assert " ago" not in await until(pilot, "GPU utilisation", "  now ")
        await pilot.press("left_curly_bracket", "comma")
        screen = await until(pilot, ", 5 min 10 s ago", absent="  now ")
        end, start = (clock_text(app.session.host.wall_seconds - before) for before in (0, 60))
        assert screen.count(f"PAST {end}") == 1
        assert screen.count(start) == 2, "each time axis has times of the day only"
        assert screen.count(end) == 4, "two axes, and twice at the top"
        app.session.notices.say("said just now", kind="link")
        await pilot.press("6")
        log = (await until(pilot, "Log until ")).split("Log until")[1]
        assert "said just now" not in log.rpartition("\n")[0], "the last line may still say it"
        assert "12 samples" not in text(app)
        await pilot.press("full_stop", "full_stop")
        await until(pilot, "12 samples")
        await pilot.press("space")
        await until(pilot, "12 samples", "link", "said just now", absent="Log until")
        await pilot.press("1", "space")
        feed(app, *more(1800, 1890))
        screen = await until(pilot, "PAUSED", absent="  now ")
        assert screen.count(clock_text(app.session.host.wall_seconds - 60)) == 2


@pytest.mark.slow
@in_loop
async def test_the_screens_that_fill_the_terminal_say_that_they_show_the_past():
    app = make_app(climbing(0, 600))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "GPU utilisation")
        await pilot.press("enter")
        await until(pilot, "Load", " Now ", absent="PAST")
        await pilot.press("escape", "comma", "enter")
        await until(pilot, "PAST ", ", 10 s ago", " Then ", absent=" now ")
        await pilot.press("escape", "P")
        await until(pilot, ", 10 s ago", "GPU MEM")
        await pilot.press("enter")
        await until(pilot, ", 10 s ago", " · started ")
        await pilot.press("escape", "escape", "space")
        app.session._hear_link(views.SOURCE, Link("stale", "no data for 9 s", 9.0))
        await pilot.press("P")
        await until(pilot, " stale", "GPU MEM", absent="PAST")


@pytest.mark.slow
@in_loop
async def test_the_keys_through_time_work_inside_a_device_a_process_the_list_and_the_readings():
    app = make_app(climbing(0, 1800))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "GPU utilisation")
        await pilot.press("enter")
        assert " 29 % any kernel running" in await until(pilot, "Load", ", . Past", absent="PAST")
        await pilot.press("left_curly_bracket")
        screen = await until(pilot, "PAST ", ", 5 min 00 s ago", " Then ", "space Now", "{ } 5 min")
        assert " 24 % any kernel running" in screen
        await pilot.press("enter")
        await until(pilot, "GPU 0  PAST ", ", 5 min 00 s ago", "{ } 5 min")
        await pilot.press("pagedown")
        screen = await until(pilot, "utilization")
        assert value_in(screen, "utilization") == "24"
        await pilot.press("left_curly_bracket")
        screen = await until(pilot, "GPU 0  PAST ", ", 10 min 00 s ago")
        assert value_in(screen, "utilization") == "19"
        await pilot.press("escape", "o")
        await until(pilot, "Who has GPU 0 open, now")
        await pilot.press("escape", "full_stop", "space")
        assert " 29 % any kernel running" in await until(pilot, " Now ", "Load", absent="PAST")
        await pilot.press("escape", "P", "left_curly_bracket")
        await until(pilot, ", 5 min 00 s ago", "GPU MEM", "space Now")
        await pilot.press("enter", "comma")
        await until(pilot, ", 5 min 10 s ago", " · started ", absent=" now ")
        for _ in range(5):
            await pilot.press("left_curly_bracket")
        await until(pilot, "it has no reading from then", "PAST", absent=" · started ")
        await pilot.press("space")
        await until(pilot, " · started ", absent="PAST")
        await pilot.press("left_curly_bracket", "escape", "escape")
        assert load_shown(await until(pilot, "─ GPUs", ", 5 min 00 s ago")) == "24 %", (
            "what lies below has moved along"
        )


@in_loop
async def test_the_footer_leads_back_in_time_and_to_now():
    app = make_app(climbing(0, 1800))
    async with app.run_test(size=(120, 24)) as pilot:
        footer = (await until(pilot, "─ GPUs", "z Z Zoom")).splitlines()[-1]
        assert ", . Past" in footer
        at = footer.index(", .")
        await pilot.click(offset=(at, 23))
        footer = (await until(pilot, ", 10 s ago")).splitlines()[-1]
        assert footer.split()[:6] == ["space", "Now", ",", ".", "10", "s"]
        assert "{ } 5 min" in footer
        await pilot.click(offset=(footer.index(". 10"), 23))
        footer = (await until(pilot, "PAST, the newest")).splitlines()[-1]
        await pilot.click(offset=(footer.index("Now"), 23))
        await until(pilot, "space Pause", absent="PAST")


@in_loop
async def test_no_further_back_than_there_is_and_esc_returns():
    app = make_app(climbing(60, 600))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "jupyter")
        for _ in range(4):
            await pilot.press("left_curly_bracket")
        screen = await until(pilot, ", 8 min 59 s ago", "in no training yet")
        assert load_shown(screen) == "1 %"
        await pilot.press("escape")
        await until(pilot, "jupyter", absent="PAST")


@in_loop
async def test_charts_of_the_overview_zoom_over_what_is_kept():
    app = make_app(climbing(0, 1800))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "GPU utilisation", absent="15 min")
        await pilot.press("z", "z")
        screen = await until(pilot, "GPU utilisation, 15 min", "VRAM of GPU 0, 15 min")
        assert "-15m" in screen
        await pilot.press("Z", "Z")
        await until(pilot, "-60s", absent=", 15 min")
    assert next_window(WINDOWS[-1], WINDOWS[-1], 1) == WINDOWS[0]


@in_loop
async def test_a_process_has_its_history_in_the_details():
    app = make_app(climbing(0, 1800))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "jupyter")
        process = app.session.host.processes[0]
        await app.push_screen(DetailScreen(app.session, process.key))
        screen = await until(pilot, "The last 5 min", "CPU, of one core", "GPU 0 memory")
        row = next(line for line in screen.splitlines() if "CPU, of one core" in line)
        assert "25 % … 30 %" in row
        assert theme.UNICODE.up[2] in row
        await pilot.press("z")
        row = next(
            line
            for line in (await until(pilot, "The last 15 min")).splitlines()
            if "of one core" in line
        )
        assert "15 % … 30 %" in row


@in_loop
async def test_more_jobs_than_there_is_room_for_are_seen_to_be_more_and_begin_at_the_first():
    app = make_app(crowd(range(100, 140)))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until(pilot, "worker-100 ", "─ GPUs")
        jobs = screen.split("Jobs")[1].split("─ GPUs")[0]
        assert "┃" in jobs, "a mark of where one is"
        shown = app.main.pane.query_one("#jobs")
        shown.show(shown._lines[::-1])
        assert "worker-139" in shown.current.key + shown.current.cells["job"][0], (
            "the first, whichever that is"
        )
        shown.move(2)
        chosen = shown.current.key
        shown.show(shown._lines[::-1])
        assert shown.current.key == chosen, "what somebody has chosen stays chosen"


def crowd(pids) -> list[f.Frame]:
    """Processes on one GPU, a job each."""
    out: list[f.Frame] = [views.hello(), views.host_def(), views.gpu(0)]
    sample = f.Sample(
        len(pids),
        int(views.END * 1e9) + len(pids),
        h=[views.host_row()],
        g=[views.device_row(0, 20, 9)],
    )
    for pid in pids:
        name = f"worker-{pid}"
        out += [
            f.Def(1000 + pid, proc=f.ProcDef(pid, 9, views.WALL - pid, "lin", name, name, 1, True))
        ]
        out += [f.Def(5000 + pid, use=f.UseDef(1000 + pid, 10))]
        sample.p.append(views.row("p", 1000 + pid, cpu_percent=1.0, rss_bytes=views.GIB))
        sample.u.append(views.row("u", 5000 + pid, used_bytes=views.GIB))
    return [*out, sample]


@in_loop
async def test_the_readings_of_a_process_say_when_it_began_and_nothing_is_unknown_that_is_not():
    app = make_app(climbing(0, 300))
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, "jupyter")
        await app.push_screen(DetailScreen(app.session, app.session.host.processes[0].key))
        screen = await until(pilot, "Process 51120", "start time")
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(views.WALL))
        assert began in next(line for line in screen.splitlines() if "start time" in line)
        assert "unknown" not in next(line for line in screen.splitlines() if "container" in line)


@in_loop
async def test_a_process_that_has_only_left_its_gpu_is_not_said_to_have_ended():
    left, died = (
        f.Event(1000 + pid, "gone", int(views.END * 1e9) + 99, text)
        for pid, text in ((100, "runs on, without a GPU"), (101, "exited"))
    )
    app = make_app([*crowd(range(100, 103)), left, died])
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "worker-102")
        keys = {p.definition.pid: p.key for p in app.session.host.processes}
        await app.push_screen(DetailScreen(app.session, keys[100]))
        await until(pilot, "left: runs on, without a GPU", absent="ended:")
        await pilot.press("escape")
        await app.push_screen(DetailScreen(app.session, keys[101]))
        await until(pilot, "ended: how is not known")


# ── the mouse ──


@pytest.mark.slow
@in_loop
async def test_click_wheel_and_headings_on_the_overview():
    app = make_app(views.training())
    async with app.run_test(size=(160, 50)) as pilot:
        screen = await until(pilot, "USED/TOTAL", "MODEL")
        x, y = place_of(screen, "MODEL")
        await pilot.click(offset=(x, y + 4))
        await pilot.pause()
        assert app.session.selection.device.startswith("GPU-00000003")
        await pilot.click(offset=place_of(screen, "USED/TOTAL"))
        screen = await until(pilot, "USED▾", "GPUs sorted by used")
        assert app.session.state.sort == "used"
        table = app.main.pane.query_one("#devices")
        assert table.rows[0].key.startswith("GPU-00000003")
        await pilot.click(offset=place_of(screen, "USED▾"))
        await until(pilot, "GPUs sorted by index")
        await pilot.click(offset=place_of(screen, "MODEL"))
        assert app.session.state.sort == "index", "a column that is not sorted by does nothing"
        table.focus()
        before = table.cursor_key
        table.post_message(_wheel(table, down=True))
        await pilot.pause()
        assert table.cursor_key != before
        await pilot.click(offset=(x, y + 1))
        await pilot.click(offset=(x, y + 1))
        await until(pilot, "Load", "Identity")


def _wheel(widget, down):
    from textual import events

    kind = events.MouseScrollDown if down else events.MouseScrollUp
    return kind(widget, 1, 1, 0, 0, 0, False, False, False)


# ── what reaches the terminal ──


class MirroredApp(GpuscopeApp, Mirrored):
    """The whole app, and a terminal that takes what it sends."""

    CSS_PATH = str(Path(inspect.getfile(GpuscopeApp)).with_name("app.tcss"))
    draws = True


@pytest.mark.slow
@in_loop
async def test_the_terminal_shows_what_a_full_redraw_would_after_tabs_dialogs_and_numbers():
    made = make_app(views.training())
    app = MirroredApp(made.session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "GPU utilisation")
        last = int(views.END)
        for number, key in enumerate(
            ["2", "1", "j", "question_mark", "escape", "5", "1", "z", "comma", "space", "6", "1"]
        ):
            await pilot.press(key)
            sample = f.Sample(1000 + number, int((last + number) * 1e9), h=[views.host_row()])
            sample.g = [
                views.device_row(i, 60 + number + i, (7 * number + i) % 100) for i in range(8)
            ]
            feed(app, sample)
            rows = await settled(pilot, app)
            wrong = [
                y
                for y, (sent, full) in enumerate(zip(rows, app.redrawn().rows, strict=True))
                if sent != full
            ]
            assert wrong == [], (key, wrong, text(app))
        assert app.direct.sends > 5


async def settled(pilot, app):
    """What the terminal shows once nothing has been sent for a while.

    (A redraw would swallow what still waits.)
    """
    before = -1
    while before != app.terminal.bytes:
        before = app.terminal.bytes
        for _ in range(6):
            await pilot.pause(0.02)
    return [list(row) for row in app.terminal.rows]
