"""What must be read to its end, or must stay in sight, does so.

The terminal is small or names are long.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.segment import Segment
from textual.color import Color

from gpuscope.store.trace import Table, TimeLine
from gpuscope.text.width import cells as text_cells
from gpuscope.tui.app.tabs import TABS, make_pane
from gpuscope.tui.device import text as words
from gpuscope.tui.processes.signal_dialog import SIGNALS
from gpuscope.tui.terminal.filters import PlainAscii
from gpuscope.tui.theme import UNICODE
from gpuscope.tui.trainer.profile_screen import summary
from gpuscope.tui.widgets.full_screen import named_path
from gpuscope.tui.widgets.scroll_mark import THUMB, TRACK
from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.tui import test_attach, test_trainer_actions
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.snapshots import text

SMALL = (80, 24)


def flat(lines: Any) -> list[str]:
    return ["".join(piece for piece, _ in line).rstrip() for line in lines]


def words_of(screen: str) -> str:
    return " ".join(screen.replace("│", " ").split())


# ── the overview ──


@pytest.mark.parametrize("count", [4, 8])
@in_loop
async def test_what_is_wrong_with_a_job_is_told_to_its_end_on_the_smallest_terminal(count):
    app = make_app(jobs.ranks(count, stalled=True))
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, "─ GPUs", "stalled: rank 3 is stuck at data.py:88", "Doctor ▲1")
        app.main.refresh_all()  # as the next reading does
        screen = await until(pilot, "─ GPUs", "do first: Read the stacks", absent="VRAM of GPU")
        others = "0–2" if count == 4 else "0–2, 4–7"
        assert f"ranks {others} wait in all_reduce" in words_of(screen)
        assert all(f"│ {'▸' if n == 3 else ' '}   {n} " in screen for n in range(count)), (
            "the devices are all there"
        )


@pytest.mark.slow
@in_loop
async def test_what_to_do_is_kept_where_devices_need_the_rows_of_what_a_forecast_rests_on():
    app = make_app(jobs.ranks(8, leaks=2))
    async with app.run_test(size=(80, 21)) as pilot:
        await until(pilot, "─ GPUs", "rank 2 runs out", "Doctor ▲1")
        app.main.refresh_all()  # as the next reading does
        await until(pilot, "48202)", "do first: Save a checkpoint", absent="iB per step")
        await pilot.resize_terminal(80, 30)
        await until(pilot, "do first: Save a checkpoint", "grow: empty_cache() cannot help.")


# ── another size ──


@in_loop
async def test_a_tab_may_get_another_size_while_it_is_built():
    app = make_app(views.training())
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, "─ GPUs")
        for tab in TABS:
            pane = make_pane(app.session, tab)
            pane.fit_to(157, 40)
            pane.fit_to(80, 24)


# ── keys of a line that is typed into ──


@in_loop
async def test_while_a_filter_is_typed_the_footer_names_the_keys_that_are_no_letters():
    app = make_app(views.training())
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, "─ GPUs", "P Processes")
        await pilot.press("slash", "j")
        await until(pilot, "Enter Keep it", "Esc Drop it", absent="P Processes")
        await pilot.press("enter")
        await until(pilot, "P Processes", absent="Esc Drop it")
        await pilot.press("slash", "escape")
        await until(pilot, "P Processes", absent="Esc Drop it")


@pytest.mark.slow
@in_loop
async def test_the_same_on_the_screen_of_processes():
    app = make_app(views.training())
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("P")
        await until(pilot, "u Mine")
        await pilot.press("slash", "l")
        await until(pilot, "Enter Keep it", "Esc Drop it", absent="u Mine")
        await pilot.press("escape")
        await until(pilot, "u Mine", absent="Esc Drop it")


@pytest.mark.slow
@in_loop
async def test_no_key_is_promised_that_a_session_cannot_carry_out():
    promised = ("s Snapshot", "S Stacks", "S shows the stacks")
    stalled = jobs.ranks(stalled=True)
    for app, can in ((make_app(stalled), False), (test_trainer_actions.make(stalled)[0], True)):
        async with app.run_test(size=SMALL) as pilot:
            await until(pilot, "─ GPUs")
            await pilot.press("enter")  # the keyboard begins at the job that stands still
            screen = await until(pilot, "Findings", "Enter Details", "do first")
            assert [key in screen for key in promised] == [can] * 3
            await pilot.press("escape", "P")
            screen = await until(pilot, "Processes", "q Back")
            assert ("K Signal" in screen) == can


# ── dialogs ──


@pytest.mark.slow
@in_loop
async def test_a_small_terminal_shows_who_gets_a_signal_and_scrolls_to_the_last():
    app = make_app(views.training())
    async with app.run_test(size=(60, 18)) as pilot:
        await until(pilot, "jupyter")
        app.session.why_not = lambda name: ""  # type: ignore[method-assign]
        host = app.session.host
        assert host is not None
        app.open("signal", next(p for p in host.processes if p.definition.pid == 51120))
        await until(pilot, "pid 51120", "T  TERM")
        await pilot.press(*["j"] * 20)
        await until(pilot, f"R  {list(SIGNALS)[-1]}", absent="pid 51120")
        await pilot.press(*["k"] * 20)
        await until(pilot, "pid 51120")


@in_loop
async def test_a_long_command_leaves_all_signals_in_view_and_a_key_shows_all_of_it():
    app = make_app(views.training())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "jupyter")
        app.session.why_not = lambda name: ""  # type: ignore[method-assign]
        host = app.session.host
        assert host is not None
        process = next(p for p in host.processes if p.definition.pid == 48213)
        long = replace(process.definition, command="python a.py " + "--lr 1 " * 99)
        app.open("signal", replace(process, definition=long))
        await until(pilot, "pid 48213, a.py", "w: whole", *SIGNALS)
        await pilot.press("w")
        await until(pilot, absent="w: whole")


@in_loop
async def test_what_a_signal_does_goes_on_below_itself_from_the_first_frame_on():
    app = make_app(views.training())
    async with app.run_test(size=(56, 32)) as pilot:
        await until(pilot, "─ GPUs")
        app.session.why_not = lambda name: ""  # type: ignore[method-assign]
        host = app.session.host
        assert host is not None
        app.open("signal", host.processes[0])
        while "INT" not in (shown := text(app)):
            await asyncio.sleep(0)
        assert "more lines" not in shown, "all have room"
        lines = shown.splitlines()
        at = next(number for number, line in enumerate(lines) if "INT   like Ctrl-C" in line)
        below = lines[at + 1]
        assert lines[at].index("like Ctrl-C") == len(below) - len(below.lstrip(" │"))


@in_loop
async def test_the_progress_of_many_ranks_is_in_sight_under_a_long_question():
    long = "it stands still for about 0.5 ms, " * 6
    rows = test_attach.ranks(12)
    for row in rows:
        row["look"]["consent"] |= {"price": long, "effect": long}
    source = test_attach.Host(rows)
    source.held.clear()
    app = test_attach.make(source)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, "─ GPUs", "● live")  # before that there is nobody to attach to
        await pilot.press("a")
        await until(pilot, "Attach · ")
        await pilot.press("enter")
        await until(pilot, "Attach the probe to 12 ranks?", "and 4 more")
        await pilot.press("enter")
        await until(pilot, "Enter does nothing here")
        await pilot.press("y")
        await until(pilot, "Working", "rank 1 of 12")
        source.held.set()


def test_the_thumb_of_a_scrolled_table_is_seen_in_ascii_without_colour():
    thumb, track = (
        PlainAscii().apply([Segment(mark)], Color(0, 0, 0))[0].text for mark in (THUMB, TRACK)
    )
    assert thumb.isascii()
    assert thumb != track


@in_loop
async def test_the_palette_shows_what_every_font_has():
    app = make_app(views.training())
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("colon", *"modules")
        screen = await until(pilot, "parameters and state by module")
        assert all(ord(char) < 0x3000 for char in screen), "no pictures"


# ── a profile ──

LINES = [
    TimeLine(
        "GPU 0", 0.0211, {"kernel": 0.0139, "collective": 0.0009, "memcpy": 0.0001, "idle": 0.0062}
    ),
    TimeLine("CPU, busiest thread", 0.0199, {"op": 0.006, "idle": 0.0139}),
]


@pytest.mark.parametrize("cells", [40, 76, 116])
def test_all_shares_of_a_profile_can_be_read(cells):
    lines = flat(summary(Table([], LINES, (0.0069,) * 3, 405, ""), cells, UNICODE))
    assert all(text_cells(line) <= cells for line in lines)
    told = " ".join(" ".join(lines).split())
    for share in (
        "kernel 66 %",
        "collective 4 %",
        "memcpy 0.5 %",
        "idle 29 %",
        "Python, waiting 70 %",
        "profiler on)",
    ):
        assert share in told
    assert ("█" in told) == (cells == 116)
    if cells == 116:
        assert len({line.index("█") for line in lines if "█" in line}) == 1, (
            "the bars begin below each other"
        )


def test_a_file_is_named_before_its_folder():
    pieces = named_path(Path.home() / "a" / "long" / "folder" / "node-17-rank0.json")
    assert flat([pieces]) == ["node-17-rank0.json  ~/a/long/folder"]


# ── a device ──


def test_nothing_of_a_hung_device_is_blank_without_its_reason():
    host = views.host_of(views.hung())
    told = flat(words.state_lines(host, host.devices[3], 100))
    assert [line.split()[0] for line in told] == ["state", "memory"], "one reason for all"
    assert "nvmlDeviceGetUtilizationRates" in told[0]
    assert "– of 140 GiB" in next(line for line in told if line.startswith("memory"))


def test_the_pcie_link_stands_with_the_traffic_of_pcie():
    def told(**readings: f.Scalar) -> list[list[str]]:
        store = views.store_of([views.hello(), views.host_def(), views.gpu(0)])
        store.apply(
            views.SOURCE,
            f.Sample(1, int(views.END * 1e9), g=[views.device_row(0, 1.0, 1.0, **readings)]),
            1.0,
        )
        host = views.host_in(store)
        return [line.split(maxsplit=1) for line in flat(words.traffic_lines(host.devices[0]))]

    mib = 1 << 20
    both = {
        f"{name}_{way}_bytes_per_second": 3 * mib
        for name in ("pcie", "nvlink")
        for way in ("tx", "rx")
    }
    moved, link = "out 3.00 MiB/s · in 3.00 MiB/s", "gen 5 ×16"
    assert told(**both) == [["PCIe", f"{moved} · {link}"], ["NVLink", moved]]
    assert told() == [["PCIe", link]]


@in_loop
async def test_the_memory_of_a_lost_gpu_has_all_steps_of_its_cure():
    app = make_app(jobs.lose(jobs.ranks(4), 2), "memory")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "Where the bytes are")
        await pilot.press("n", "n")
        await until(pilot, "1. End the job", "2. Check the kernel log", "3. Start again", "4. Let")
