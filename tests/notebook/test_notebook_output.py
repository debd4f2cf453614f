"""What a cell shows is the Memory tab's account and the doctor's findings, and is readable."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import subprocess
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from gpuscope.doctor import live, report, table
from gpuscope.model.fullest_account import account_at_the_fullest
from gpuscope.notebook import cell, extension, look, markup
from gpuscope.store.view import History
from gpuscope.text.units import bytes_text
from gpuscope.wire import frames as f
from tests.fakes import inside, views
from tests.snapshot.test_real import NEWEST

PAGES = ("#ffffff", "#111111", "#1e1e1e")
"""Backgrounds of JupyterLab and VS Code, light and dark."""


class Parsed(HTMLParser):
    """The tags of a page that are open, what it says, and all attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def shown(frames: list[f.Frame], pid: int | None = None) -> tuple[markup.Output, object, object]:
    """What a cell of the first trainer shows, with the store and the host."""
    store = views.store_of(frames)
    host = views.host_in(store)
    trainer = host.devices[0].allocators[0].definition.trainer if host.devices else None
    if pid is None:
        chosen = next((t for t in host.trainers if t.id == trainer), None)
        pid = chosen.definition.pid if chosen is not None else 0

    def history(entity: int, column: str, seconds: float | None) -> History:
        return store.history(views.SOURCE, entity, column, seconds)

    found = report.finish(live.examine(host, history), table.load())
    return look.output(host, pid, history, found, 90), host, history


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("token", markup.COLOURS)
@pytest.mark.parametrize("page", PAGES)
def test_bars_stand_out_on_light_and_on_dark_pages(token, page):
    light, dark = sorted((luminance(markup.COLOURS[token]), luminance(page)))[::-1]
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_the_waterfall_is_the_account_of_the_memory_tab():
    output, host, history = shown(inside.crowded(5.0))
    device = host.devices[0]
    account = account_at_the_fullest(host, device, device.allocators[0], history).account
    words = Parsed(output.html).words
    for part in account.parts:
        assert part.name in words
        assert ("≈ " if part.about else "") + bytes_text(part.known) in words
        assert re.search(rf"^ +{re.escape(part.name)} +", output.text, re.M)
    assert bytes_text(account.total) in words
    for note in account.notes:
        assert note in words
        assert note in output.text


def test_findings_stand_below_with_their_evidence():
    output, _, _ = shown(inside.crowded(5.0))
    page = " ".join(Parsed(output.html).words)
    assert "gpuscope doctor --explain" in page
    assert "Info (" in page
    assert "No problem and no warning." in page
    assert "No problem and no warning." in output.text
    assert "Exit code" not in page + output.text


def test_the_page_is_whole_in_itself_and_can_be_read_aloud():
    output, _, _ = shown(inside.crowded(5.0))
    page = Parsed(output.with_notes(["done"]).html)
    assert not page.open
    assert not page.tags & {"script", "link", "img", "iframe", "style"}
    assert not re.search(r"https?:|url\(|@import", output.html.replace("&", ""))
    names = {name for name, _ in page.attributes}
    assert not {name for name in names if name.startswith("on")} | names & {"src", "href"}
    assert {"caption", "th"} <= page.tags
    assert ("scope", "row") in page.attributes
    assert ("aria-label", "gpuscope") in page.attributes


def test_a_foreign_name_is_no_markup():
    frames = inside.crowded(5.0)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.proc is not None:
            frame.proc.name, frame.proc.command = "<script>x", "<script>x"
    output, _, _ = shown(frames)
    assert "&lt;script&gt;x" in output.html
    assert "<script" not in output.html


def test_a_process_without_a_probe_is_said_to_be_unknown():
    output, _, _ = shown(views.training(), pid=1)
    assert "what torch uses is unknown" in output.text
    assert "GPU 0 NVIDIA H200: " in output.text


def test_a_training_on_a_cpu_says_why_there_are_no_statistics():
    frames = views.cpu_only()
    pid = next(one.trainer.pid for one in frames if isinstance(one, f.Def) and one.trainer)
    output, _, _ = shown(frames, pid=pid)
    assert "On a CPU torch has no caching allocator" in output.text
    assert "No GPU found here: " in output.text


def test_what_a_cell_left_is_told_by_the_users_line():
    snapshot = pickle.loads(gzip.decompress(NEWEST.read_bytes()))
    stacked = sum(
        block["size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated" and block.get("frames")
    )
    assert stacked
    [found] = cell._alive(snapshot, lambda file: file.rsplit("/", 1)[-1])
    assert found.head == ("", "bytes", "blocks")
    assert all(re.search(r":\d+ \S+$", row[0]) for row in found.rows)
    assert len(found.rows) <= cell.SHOWN_LINES


MEASURED_CELL = """
import dataclasses, json, mmap
from gpuscope.notebook import cell
measured = cell.MeasuredCell(cell.CellOptions())
measured.begin()
freed = bytearray(96 << 20)
del freed
kept = mmap.mmap(-1, 32 << 20)  # not from malloc, which may still have pages of before
kept.write(bytes(len(kept)))
[table] = measured.end()
print(json.dumps(dataclasses.asdict(table)))
"""


def test_memory_that_a_cell_keeps_and_memory_that_it_frees():
    """It is measured in a process of its own, which has little else.

    That of the tests may hold more than a GiB, of which three digits are no whole MiB, and frees
    what earlier tests left.
    """
    ran = subprocess.run([sys.executable, "-c", MEASURED_CELL], capture_output=True, check=True)
    table_ = json.loads(ran.stdout)
    [(name, before, after, left, peak)] = table_["rows"]
    assert any(re.match(r"Measuring took \d", note) for note in table_["notes"])
    assert name == "process memory"

    def mebibytes(text: str) -> float:
        amount, unit = text.lstrip("+≤ ").split()
        return float(amount) * {"B": 2**-20, "KiB": 2**-10, "MiB": 1, "GiB": 1024}[unit]

    assert mebibytes(left) == pytest.approx(32, abs=2)
    assert mebibytes(after) == pytest.approx(mebibytes(before) + mebibytes(left), abs=2)
    assert mebibytes(peak) >= mebibytes(before) + 94


@pytest.mark.parametrize(
    ("cell_of_user", "run"),
    [
        ("%%gpuscope\nx = 1\n", "# measured by gpuscope\nx = 1\n"),
        ("\n%%gpuscope --lines\nx\n", "\n# measured by gpuscope\nx\n"),
        ("%%gpuscope\n%%time\nx\n", "%%time\nx\n"),
        ("%%gpuscopes\nx\n", "%%gpuscopes\nx\n"),
        ("%%gpuscope?\n", "%%gpuscope?\n"),
        ("x\n%%gpuscope\n", "x\n%%gpuscope\n"),
        ("", ""),
    ],
)
def test_a_measured_cell_runs_without_its_first_line(cell_of_user, run):
    assert "".join(extension.without_first_line(cell_of_user.splitlines(True))) == run


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--liv", "does not take --liv"),
        ("5", "does not take 5"),
        ("--live 1 2", "does not take 2"),
        ("--live x", "takes seconds"),
        ("--live 0", "takes seconds"),
        ("--live nan", "takes seconds"),
    ],
)
def test_other_words_are_refused_by_name_and_with_the_usage(words, what):
    with pytest.raises(ValueError, match=f"{what}.*%gpuscope shows"):
        extension.live_seconds(words)


def test_who_asks_for_help_gets_it_and_nothing_else():
    for asked in ("--help", "-h"):
        for words in (extension.live_seconds, extension.cell_options):
            with pytest.raises(ValueError, match=r"^%gpuscope shows"):
                words(asked)


def test_the_words_of_the_magics():
    assert [extension.live_seconds(one) for one in ("", "--live", "--live 5")] == [0, 60, 5]
    assert extension.cell_options(" --lines --keep-peak") == cell.CellOptions(True, True)
    with pytest.raises(ValueError, match=r"does not take --line\. .*first line of a cell"):
        extension.cell_options("--lines --line")


MIB = 1 << 20


class Card:
    """A card that is not there: torch's counters and history, for what needs no real memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allocated: int, peak: int) -> None:
        self.allocated, self.peak = allocated, peak
        self.calls: list[str] = []
        self.recording = False
        self.broken = False
        memory = SimpleNamespace(_record_memory_history=self._record, _snapshot=self._snapshot)
        core = SimpleNamespace(
            _cuda_getDeviceCount=lambda: 1,
            _cuda_hasPrimaryContext=lambda ordinal: True,
            _cuda_getAllocatorBackend=lambda: "native",
            _cuda_isHistoryEnabled=lambda: self.recording,
            _cuda_memoryStats=self._statistics,
        )
        cuda = SimpleNamespace(
            is_initialized=lambda: True,
            synchronize=self._synchronise,
            reset_peak_memory_stats=self._reset,
            memory=memory,
            _get_device_properties=lambda ordinal: SimpleNamespace(name="Test Card"),
        )
        torch = SimpleNamespace(cuda=cuda, _C=core, __version__="2.13.0")
        monkeypatch.setitem(sys.modules, "torch", torch)

    def _statistics(self, ordinal: int) -> dict[str, object]:
        def stat(now: int, peak: int) -> dict[str, dict[str, int]]:
            return {"all": {"current": now, "peak": peak}}

        return {
            "allocated_bytes": stat(self.allocated, self.peak),
            "reserved_bytes": stat(256 * MIB, 256 * MIB),
        }

    def _synchronise(self, ordinal: int) -> None:
        self.calls.append(f"synchronise {ordinal}")
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nadvice")

    def _reset(self, ordinal: int) -> None:
        self.calls.append(f"reset {ordinal}")
        self.peak = self.allocated

    def _record(self, enabled: str | None, **how: object) -> None:
        self.recording = enabled is not None

    def _snapshot(self) -> dict[str, object]:
        frames = [{"filename": "/tmp/ipykernel_1/2.py", "line": 3, "name": "<module>"}]
        old = {"state": "active_allocated", "size": 10 * MIB, "frames": []}
        fresh = {"state": "active_allocated", "size": 64 * MIB, "frames": frames}
        freed = {"state": "inactive", "size": 5 * MIB, "frames": frames}
        return {"segments": [{"blocks": [old, fresh, freed]}]}

    def use(self, allocated: int, peak: int) -> None:
        """Do what a cell does."""
        self.allocated, self.peak = allocated, max(self.peak, peak)


def test_a_cell_on_a_card_is_synchronised_once_at_each_end(monkeypatch):
    card = Card(monkeypatch, allocated=10 * MIB, peak=500 * MIB)
    measured = cell.MeasuredCell(cell.CellOptions())
    measured.begin()
    assert card.calls == ["synchronise 0", "reset 0"]
    card.use(74 * MIB, 200 * MIB)
    host, device = measured.end()
    assert card.calls == ["synchronise 0", "reset 0", "synchronise 0"]
    assert device.title == "cuda:0 Test Card"
    assert device.rows[0] == ("allocated", "10.0 MiB", "74.0 MiB", "+64.0 MiB", "200 MiB")
    assert device.rows[1] == ("reserved", "256 MiB", "256 MiB", "0 B", "256 MiB")
    assert any("synchronised once before the cell" in note for note in host.notes)
    assert any("500 MiB on cuda:0" in note for note in host.notes)
    assert any("%%gpuscope --lines" in note for note in device.notes)


@pytest.mark.parametrize(("peak", "said"), [(200, "≤ 500 MiB"), (600, "600 MiB")])
def test_a_peak_that_is_kept_is_known_only_where_it_was_exceeded(monkeypatch, peak, said):
    card = Card(monkeypatch, allocated=10 * MIB, peak=500 * MIB)
    measured = cell.MeasuredCell(cell.CellOptions(keep_peak=True))
    measured.begin()
    card.use(10 * MIB, peak * MIB)
    _, device = measured.end()
    assert "reset 0" not in card.calls
    assert device.rows[0][4] == said


def test_the_lines_of_what_a_cell_left_and_the_history_is_off_again(monkeypatch):
    card = Card(monkeypatch, allocated=10 * MIB, peak=10 * MIB)
    measured = cell.MeasuredCell(cell.CellOptions(lines=True))
    measured.begin()
    assert card.recording
    card.use(74 * MIB, 74 * MIB)
    _, _, lines = measured.end(lambda file: "Cell In[2]")
    assert not card.recording
    assert lines.rows == [("Cell In[2]:3 <module>", "64.0 MiB", "1")]


def test_a_history_of_somebody_else_is_left_alone(monkeypatch):
    card = Card(monkeypatch, allocated=10 * MIB, peak=10 * MIB)
    card.recording = True
    measured = cell.MeasuredCell(cell.CellOptions(lines=True))
    measured.begin()
    host, _ = measured.end()
    assert card.recording
    assert any("No lines: the training records its own history" in note for note in host.notes)


def test_an_error_of_the_card_is_told_and_hides_nothing_else(monkeypatch):
    card = Card(monkeypatch, allocated=10 * MIB, peak=10 * MIB)
    measured = cell.MeasuredCell(cell.CellOptions())
    measured.begin()
    card.broken = True
    host, device = measured.end()
    told = "cuda:0 could not be synchronised: CUDA error: an illegal memory access was encountered"
    assert told in host.notes
    assert device.rows
