"""The snapshot screen shows synthetic snapshots.

It has five views, any moment, differences, other devices, and bad files.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest

from gpuscope.doctor import postmortem_snapshot
from gpuscope.doctor.report import finish
from gpuscope.doctor.table import load
from gpuscope.snapshot.model import FULL_CELL, Frame
from gpuscope.snapshot.reader import open_snapshot
from gpuscope.text import styled
from gpuscope.tui.app.file_app import FileApp
from gpuscope.tui.charts.moments import Band, MomentChart
from gpuscope.tui.shell.footer import screen_hints
from gpuscope.tui.shell.keymap import keys_of
from gpuscope.tui.snapshot.first_page import map_lines, what_to_do
from gpuscope.tui.snapshot.rows import MapBar, headline, map_legend
from gpuscope.tui.snapshot.screen import SnapshotScreen
from gpuscope.tui.snapshot.source import MOST_BYTES, Source, read_source, source_lines
from gpuscope.tui.theme import ASCII, MONOCHROME, THEMES, UNICODE, Tokens
from tests.snapshot import synthetic
from tests.tui.pilot import in_loop, until

SIZE = (120, 40)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two snapshots of one training and one of two devices."""
    where = tmp_path_factory.mktemp("snapshots")
    synthetic.write(synthetic.training(1500, leak=3), where / "old.pickle")
    synthetic.write(synthetic.training(3000, leak=3), where / "new.pickle")
    return where


@in_loop
async def test_all_views_of_a_file(folder):
    app = FileApp(folder / "new.pickle")
    async with app.run_test(size=SIZE) as pilot:
        screen = await until(pilot, "Fragmentation: segments", "reserved", "largest free run")
        assert "▇" in screen
        await pilot.press("2")
        await until(pilot, "Who holds most", "model.py:")
        await pilot.press("enter")
        await until(pilot, "Stack, innermost frame first", "/home/ada", "train.py:10")
        await pilot.press("escape")
        await until(pilot, "Who holds most", absent="innermost frame")
        await pilot.press("3")
        await until(pilot, "Sizes of the blocks", "FREE BLOCKS", "KiB")
        await pilot.press("tab")
        await until(pilot, "Allocated over the last", "Event ", "model.py:")
        await pilot.press("q")
        await pilot.pause()
    assert app.return_value == 0


@in_loop
async def test_a_view_that_is_asked_for_while_the_file_is_read_is_the_first(folder):
    app = FileApp(folder / "new.pickle")
    async with app.run_test(size=SIZE) as pilot:
        while not isinstance(app.screen, SnapshotScreen):
            await pilot.pause()
        assert app.screen._summary is None
        app.screen.action_view("stacks")
        await until(pilot, "Who holds most", "model.py:")


@in_loop
async def test_a_file_of_a_failure_says_first_what_was_asked_for_and_why_it_failed():
    app = FileApp(Path(__file__).parents[2] / "demos" / "snapshots" / "failing.pickle.gz")
    async with app.run_test(size=SIZE) as pilot:
        screen = await until(pilot, "out of memory: 2.00 GiB requested, 255 MiB free on the GPU")
        assert screen.index("free inside, but in pieces") < screen.index("reserved")
        await pilot.press("4")
        chart = await until(pilot, "Allocated over the last 69 events", "0 B ┼")
        marks = next(line for line in chart.splitlines() if "0 B ┼" in line)
        assert marks.rstrip(" │").endswith("▲"), "the failure is at the right edge"


FAILING = Path(__file__).parents[2] / "demos" / "snapshots" / "failing.pickle.gz"


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@in_loop
async def test_the_first_page_of_a_failure_says_what_to_do_and_where_the_rest_is(size):
    app = FileApp(FAILING)
    async with app.run_test(size=size) as pilot:
        copied: list[str] = []
        app.copy_to_clipboard = copied.append  # type: ignore[method-assign]
        beside = size[0] >= 120
        last_drawn = ["one scale", "over time", f"  0  {' ' * (size[0] == 200)}████"]
        screen = await until(
            pilot,
            "Findings: what to do",
            "With expandable_segments:True the same requests would have fit",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "gpuscope doctor ",
            "live  ▁ free",
            *(last_drawn if beside else ()),
        )
        assert screen.index("out of memory:") < screen.index("Findings") < screen.index("SEGMENT")
        assert ("249 MiB" in " ".join(screen.split())) == beside
        assert ("one scale" in screen) == ("Who holds most" in screen) == beside
        assert ("in 6 blocks; the largest is 704 MiB" in screen) == beside
        if size[0] == 200:
            await until(pilot, "133 GiB ▸   118      ballast = torch.empty(free")
        if beside:
            blank = [line for line in screen.splitlines() if not line.strip(" │")]
            assert len(blank) < 8, "the page is used"
        await pilot.press("y")
        await until(pilot, "copied, and written to ")
        assert copied == ["export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"]
        await pilot.press("3")
        await until(pilot, "Sizes of the blocks", absent="what to do")
        await pilot.press("1")
        await until(pilot, "Findings: what to do", "SEGMENT")


def test_only_whole_sentences_are_shown_where_rows_are_few():
    with open_snapshot(FAILING) as reading:
        report = finish(postmortem_snapshot.judge(reading, FAILING.name), load())
    for rows in range(6, 20):
        lines = what_to_do(report, load(), FAILING, UNICODE, 76, rows)
        assert len(lines) <= rows
        told = " ".join(styled.plain(line) for line in lines)
        assert ("gain " in told) == ("than was needed" in told)
        assert "gpuscope doctor" in styled.plain(lines[-1]) or FAILING.name in told


@in_loop
async def test_a_file_without_a_fault_has_no_findings(folder):
    app = FileApp(folder / "new.pickle")
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "All segments to one scale", "Who holds most", "live blocks by size")
        await until(pilot, "one cell = 1.75 MiB", absent="what to do")


@in_loop
async def test_the_moment_moves_and_its_stacks_follow(folder):
    app = FileApp(folder / "new.pickle")
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "reserved")
        await pilot.press("4")
        peak = await until(pilot, "Event ", "in ", "blocks")
        await pilot.press("right", "right", "right", "right")
        await pilot.press("right", "right", "right", "right")
        title = next(line for line in peak.splitlines() if "Event " in line)
        moved = await until(pilot, "Event ", absent=title.strip("╭─╮ "))
        assert next(line for line in moved.splitlines() if "Event " in line) != title
        await pilot.press("P")
        await until(pilot, title.strip("╭─╮ "))


@in_loop
async def test_two_files_are_compared_by_stack(folder):
    app = FileApp(folder / "new.pickle")
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "reserved")
        await pilot.press("5")
        await until(pilot, "old.pickle", "Compare with an older snapshot")
        await pilot.press("enter")
        screen = await until(pilot, "What grew since old.pickle", "stayed ", "new ", "gone ")
        assert "+" in screen
        await pilot.press("b")
        await until(pilot, "Compare with an older snapshot")


@pytest.mark.slow
@in_loop
async def test_a_second_device_has_views_of_its_own(tmp_path):
    path = synthetic.write(synthetic.training(400, devices=2), tmp_path / "two.pickle")
    app = FileApp(path)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "cuda:0", "1 of 2")
        await pilot.press("d")
        await until(pilot, "cuda:1", "2 of 2")


@in_loop
async def test_without_history_the_map_is_there_and_the_rest_says_why(tmp_path):
    path = synthetic.write(
        synthetic.training(400) | {"device_traces": [[]]}, tmp_path / "plain.pickle"
    )
    app = FileApp(path)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "Fragmentation: segments")
        await pilot.press("4")
        await until(pilot, "no history was recorded")


class Hostile:
    """Runs a command where somebody unpickles it."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("kind", ["hostile", "foreign", "cut", "missing", "empty"])
def test_a_bad_file_is_a_sentence_never_a_dead_screen(kind, tmp_path):
    path, trap = tmp_path / "bad.pickle", tmp_path / "trapped"
    if kind == "hostile":
        path.write_bytes(
            pickle.dumps({"segments": [], "device_traces": [], "x": Hostile(f"touch {trap}")})
        )
    elif kind == "foreign":
        path.write_bytes(b"\x7fELF not a pickle")
    elif kind == "cut":
        path.write_bytes(synthetic.dumped(synthetic.training(300))[:200])
    elif kind == "empty":
        path.write_bytes(b"")

    @in_loop
    async def body():
        app = FileApp(path)
        async with app.run_test(size=(80, 24)) as pilot:
            screen = ""
            while "Not shown: " not in screen and "in part: " not in screen:
                screen = await until(pilot, "Snapshot", absent="reading ")
            await pilot.press("1", "2", "4", "5", "d", "left", "enter")
            await pilot.pause()
            await pilot.press("escape")
            await pilot.pause()
        assert app.return_value == 0

    body()
    assert not trap.exists()


@in_loop
async def test_leaving_while_it_reads_kills_the_child(tmp_path, monkeypatch):
    from gpuscope.tui.snapshot import screen

    readings = []
    original = screen.SnapshotScreen._keep

    def keep(self, reading):
        readings.append(reading)
        original(self, reading)

    monkeypatch.setattr(screen.SnapshotScreen, "_keep", keep)
    regular = synthetic.write(synthetic.training(20_000), tmp_path / "large.pickle")
    app = FileApp(regular)
    async with app.run_test(size=SIZE) as pilot:
        while not readings:
            await pilot.pause(0.01)
        await pilot.press("escape")
        await pilot.pause()
    assert app.return_value == 0
    assert not readings[0]._process.running


# ── drawing ──


def test_a_map_of_a_segment_shows_what_is_held_where():
    bar = MapBar((FULL_CELL, FULL_CELL, 0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0, FULL_CELL, FULL_CELL))
    pieces = bar.draw(8, UNICODE)
    assert [(len(text), token) for text, token in pieces] == [
        (2, "allocated"),
        (4, "free"),
        (2, "cached"),
    ]
    assert len("".join(text for text, _ in bar.draw(37, UNICODE))) == 37
    assert len("".join(text for text, _ in bar.draw(3, ASCII))) == 3
    assert MapBar((), ()).draw(5, UNICODE) == [(UNICODE.track * 5, "free")]


def test_a_curve_is_drawn_at_any_size():
    chart = MomentChart()
    chart.show(Band(tuple(range(50)), tuple(range(50)), frozenset((7,))), 49)
    for ascii_only in (False, True):
        tokens = Tokens(THEMES[0], ascii_only=ascii_only)
        for width in (1, 5, 12, 13, 40, 200):
            for height in (1, 2, 3, 10):
                strips = chart.paint(width, height, tokens)
                assert len(strips) <= height
                assert all(strip.cell_length == width for strip in strips)


@pytest.mark.parametrize("glyphs", [UNICODE, MONOCHROME, ASCII])
def test_the_legend_of_the_maps_has_the_signs_that_are_drawn(glyphs):
    (live, _), (free, _) = MapBar((FULL_CELL, 0), (0, 0)).draw(2, glyphs)
    assert map_legend(glyphs).startswith(f"{live} live  {free} free")


# ── what is known of the chosen row ──

DEMOS = Path(__file__).parents[2] / "demos" / "snapshots"


def test_the_demos_show_the_text_of_the_lines_that_allocated():
    """The file beside them must keep its lines, or they would show no source."""
    seen = set()
    for name in ("training", "leak-after", "fragmented", "failing"):
        with open_snapshot(DEMOS / f"{name}.pickle.gz") as reading:
            (device,) = reading.summary.devices
        for row in device.stacks.rows:
            frame = row.frames[row.headline]
            source = read_source(frame, DEMOS)
            assert isinstance(source, Source), (name, source)
            seen.add(source.lines[frame.line - 1].strip())
    assert "kept.append(model(x))  # with its graph: the mistake" in seen
    assert {"loss = (model(x) - x).square().mean()", "optimizer.step()"} <= seen


def test_source_that_would_mislead_is_not_shown(tmp_path):
    (tmp_path / "train.py").write_text("import torch\n\n\ndef step():\n    x = make()\n\x1b]52;\n")
    source = read_source(Frame("train.py", 5, "step"), tmp_path)
    assert isinstance(source, Source)
    assert "\x1b" not in "".join(source.lines), "text of a file is made safe"
    for line, function, why in (
        (5, "evaluate", "another version: its line 5 is not in evaluate"),
        (2, "step", "another version"),
        (99, "<module>", "another version"),
    ):
        assert why in str(read_source(Frame("train.py", line, function), tmp_path))
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("gone.py", "pipe.py", "/dev/zero", ""):
        assert "not on this machine" in str(read_source(Frame(name, 1, "step"), tmp_path))
    (tmp_path / "large.py").write_bytes(b"#" * (MOST_BYTES + 1))
    assert "too large" in str(read_source(Frame("large.py", 1, "<module>"), tmp_path))
    later = source_lines(source, Frame("train.py", 5, "step"), {5: 1 << 20}, 1.0, UNICODE, 4)
    assert "after the snapshot" in styled.plain(later[0])
    assert any(styled.plain(line).startswith(" 1.00 MiB ▸") for line in later)


@in_loop
async def test_a_wide_screen_shows_source_calls_and_course_of_the_chosen_stack(tmp_path):
    for name in ("leak-before.pickle.gz", "leak-after.pickle.gz", "make.py"):
        shutil.copy(DEMOS / name, tmp_path)
    app = FileApp(tmp_path / "leak-after.pickle.gz")
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "Who holds most")
        await pilot.press("2")
        screen = await until(
            pilot,
            "The chosen stack",
            "▸    72      loss = (model(x) - x).square().mean()",
            "33.0 MiB",
            "calls, innermost first",
            "The largest stacks over the trace",
            "at most 32.0 MiB",
        )
        await pilot.press("down")
        await until(pilot, "▸    95          kept.append(model(x))  # with its graph: the mistake")
        await pilot.press("3")
        await until(pilot, "Who holds blocks of this size", "All segments to one scale", "make.py:")
        await pilot.press("4")
        await until(pilot, "The chosen stack", "over the trace, requested bytes", "freed while it")
        await pilot.press("5", "enter")
        screen = await until(pilot, "What grew since leak-before", "0 B before, 32.0 MiB after")
        assert "All segments to one scale" in screen


@in_loop
async def test_a_few_stacks_leave_room_for_the_map_and_sizes_have_it_too():
    app = FileApp(FAILING)
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "1 Map", "SEGMENT")
        await pilot.press("2")
        screen = await until(pilot, "The largest stacks over the trace", "at most 5.62 GiB")
        assert "All segments to one scale" in screen
        assert "ballast = torch.empty(free - 6400 * MiB" in screen
        await pilot.resize_terminal(*SIZE)
        await pilot.press("3")
        screen = await until(pilot, "Who holds blocks of this size", "all segments to one scale")
        await pilot.press("end")
        await until(pilot, "segments whose largest free run has this size", "704 MiB")


@in_loop
async def test_a_small_screen_keeps_its_list_and_opens_the_stack():
    app = FileApp(DEMOS / "training.pickle.gz")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "1 Map", "SEGMENT")
        await pilot.press("2")
        await until(pilot, "Who holds most", "make.py:72", absent="The chosen stack")
    app = FileApp(DEMOS / "training.pickle.gz")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "1 Map", "SEGMENT")
        await pilot.press("2")
        screen = await until(pilot, "The chosen stack", "loss = (model(x)", "calls in between")
        assert screen.index("Who holds most") < screen.index("The chosen stack")
        assert "training  make.py:84" in screen, "the user's own calls are not left out"


def test_the_text_under_a_map_that_is_cut_ends_with_a_whole_item_and_a_mark() -> None:
    with open_snapshot(Path("demos/snapshots/fragmented.pickle.gz")) as reading:
        (device,) = reading.summary.devices
    whole = [styled.plain(line) for line in map_lines(device, UNICODE, 62, 99)]
    rows = next(n for n, line in enumerate(whole) if line.startswith("by size")) + 1
    items = {
        one.strip(" …") for one in " ".join(whole[rows - 1 :]).removeprefix("by size").split(",")
    }
    assert rows < len(whole), "it has more lines than are shown"
    for cells in range(40, 90, 3):
        for high in range(rows - 1, rows + 2):
            shown = [styled.plain(line) for line in map_lines(device, UNICODE, cells, high)]
            assert len(shown) <= high
            assert all(len(line) <= cells for line in shown)
            if "by size" in "".join(shown) and shown[-1].endswith("…"):
                said = " ".join(shown).split("by size")[1]
                assert {one.strip(" …") for one in said.split(",")} - {""} <= items, shown


def test_the_line_of_a_snapshot_says_that_its_list_moves():
    keys = keys_of(SnapshotScreen)
    going = [hint.keys for hint in screen_hints(keys, ("stacks", "rows"))]
    assert going[:3] == ["1–5", "j k", "Enter"]
    assert "j k" not in [hint.keys for hint in screen_hints(keys, ("map",))], "nothing is read yet"


def test_what_there_is_one_of_is_not_called_several():
    path = Path(__file__).parents[1] / "data" / "snapshot-torch-2.15.pickle.gz"
    with open_snapshot(path) as reading:
        (device,) = reading.summary.devices
    said = " ".join(map(styled.plain, headline(device)))
    assert "in 1 segment " in said
    assert said.count("in 1 block") == 1
    assert "1 blocks" not in said
