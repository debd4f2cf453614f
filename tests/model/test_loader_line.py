"""The loader of a running trainer is read in its script, for a fix that can be pasted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.doctor import live
from gpuscope.doctor.finding import Finding
from gpuscope.model.loader_line import LoaderLine, loader_of
from gpuscope.probe.rendezvous import start_ticks
from gpuscope.store.view import TrainerView
from gpuscope.text import styled
from gpuscope.tui.hosts.runs import run_of
from gpuscope.tui.processes.entries import entries
from gpuscope.tui.processes.idle import Idleness
from gpuscope.tui.shared.job_rows import job_lines
from gpuscope.tui.trainer.rank_rows import rank_rows
from gpuscope.wire import frames as f
from tests.cli.test_snapshot_live import frames_of
from tests.fakes import views

CALL = "DataLoader(data, batch_size=16, shuffle=True)"


@pytest.fixture
def started(tmp_path):
    """Start a process whose script has this text, and return the frames of its trainer."""
    running: list[subprocess.Popen[bytes]] = []

    def start(text: str, cuda: bool = False, busy: float = 50.0) -> list[f.Frame]:
        (tmp_path / "train.py").write_text(text)
        sleeps = [sys.executable, "-c", "input()"]
        one = subprocess.Popen(sleeps, cwd=tmp_path, stdin=subprocess.PIPE)
        running.append(one)
        out = frames_of(one.pid, cuda)
        for frame in out:
            if isinstance(frame, f.Def) and frame.trainer is not None:
                frame.trainer.start = start_ticks(one.pid)
            if isinstance(frame, f.Def) and frame.host is not None:
                frame.host.cpu_count = 2
        assert isinstance(out[-1], f.Sample)
        out[-1].h = [views.host_row(cpu_percent=busy)]
        rows = "input 36 180|forward 24 120"
        data = {"m": 100_000_000_000, "seconds": 60.0, "steps": 100, "looks": 300, "rows": rows}
        return [*out, f.Event(300 + one.pid % 100, "time", 160_000_000_000, "", data)]

    yield start
    for one in running:
        one.kill()
        one.wait()


def the_trainer(frames: list[f.Frame]) -> TrainerView:
    (one,) = views.host_of(frames).trainers
    return one


def the_finding(frames: list[f.Frame]) -> Finding:
    (one,) = [one for one in live.examine(*views.seen(frames)).findings if "input" in one.cause]
    return one


def test_the_line_is_found_where_one_loader_trains(started):
    text = f"import torch\nloader = {CALL}\ntest = DataLoader(other, batch_size=64)\n"
    assert loader_of(the_trainer(started(text))) == LoaderLine("train.py:2", CALL, 0)


@pytest.mark.parametrize(
    "text",
    [
        "loader = build()\n",
        "a = DataLoader(x, shuffle=True)\nb = DataLoader(y, shuffle=True)\n",
        "loader = DataLoader(data, **settings)\n",
        "loader = DataLoader(\n",
    ],
)
def test_a_script_that_leaves_it_open_has_no_line(started, text):
    frames = started(text)
    assert loader_of(the_trainer(frames)) is None
    assert the_finding(frames).fixes[0].code.startswith("DataLoader(…, num_workers=1")


def test_a_script_that_has_changed_or_runs_elsewhere_is_not_read(started, tmp_path: Path):
    frames = started(f"loader = {CALL}\n")
    later = (tmp_path / "train.py").stat().st_mtime + 60
    os.utime(tmp_path / "train.py", (later, later))
    assert loader_of(the_trainer(frames)) is None
    frames = started(f"loader = {CALL}\n")
    for frame in frames:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.start += 1  # type: ignore[operator]
    assert loader_of(the_trainer(frames)) is None


def test_the_fix_keeps_what_the_script_says_and_adds_what_the_host_has_room_for(started):
    one = the_finding(started(f"loader = {CALL}\n"))
    (fix, *_) = one.fixes
    assert (one.severity, fix.before) == ("warning", CALL)
    wanted = "DataLoader(data, batch_size=16, shuffle=True, num_workers=1, persistent_workers=True)"
    assert fix.code == wanted
    line = LoaderLine("train.py:2", CALL, 0)
    assert line.with_workers(4, pinned=True).endswith(
        "num_workers=4, pin_memory=True, persistent_workers=True)"
    )


def test_nothing_can_be_done_where_the_workers_are_there_and_no_core_is_free(started):
    text = "loader = DataLoader(data, batch_size=16, num_workers=2)\n"
    one = the_finding(started(text, busy=97.0))
    assert one.severity == "info"
    said = " ".join(part.text for part in one.evidence)
    assert "train.py:1 has 2 workers already" in said
    assert "more workers would not help" in said
    assert [fix.code for fix in one.fixes] == [""], "fewer workers are no advice"
    assert the_finding(started(text, busy=10.0)).severity == "warning", "a core is free"


@pytest.mark.parametrize(("busy", "severity"), [(97.0, "info"), (20.0, "warning")])
def test_all_surfaces_take_a_wait_that_nothing_helps_against_alike(started, busy, severity):
    frames = started("loader = DataLoader(data, batch_size=16, num_workers=1)\n", busy=busy)
    sample = next(frame for frame in frames if isinstance(frame, f.Sample))
    sample.t[0][1 + f.TRAINER_COLUMNS.index("loader_wait_seconds")] = 0.3  # of steps of 0.5 s
    if severity == "warning":  # with one core more its worker is too few
        for frame in frames:
            if isinstance(frame, f.Def) and frame.host is not None:
                frame.host.cpu_count = 4
    host, history = views.seen(frames)
    assert the_finding(frames).severity == severity
    warns, token = severity == "warning", "warn" if severity == "warning" else "muted"
    (line,) = job_lines(host, history=history)
    assert line.cells["input"] == ("60 %", token)
    (note,) = [note for note in line.notes if note[0][0].startswith("input")]
    assert note[0][1] == token
    assert styled.plain(note).endswith("waits for data 60 % of the last 1 min")
    (row,) = rank_rows(host, host.jobs[0], None, history)
    assert row.cells["input"] == [("60 %", token)]
    run = run_of(host, host.jobs[0], "job", history)
    assert (run.input, run.waits) == (pytest.approx(0.6), warns)
    entry = next(one for one in entries(host, history, Idleness()) if one.trainer is not None)
    assert (entry.starved > 0) is warns
