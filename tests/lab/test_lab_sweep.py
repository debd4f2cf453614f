"""Sweeps: order, failures, resuming after a kill, two at once.

Failures are made by a stand-in for the worker's Python that speaks the real protocol; the last
tests train for real.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuscope.lab import tables
from gpuscope.lab.config import LabConfig
from gpuscope.lab.launch import PYTHON_VARIABLE
from gpuscope.lab.ledger import PATH_VARIABLE, RunLedger
from gpuscope.lab.matrix import combinations, vary_of
from gpuscope.lab.sweep import Sweep, SweepError, SweepPlan, cell_key, new_plan, stored, unfinished
from tests.fakes.forking import forking_python
from tests.fakes.lab_runs import DIES, FAILS, HANGS, stand_in
from tests.fakes.waiting import alive, until

ROOT = Path(__file__).resolve().parents[2]
BASE = ["--model", "mlp-tiny", "--device", "cpu", "--steps", "6"]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch) -> RunLedger:
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "lab.sqlite"))
    return RunLedger()


@pytest.fixture
def log(tmp_path: Path, monkeypatch) -> Path:
    """Runs go to a stand-in; the file that says which it made."""
    python, log = stand_in(tmp_path)
    monkeypatch.setenv(PYTHON_VARIABLE, str(python))
    return log


def made(log: Path) -> list[tuple[int, int]]:
    """(micro-batch, seed) of each run, in their order."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(batch), int(seed)) for batch, seed in map(str.split, lines)]


def cells(*batches: int, **toggles: object) -> list[LabConfig]:
    base = LabConfig(model="mlp-tiny", device="cpu", steps=6, **toggles)  # type: ignore[arg-type]
    return combinations(base, vary_of([f"batch={','.join(map(str, batches))}"]))


def sweep(plan: SweepPlan, ledger: RunLedger, **more: object) -> Sweep:
    return Sweep(plan, ledger, lambda state, entry: None, **more)  # type: ignore[arg-type]


def start(*words: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "lab", "sweep", *BASE, *words],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
    )


def finish(process: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=seconds)
    assert "Traceback" not in errors, errors
    return process.returncode, out, errors


def call(*words: str, **environ: str) -> tuple[int, str, str]:
    return finish(start(*words, **environ))


# ── in this process ───────────────────────────────────────────────────────────────────────────────


def test_runs_are_interleaved_and_each_repeat_has_its_seed(ledger: RunLedger, log: Path) -> None:
    plan = new_plan(cells(1, 2, 3), repeats=3)
    assert sweep(plan, ledger).run().complete
    assert made(log) == [(1, 0), (2, 0), (3, 0), (3, 1), (2, 1), (1, 1), (1, 2), (2, 2), (3, 2)]
    entries = ledger.entries(limit=None, group=plan.group)
    assert {(entry.cell, entry.repeat) for entry in entries} == {
        (cell_key(c), n) for c in plan.cells for n in range(3)
    }
    assert {entry.source for entry in entries} == {"sweep"}
    found = tables.results(plan, entries)
    assert found[2].ratio("samples_per_second").ratio == pytest.approx(3.0)
    assert found[2].ratio("samples_per_second").basis == "3 interleaved repeats"


def test_what_fails_is_written_down_and_does_not_stop_the_rest(
    ledger: RunLedger, log: Path
) -> None:
    plan = new_plan(cells(1, FAILS, DIES, HANGS), repeats=2)
    assert sweep(plan, ledger, limit_seconds=1).run().complete
    assert made(log) == [(1, 0), (FAILS, 0), (DIES, 0), (HANGS, 0), (1, 1)], (
        "no failure is tried in every round"
    )
    good, memory, died, hung = tables.results(plan, ledger.entries(group=plan.group))
    assert len(good.good) == 2
    assert memory.failure == "CUDA ran out of memory: it asked for 1 TiB"
    assert "signal SIGKILL" in died.failure
    assert "stopped after 1 s" in hung.failure
    assert [cell.mean("samples_per_second") for cell in (memory, died, hung)] == [None, None, None]
    text = "\n".join(tables.remarks(plan, [good, memory, died, hung]))
    assert "CUDA ran out of memory" in text


@pytest.mark.slow
def test_it_goes_on_where_it_was(ledger: RunLedger, log: Path) -> None:
    plan = new_plan(cells(1, 2), repeats=2)
    first = sweep(plan, ledger)
    first._on_change = lambda state, entry: (
        first.stop("a test") if state.made == 1 and entry else None
    )
    outcome = first.run()
    assert (outcome.complete, outcome.stopped) == (False, "a test")
    assert len(ledger.entries()) == 1
    again = unfinished(ledger, new_plan(cells(1, 2), repeats=2))
    assert again == plan
    assert unfinished(ledger, new_plan(cells(1, 2), repeats=3)) is None
    assert unfinished(ledger, new_plan(cells(2, 1), repeats=2)) is None
    assert sweep(again, ledger).run().complete
    assert sorted(made(log)) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert unfinished(ledger, plan) is None
    assert sweep(stored(ledger, plan.group), ledger).run().complete, (
        "what is complete is complete at once"
    )
    assert len(made(log)) == 4


def test_a_stop_before_the_first_record_does_not_wait_for_the_run(
    ledger: RunLedger, log: Path
) -> None:
    one = sweep(new_plan(cells(HANGS), 1), ledger, limit_seconds=20.0)

    def change(state, entry):
        one._on_change = lambda state, entry: None
        one.stop("a test")  # the worker is not started yet

    one._on_change = change
    began = time.monotonic()
    assert one.run().stopped == "a test"
    assert time.monotonic() - began < 15.0
    assert ledger.entries(limit=None) == []


def test_the_watcher_sees_every_run_and_fills_in(ledger: RunLedger, log: Path) -> None:
    class Watch:
        def __init__(self) -> None:
            self.heard: list[str] = []

        def record(self, record: object) -> None:
            self.heard.append(type(record).__name__)

        def finish(self, document: dict) -> dict:
            assert self.heard == ["Started", "Step", "RunEnded"]
            return {**document, "tensor_active_percent": 42.0}

    plan = new_plan(cells(1, 2), repeats=1)
    assert sweep(plan, ledger, watch=Watch).run().complete
    assert [entry.document["tensor_active_percent"] for entry in ledger.entries()] == [42.0, 42.0]


def test_a_plan_that_cannot_be_read_is_told(ledger: RunLedger) -> None:
    for number, plan in enumerate(
        [{}, {"cells": 3}, {"cells": [{"model": "x"}], "refused": [], "warnings": []}]
    ):
        ledger.keep_plan(f"g{number}", plan)
        with pytest.raises(SweepError, match="cannot be read"):
            stored(ledger, f"g{number}")
    with pytest.raises(SweepError, match="There is no sweep"):
        stored(ledger, "nope")


# ── the command ───────────────────────────────────────────────────────────────────────────────────


def test_the_plan_of_a_dry_run_is_a_table(ledger: RunLedger, log: Path) -> None:
    code, out, _ = call("--vary", "compile=off,default", "--dry-run")
    assert code == 0
    assert made(log) == []
    rows = [line for line in out.splitlines() if "--headless" in line]
    assert len(rows) == 2
    assert len({row.index("gpuscope lab") for row in rows}) == 1, out


@pytest.mark.slow
def test_refused_combinations_are_listed_before_anything_starts(
    ledger: RunLedger, log: Path
) -> None:
    code, out, errors = call("--vary", "foreach=on,off", "--vary", "fused=on,off", "--repeats", "1")
    assert code == 1
    assert len(made(log)) == 3
    assert "not run: --foreach and --fused exclude each other" in errors
    assert "Nearest: gpuscope lab " in errors
    assert "not run: --foreach and --fused exclude each other" in out
    assert "\x1b" not in out + errors
    assert "\r" not in errors, "no bar is drawn where nobody sees it"
    code, _, errors = call("--vary", "foreach=on", "--fused", "--repeats", "1")
    assert code == 2
    assert "Nothing to run" in errors


@pytest.mark.slow
def test_exit_codes_and_tables_of_failures(ledger: RunLedger, log: Path, tmp_path: Path) -> None:
    code, out, _ = call("--vary", f"batch=1,{FAILS}", "--repeats", "1", "--json")
    assert code == 1
    found = json.loads(out)
    assert [cell["failure"] for cell in found["cells"]] == [
        None,
        "CUDA ran out of memory: it asked for 1 TiB",
    ]
    assert found["cells"][1]["samples_per_second"] is None
    code, out, _ = call("--vary", f"batch={FAILS}", "--repeats", "1", "-o", str(tmp_path / "t.csv"))
    assert code == 2
    rows = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert rows[0]["failure"].startswith("CUDA ran out of memory")
    assert rows[0]["samples_per_second"] == ""
    _, _, errors = call("--resume", found["group"])
    assert "1 of them failed and are not repeated (--retry-failed" in errors
    code, _, _ = call("--resume", found["group"], "--retry-failed")
    assert code == 1
    assert made(log).count((FAILS, 0)) == 3, "asked for, a failure is tried again"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Nothing to sweep"),
        (["--vary", "amp=fp8"], "cannot be 'fp8'"),
        (
            ["--vary", "batch=1,2", "--repeats", "0"],
            "--repeats: must be a whole number from 1 to 1000",
        ),
        (
            ["--vary", "batch=1,2", "--timeout", "x"],
            "--timeout: must be a number of seconds from 1 to 999,999",
        ),
        (["--vary", "batch=1,2", "-o", "/no/such/folder/x.md"], "cannot write a file there"),
        (["--matrix", "/no/such/file.toml"], "cannot be read"),
    ],
)
def test_usage_errors_start_nothing(
    ledger: RunLedger, log: Path, words: list[str], message: str, capsys
) -> None:
    from gpuscope.cli import main as cli

    try:
        code: object = cli.main(["lab", "sweep", *BASE, *words])
    except SystemExit as left:  # where the parser refuses it
        code = left.code
    assert code == 64
    assert message in capsys.readouterr().err
    assert not log.exists()
    assert not ledger.path.exists()


def test_a_ledger_that_cannot_be_used_stops_it_before_it_starts(
    ledger: RunLedger, log: Path, capsys
) -> None:
    from gpuscope.cli import main as cli

    ledger.path.write_text("no ledger " * 1000)
    assert cli.main(["lab", "sweep", *BASE, "--vary", "batch=1,2"]) == 3
    assert "is not a gpuscope ledger" in capsys.readouterr().err
    assert made(log) == []


def test_no_torch_is_said_once(ledger: RunLedger, monkeypatch, capsys) -> None:
    from gpuscope.cli import main as cli

    monkeypatch.setenv(PYTHON_VARIABLE, "/no/such/python")
    assert cli.main(["lab", "sweep", *BASE, "--vary", "batch=1,2"]) == 3
    assert capsys.readouterr().err.count("The lab needs a Python with PyTorch") == 1


@pytest.mark.slow
def test_the_bar_is_drawn_on_a_terminal_without_escape_sequences(
    ledger: RunLedger, tmp_path: Path
) -> None:
    python, _ = stand_in(tmp_path, seconds=0.5)
    ours, theirs = pty.openpty()
    environ = {**os.environ, PYTHON_VARIABLE: str(python), "COLUMNS": "60"}
    words = ["-m", "gpuscope", "lab", "sweep", *BASE, "--vary", "batch=1,2", "--repeats", "1"]
    process = subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=theirs, env=environ
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    assert process.wait(30) == 0
    text = shown.decode()
    assert "\x1b" not in text
    drawn = [line for line in text.replace("\n", "\r").split("\r") if "░" in line or "█" in line]
    assert any("0/2" in line and "batch=1" in line for line in drawn)
    assert any(re.search(r"1/2  \d+ s left", line) for line in drawn)
    assert max(map(len, drawn)) < 60


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(ledger: RunLedger, tmp_path: Path, number: int) -> None:
    python, log = stand_in(tmp_path, seconds=30)
    process = start("--vary", "batch=1,2", **{PYTHON_VARIABLE: str(python)})
    until(lambda: made(log), 30)
    process.send_signal(number)
    code, out, errors = finish(process, 20)
    assert code == 2
    group = ledger.unfinished()[0][0]
    assert f"Next: gpuscope lab sweep --resume {group}" in errors
    assert f"Stopped by {signal.Signals(number).name}: 0 of 6 runs" in errors
    assert ledger.entries() == [], "a run that was cut short is not written down"
    assert "batch=1" in out
    assert [path.name for path in tmp_path.glob(".*.lock")] == []


@pytest.mark.slow
def test_the_same_sweep_is_not_run_twice_at_once(ledger: RunLedger, tmp_path: Path) -> None:
    python, log = stand_in(tmp_path, seconds=30)
    environ = {PYTHON_VARIABLE: str(python)}
    process = start("--vary", "batch=1,2", **environ)
    until(lambda: made(log), 30)
    code, _, errors = call("--vary", "batch=1,2", **environ)
    assert code == 3
    assert f"Another process runs it (pid {process.pid})" in errors
    process.send_signal(signal.SIGINT)
    finish(process, 20)
    assert len(made(log)) == 1


# ── real trainings ────────────────────────────────────────────────────────────────────────────────


def workers(parent: int) -> list[int]:
    """The processes of a sweep's worker."""
    out = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True).stdout
    return [int(word) for word in out.split()]


def killed(
    words: list[str], ledger: RunLedger, after: int, begun: Callable[[], bool], **environ: str
) -> None:
    """Run a sweep that gets SIGKILL while a run is in progress.

    It is the run after the ``after``-th; its worker ends by itself.
    """
    process = start(*words, **environ)
    until(lambda: len(ledger.entries()) == after and begun() and workers(process.pid), 120)
    children = workers(process.pid)
    process.kill()
    process.communicate()
    until(lambda: not any(map(alive, children)), 20)
    assert len(ledger.entries()) == after


@pytest.mark.slow
def test_a_killed_sweep_goes_on_with_no_run_lost_and_none_made_twice(
    ledger: RunLedger, tmp_path: Path
) -> None:
    python, log = stand_in(tmp_path, seconds=1)
    words = ["--vary", "batch=1,2", "--repeats", "2"]
    killed(words, ledger, 1, lambda: len(made(log)) == 2, **{PYTHON_VARIABLE: str(python)})
    killed(words, ledger, 3, lambda: len(made(log)) == 5, **{PYTHON_VARIABLE: str(python)})
    code, out, errors = call(*words, **{PYTHON_VARIABLE: str(python)})
    assert code == 0, errors
    assert "3 of its 4 runs are in the ledger" in errors
    assert "[95 % interval] from 2 interleaved repeats" in out
    entries = ledger.entries(limit=None)
    assert [(entry.document["config"]["batch"], entry.config.seed) for entry in entries[::-1]] == [
        (1, 0),
        (2, 0),
        (2, 1),
        (1, 1),
    ]
    assert ledger.unfinished() == []
    assert len(made(log)) == 6, "the two that were cut short were made again"


@pytest.mark.slow
def test_real_trainings_and_a_kill_between_them(
    ledger: RunLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv(PYTHON_VARIABLE, forking_python(tmp_path))
    words = ["--vary", "amp=off,bf16", "--repeats", "1"]
    killed(words, ledger, 1, lambda: True)
    first = ledger.entries()
    code, out, errors = finish(start(*words, "-o", str(tmp_path / "table.md")), 300)
    assert code == 0, errors
    entries = ledger.entries(limit=None)
    assert len(entries) == 2
    assert entries[1] == first[0]
    assert [entry.config.amp for entry in entries] == ["bf16", "off"]
    assert {entry.document["steps"] for entry in entries} == {6}
    assert all(entry.document["samples_per_second"] > 0 for entry in entries)
    assert "amp=bf16" in out
    assert (
        (tmp_path / "table.md").read_text().startswith("| # | configuration | runs | samples/s |")
    )
