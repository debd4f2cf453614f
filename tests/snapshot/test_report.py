"""The report and the document, from the model and from the command line."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from gpuscope.snapshot import report
from gpuscope.snapshot.diff_report import diff_lines
from gpuscope.snapshot.drawing import ASCII, BLOCKS, bar, flow_map, glyphs_for, segment_cells
from gpuscope.snapshot.model import DeviceDiff, Diff, DiffRow, Frame, Note, Summary, Totals
from gpuscope.snapshot.reader import open_snapshot
from gpuscope.text.styled import plain
from gpuscope.text.units import bytes_text as size
from tests.fakes.in_process import command
from tests.fakes.program import python
from tests.snapshot import synthetic

MIB = 1 << 20


def gpuscope(*words):
    return command("snapshot", *words)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two moments of one leaking training, and the summary of the later one."""
    folder = tmp_path_factory.mktemp("report")
    allocator = synthetic.Allocator(seed=3)
    synthetic.train(allocator, 2000, synthetic.make_stacks(), leak=1)
    synthetic.settle(allocator)
    allocator.note("oom", 3 << 20, 7 << 30, [])
    first = synthetic.snapshot([allocator])
    synthetic.train(allocator, 4000, synthetic.make_stacks(), leak=1)
    synthetic.settle(allocator)
    paths = [synthetic.write(first, folder / "early.pickle")]
    paths.append(synthetic.write(synthetic.snapshot([allocator]), folder / "late.pickle"))
    return paths


@pytest.fixture(scope="module")
def summary(files) -> Summary:
    with open_snapshot(files[1]) as reading:
        return reading.summary


def flat(lines):
    return [plain(line) for line in lines]


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII], ids=["blocks", "ascii"])
def test_the_legend_of_a_map_has_what_is_in_it_and_no_entry_is_parted(summary, glyphs):
    segments = summary.devices[0].segments
    for width in range(60, 160, 3):
        drawn, scale = flow_map(segments, width, 8, glyphs)
        legend = flat(report.legend_lines(drawn, scale, width, glyphs))
        assert len(legend) <= 2
        assert all(len(line) <= width for line in legend)
        whole = "  ".join(legend)
        assert whole.endswith(f"one cell = {size(scale)}")
        chars = set("".join(flat(drawn)))
        for mark, words in (
            (glyphs.full, "live"),
            (glyphs.shades, "partly"),
            (glyphs.pending, "pending"),
            (glyphs.free, "free"),
            (glyphs.edge, "next segment"),
        ):
            assert (f"{mark} {words}" in whole) == bool(chars & set(mark)), (width, words)
    assert len(legend) == 1, "there is room for one line"


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII], ids=["blocks", "ascii"])
def test_every_line_of_a_drawing_fits(summary, width, glyphs):
    device = summary.devices[0]
    parts = [
        report.totals_lines(device, width, glyphs),
        report.fragmentation_lines(device, width, glyphs),
        report.histogram_lines(device.sizes, width, glyphs),
        report.stack_lines(device.stacks, width, glyphs),
    ]
    drawn = [
        line
        for part in parts
        for line in flat(part)
        if not line.startswith(("free", "by size", "pool"))
    ]
    assert max(map(len, drawn)) <= max(width, 78)
    assert all(len(line) <= width for line in flat(flow_map(device.segments, width, 8, glyphs)[0]))
    if glyphs is ASCII:
        assert all(line.isascii() for part in parts for line in flat(part))


def test_the_map_shows_every_segment_at_one_scale(summary):
    segments = summary.devices[0].segments
    lines, scale = flow_map(segments, 100, 8, BLOCKS)
    text = "".join(flat(lines))
    unit = 1 << scale.bit_length() - 3
    assert scale % unit == 0, "4 to 7 times a power of two"
    cells = sum(max(1, -(-segment.bytes // scale)) for segment in segments)
    assert len(text.replace(BLOCKS.edge, "")) == cells
    assert 7 <= len(lines) <= 10, "the rows are used"
    full = sum(segment.allocated_bytes == segment.bytes for segment in segments)
    assert text.count(BLOCKS.full) >= full


def test_each_cell_of_a_map_stands_for_the_same_bytes():
    from gpuscope.snapshot.model import Segment

    live = [1000] * 50 + [0] * 50  # the first half of 100 MiB
    half = 50 << 20
    one = Segment(0, 2 * half, 0, "", False, True, False, half, 0, half, 1, live, [0] * 100)
    cells = plain(segment_cells(one, 9, BLOCKS, 12 << 20))
    assert cells == "████░····", "50 MiB are four cells of 12 MiB and a sixth of the fifth"
    assert plain(segment_cells(one, 10, BLOCKS)) == "█████·····"


def test_a_little_is_never_drawn_as_nothing_and_nearly_all_never_as_all():
    from gpuscope.snapshot.model import Segment

    segment = Segment(
        0,
        1 << 30,
        0,
        "default",
        False,
        True,
        False,
        1,
        0,
        1,
        2,
        live=[1, 999, 1000, 0],
        pending=[0] * 4,
    )
    assert "".join(flat(flow_map([segment], 4, 1, BLOCKS)[0])) == "░▓█·"
    assert bar(1e-9, 10).strip()
    assert bar(0, 10) == " " * 10
    assert len(bar(2.0, 10)) == 10


def test_the_report_says_what_matters(summary):
    text = "\n".join(flat(report.summary_lines(summary, 100)))
    device = summary.devices[0]
    for expected in (
        "late.pickle",
        size(device.totals.reserved_bytes),
        size(device.totals.allocated_bytes),
        f"the largest is {size(device.fragmentation.largest_free_bytes)}",
        f"free        {size(device.fragmentation.free_bytes)} in ",
        device.stacks.rows[0].frames[device.stacks.rows[0].headline].function,
        "live at the peak",
        f"entry 2,000: 7.00 GiB requested, {size(3 << 20)} free on the GPU",
        BLOCKS.oom,
    ):
        assert expected in text, expected


def test_notes_stand_in_the_header():
    summary = Summary(
        "/x/a.pickle", 10, 10, False, 4, False, [], notes=[Note("truncated", "it ends early")]
    )
    assert "! it ends early" in flat(report.summary_lines(summary, 80))


def test_glyphs_follow_the_encoding():
    assert glyphs_for("utf-8") is BLOCKS
    assert glyphs_for("ascii") is glyphs_for(None) is glyphs_for("no such") is ASCII


# ── the command ───────────────────────────────────────────────────────────────────────────────────


def test_text_for_a_file(files):
    done = gpuscope(files[1])
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 130
    words = [sys.executable, "-m", "gpuscope", "snapshot", files[1]]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    plain = subprocess.run(words, capture_output=True, text=True, timeout=120, env=env)
    assert plain.stdout.isascii()
    assert "?" not in plain.stdout


DOCUMENT_KEYS = {
    "path", "file_bytes", "complete", "newest_entry_time", "settings", "record", "devices",
    "events", "notes", "unknown", "exit_code",
}  # fmt: skip
DEVICE_KEYS = {
    "device", "allocated_bytes", "reserved_bytes", "active_bytes", "pending_bytes",
    "requested_bytes", "inactive_bytes", "fragmentation", "top_stacks", "other_stacks",
    "block_sizes", "pools", "segments", "trace", "notes",
}  # fmt: skip
FRAGMENTATION_KEYS = {
    "free_bytes", "free_blocks", "largest_free_bytes", "percent", "by_size", "inactive_split_bytes",
    "page_bound_bytes", "releasable_bytes", "private_free_bytes",
}  # fmt: skip


def test_the_document_has_the_keys_that_others_rely_on(files, summary):
    done = gpuscope(files[1], "--json", "--top", 3)
    document = json.loads(done.stdout)
    assert set(document) >= DOCUMENT_KEYS
    (device,) = document["devices"]
    assert set(device) >= DEVICE_KEYS
    assert set(device["fragmentation"]) >= FRAGMENTATION_KEYS
    assert device["allocated_bytes"] == summary.devices[0].totals.allocated_bytes
    assert len(device["top_stacks"]) == 3
    assert set(device["top_stacks"][0]) >= {"bytes", "count", "frames"}
    assert set(device["top_stacks"][0]["frames"][0]) == {"file", "line", "function"}
    assert [(event["device"], event["action"]) for event in document["events"]] == [
        (0, "oom"),
        (0, "snapshot"),
    ]
    assert document["unknown"] == []
    assert document["exit_code"] == done.returncode == 0


def test_null_has_its_reason(tmp_path):
    allocator = synthetic.Allocator()
    allocator.alloc(2 * MIB - 5, None)
    path = synthetic.write(synthetic.snapshot([allocator], history=False), tmp_path / "a")
    document = json.loads(gpuscope(path, "--json").stdout)
    assert document["devices"][0]["trace"] is None
    assert {row["path"] for row in document["unknown"]} == {"newest_entry_time", "devices[0].trace"}


@pytest.mark.slow
def test_moments_and_ranges(files):
    at = json.loads(gpuscope(files[1], "--json", "--at", "peak").stdout)["at"][0]
    assert at["allocated_bytes"] > 0
    assert at["top_stacks"]
    between = json.loads(gpuscope(files[1], "--json", "--at", "10%..end").stdout)["between"][0]
    assert (
        between["bytes"]
        == sum(row["bytes"] for row in between["top_stacks"])
        + between["other_stacks"]["other_bytes"]
    )
    assert "after entry" in gpuscope(files[1], "--at", "oom").stdout
    assert "still live" in gpuscope(files[1], "--at", "start..50%").stdout


def test_a_line_that_calls_several_functions_has_one_row_with_their_sum():
    mine, caller = Frame("/me/make.py", 95, "remember"), Frame("/me/make.py", 100, "leak")

    def row(grown: int, *inner: Frame) -> DiffRow:
        return DiffRow(0, 0, grown << 20, 2, [*inner, mine, caller], len(inner))

    relu, norm = Frame("functional.py", 1723, "relu"), Frame("functional.py", 2935, "layer_norm")
    alone = DiffRow(0, 0, 40 << 20, 4, [caller], 0)
    rows = [alone, row(32, relu), row(8, norm), row(2)]
    one = DeviceDiff(0, "stack", Totals(), Totals(), rows, *[0] * 8)
    said = [plain(line) for line in diff_lines(Diff("a", "b", [one]), 100)]
    told = said[said.index("change by line of code") + 1 :]
    assert [line.split() for line in told if "+" in line] == [
        ["+42.0", "MiB", "+6", "remember", "make.py:95"],
        ["+32.0", "MiB", "+2", "in", "relu", "functional.py:1723"],
        ["+8.00", "MiB", "+2", "in", "layer_norm", "functional.py:2935"],
        ["+2.00", "MiB", "+2", "in", "the", "line", "itself"],
        ["+40.0", "MiB", "+4", "leak", "make.py:100"],
    ]


def test_two_files_are_compared(files):
    done = gpuscope(*files, "--json")
    diff = json.loads(done.stdout)["diff"]
    (device,) = diff["devices"]
    assert (
        device["after"]["allocated_bytes"] - device["before"]["allocated_bytes"]
        == sum(row["after_bytes"] - row["before_bytes"] for row in device["rows"])
        + device["other_bytes"]
    )
    text = gpuscope(*files).stdout
    assert "late.pickle against early.pickle" in text
    assert "survivors" in text


def test_exit_codes(files, tmp_path):
    missing = gpuscope(tmp_path / "none", "--json")
    assert missing.returncode == 3
    assert json.loads(missing.stdout)["devices"] is None
    assert json.loads(missing.stdout)["unknown"][0]["code"] == "missing"
    assert "Traceback" not in missing.stderr
    (tmp_path / "cut").write_bytes(files[1].read_bytes()[:-3000])
    cut = gpuscope(tmp_path / "cut")
    assert cut.returncode == 1
    assert "the file ends after" in cut.stdout
    for words in (
        ["--device", "7"],
        ["--at", "tomorrow"],
        ["--memory-limit", "3"],
        ["--at", "50%..10%"],
    ):
        done = gpuscope(files[1], *words)
        assert (done.returncode, "Traceback" in done.stderr) == (64, False), words
    assert gpuscope().returncode == 64
    assert gpuscope(files[1], tmp_path / "none").returncode == 3


@pytest.mark.slow
def test_colours_on_a_terminal_only_where_wanted(files):
    words = [sys.executable, "-m", "gpuscope", "snapshot", "--text", "--top", "1", files[1]]
    for env, coloured in (
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
    ):
        leader, follower = pty.openpty()
        child = subprocess.Popen(
            words,
            stdout=follower,
            stdin=follower,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **env},
        )
        os.close(follower)
        said = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:
                break
            said += part
        os.close(leader)
        assert child.wait(60) == 0
        assert (re.search(rb"\x1b\[[\d;]+m", said) is not None) is coloured


@pytest.mark.slow
def test_the_verb_loads_no_torch_and_no_textual(files):
    code = (
        "import sys\nfrom gpuscope.cli import main as cli\n"
        f"cli.main(['snapshot', {str(files[1])!r}, '--top', '1'])\n"
        "print('LOADED', *[m for m in ('torch', 'textual', 'rich', 'pickle', 'asyncio') if m in "
        "sys.modules])"
    )
    done = python("-c", code)
    assert done.stdout.splitlines()[-1] == "LOADED", done.stdout[-200:]


def test_the_printed_report_ends_with_the_way_to_the_fix(files, tmp_path):
    path = tmp_path / "of a failure.pickle"
    path.write_bytes(files[1].read_bytes())
    done = gpuscope(path)
    command_line = f"gpuscope doctor '{path}'"
    assert done.stdout.rstrip().splitlines()[-1].startswith(f"Next: {command_line}")
    assert "Next:" not in gpuscope(path, "--at", "peak").stdout
