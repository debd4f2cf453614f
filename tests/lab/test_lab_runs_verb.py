"""``gpuscope lab runs`` and the tables: what is listed, compared, exported and removed."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.cli import main as cli
from gpuscope.exit_status import ExitStatus
from gpuscope.lab import tables
from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import PATH_VARIABLE, RunLedger
from gpuscope.lab.sweep import Objection, SweepPlan, cell_key, new_plan
from gpuscope.lab.tune.runner import SearchJob
from tests.fakes.lab_runs import document
from tests.fakes.program import python
from tests.recordings import REDACTED

RECORDING = REDACTED / "h200-lab.gsr"


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch) -> RunLedger:
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "lab.sqlite"))
    return RunLedger()


@pytest.fixture
def swept(ledger: RunLedger) -> SweepPlan:
    """Put a sweep of two configurations and three repeats into the ledger.

    The second configuration is twice as fast, in a quarter of the memory.
    """
    cells = [
        LabConfig(model="gpt-tiny", device="cpu", steps=100, batch=8, amp=amp)
        for amp in ("off", "bf16")
    ]
    plan = new_plan(
        cells,
        3,
        [Objection("amp=fp16", "fp16 is refused.", "it is slow.", "gpuscope lab --amp bf16")],
    )
    ledger.keep_plan(plan.group, plan.to_mapping())
    for repeat, seconds in enumerate((0.10, 0.11, 0.12)):
        for index, (cell, label) in enumerate(zip(cells, plan.labels, strict=True)):
            values = document(
                seconds / (1 + index), amp=cell.amp, peak_allocated_bytes=(4 << 30) >> 2 * index
            )
            ledger.add(
                values,
                source="sweep",
                group=plan.group,
                repeat=repeat,
                label=label,
                cell=cell_key(cell),
            )
    ledger.finish_plan(plan.group)
    return plan


def call(capsys, *words: str) -> tuple[int, str, str]:
    try:
        code = cli.main(["lab", "runs", *words])
    except SystemExit as left:  # where the parser refuses it
        code = int(str(left.code))
    done = capsys.readouterr()
    assert "\x1b" not in done.out + done.err
    return code, done.out, done.err


def test_list(ledger: RunLedger, swept: SweepPlan, capsys) -> None:
    ledger.add(document(compile="default"))
    code, out, _ = call(capsys)
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 8
    assert lines[0].split() == [
        "id",
        "when",
        "run",
        "device",
        "steps",
        "samples/s",
        "step",
        "p95",
        "peak",
        "sweep",
    ]
    assert lines[1].startswith(" 7  ") or lines[1].startswith("7  ")
    assert "--compile default" in lines[1]
    assert "amp=bf16" in lines[2]
    assert len(call(capsys, "list", "--limit", "2")[1].splitlines()) == 3
    found = json.loads(call(capsys, "list", "--json")[1])
    assert [run["id"] for run in found["runs"]] == [7, 6, 5, 4, 3, 2, 1]


def test_nothing_yet_says_what_to_do(ledger: RunLedger, capsys) -> None:
    code, out, _ = call(capsys)
    assert code == 0
    assert "has no runs yet" in out
    assert not ledger.path.exists()


def test_show(ledger: RunLedger, swept: SweepPlan, capsys) -> None:
    code, out, _ = call(capsys, "show", "2")
    assert code == 0
    assert (
        "gpuscope lab --model gpt-tiny --device cpu --amp bf16 --batch 8 --steps 100 --headless"
        in out
    )
    assert "1.00 GiB" in out
    found = json.loads(call(capsys, "show", "2", "--json")[1])
    assert found["document"]["peak_allocated_bytes"] == 1 << 30
    code, out, _ = call(capsys, "show", swept.group)
    assert code == 0
    assert "2.000 × [2.000, 2.000]" in out
    assert (
        "not run: fp16 is refused: it is slow (amp=fp16). Nearest: gpuscope lab --amp bf16" in out
    )


def test_the_runs_of_a_search_are_shown_and_compared_but_are_no_sweep(
    ledger: RunLedger, capsys
) -> None:
    job = SearchJob("tune-1128-0953-0f6b", LabConfig(model="gpt-tiny", device="cpu"))
    ledger.keep_plan(job.group, job.to_mapping())
    for repeat, (amp, seconds) in enumerate((("off", 0.1), ("bf16", 0.2), ("off", 0.3))):
        asked = replace(job.baseline, amp=amp)
        label = "baseline" if amp == "off" else "amp=bf16"
        values = document(seconds, amp=amp, batch=8)  # what was run is known more closely
        ledger.add(values, source="tune", group=job.group, repeat=repeat, label=label,
                   cell=cell_key(asked))  # fmt: skip
    ledger.finish_plan(job.group)
    code, out, _ = call(capsys, "show", job.group)
    assert code == 0
    rows = [line.split()[:3] for line in out.splitlines()[1:3]]
    assert rows == [["1", "baseline", "2/2"], ["2", "amp=bf16", "1/1"]]
    assert "×" not in out, "its runs were not made in turns"
    assert "no ratios: the runs of a search are not all made in turns" in out
    found = json.loads(call(capsys, "show", job.group, "--json")[1])
    assert [len(cell["runs"]) for cell in found["cells"]] == [2, 1]
    code, out, _ = call(capsys, "compare", f"{job.group}:1", f"{job.group}:2")
    assert code == 0
    assert "differing settings: amp off → bf16" in out
    assert cli.main(["lab", "sweep", "--resume", job.group]) == ExitStatus.USAGE
    assert "is a search, no sweep" in capsys.readouterr().err


def test_compare(ledger: RunLedger, swept: SweepPlan, capsys) -> None:
    code, out, _ = call(capsys, "compare", f"{swept.group}:1", f"{swept.group}:2")
    assert code == 0
    assert "differing settings: amp off → bf16" in out
    pace = next(line for line in out.splitlines() if line.startswith("samples/s"))
    assert (
        " ".join(pace.split())
        == "samples/s, mean 72.9 146 2.000 × 2.000 … 2.000 better 3 interleaved repeats"
    )
    by_id = call(capsys, "compare", "1,3,5", "2,4,6")[1]
    assert by_id == out
    found = json.loads(call(capsys, "compare", "1", "2", "3", "--json")[1])["comparisons"]
    assert [one["b"]["name"] for one in found] == ["2", "3"]
    assert found[0]["differing"] == [{"name": "amp", "a": "off", "b": "bf16", "toggle": True}]
    row = next(row for row in found[0]["rows"] if row["key"] == "peak_allocated_bytes")
    assert (row["ratio"], row["low"], row["basis"]) == (0.25, None, "one run each")


def test_a_recording_against_a_run_and_against_another(
    ledger: RunLedger, swept: SweepPlan, capsys
) -> None:
    code, out, _ = call(capsys, "compare", "1", f"{RECORDING}:471")
    assert code == 0
    assert "h200-lab.gsr:471 script-2" in out
    assert "Note: B is a recording" in out
    assert "different devices: a CPU and NVIDIA H200" in out
    assert "loss after 100 steps" in out
    code, out, _ = call(
        capsys, "compare", f"{RECORDING}:471", f"{RECORDING}:429", "--samples-per-step", "32"
    )
    assert code == 0
    assert "steps within one run" in out
    pace = next(line for line in out.splitlines() if line.startswith("samples/s"))
    assert pace.endswith("one run each")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["show", "99"], 2, "no run 99"),
        (["show", "no-group"], 2, "There is no sweep"),
        (["compare", "1"], 64, "two or more sides"),
        (["compare", "1", "99"], 2, "no run 99"),
        (["compare", "1", "x.gsr"], 2, "There is no file x.gsr"),
        (["compare", "1", str(RECORDING)], 3, "contains 2 trainings: name one"),
        (["compare", "1", f"{RECORDING}:1"], 3, "no training with pid 1"),
        (["compare", "1", "GROUP"], 64, "name one"),
        (["compare", "1", "GROUP:9"], 64, "name one"),
        (["compare", "1", "2", "--samples-per-step", "x"], 64, "must be a whole number"),
        (["remove"], 64, "remove takes ids"),
        (["remove", "1", "--group", "g"], 64, "remove takes ids"),
        (["remove", "99"], 2, "no run 99"),
        (["remove", "--group", "g"], 2, "no runs of g"),
        (["remove", "0"], 64, "must be a whole number"),
        (["remove", "9" * 400], 64, "must be a whole number"),
        (["export", "--group", "g"], 2, "There is no sweep"),
        (["export", "-o", "/no/such/folder/x"], 3, "cannot be written"),
        (["list", "--limit", "-1"], 64, "must be a whole number"),
    ],
)
def test_what_cannot_be_done_is_said(
    ledger: RunLedger, swept: SweepPlan, capsys, words: list[str], code: int, message: str
) -> None:
    words = [word.replace("GROUP", swept.group) for word in words]
    found, _, errors = call(capsys, *words)
    assert (found, message in errors) == (code, True), errors
    assert len(ledger.entries()) == 6


def test_a_damaged_ledger_is_said_and_set_aside(ledger: RunLedger, capsys) -> None:
    ledger.path.write_text("my diary " * 500)
    code, _, errors = call(capsys)
    assert code == 3
    assert "Next: gpuscope lab runs set-aside" in errors
    code, out, _ = call(capsys, "set-aside")
    assert code == 0
    (kept,) = ledger.path.parent.glob("lab.sqlite.aside-*")
    assert str(kept) in out
    assert kept.read_text().startswith("my diary")
    assert call(capsys)[0] == 0


def test_remove(ledger: RunLedger, swept: SweepPlan, capsys) -> None:
    assert call(capsys, "remove", "1", "2")[1] == "Removed: 1, 2.\n"
    code, out, errors = call(capsys, "remove", "3", "1")
    assert (code, out) == (2, "Removed: 3.\n")
    assert "no run 1" in errors
    assert (
        call(capsys, "remove", "--group", swept.group)[1] == f"Removed: 3 runs of {swept.group}.\n"
    )
    assert ledger.entries() == []
    assert ledger.plan(swept.group) is None


# ── exports ───────────────────────────────────────────────────────────────────────────────────────


def test_export_of_a_sweep(ledger: RunLedger, swept: SweepPlan, capsys, tmp_path: Path) -> None:
    for kind in tables.FORMATS:
        path = tmp_path / f"table.{kind}"
        assert call(capsys, "export", "--group", swept.group, "-o", str(path))[:2] == (0, "")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert [row["amp"] for row in rows] == ["off", "bf16"]
    assert float(rows[1]["samples_per_second_ratio"]) == pytest.approx(2.0)
    assert float(rows[1]["peak_allocated_bytes"]) == pytest.approx(1 << 30)
    assert rows[1]["samples_per_second_basis"] == "3 interleaved repeats"
    assert rows[0]["samples_per_second_ratio"] == rows[0]["tensor_active_percent"] == ""
    found = json.loads((tmp_path / "table.json").read_text())
    assert found["varying"] == ["amp"]
    assert found["cells"][0]["ratios"] is None
    assert found["cells"][1]["tensor_active_percent"] is None
    assert next(row for row in found["cells"][1]["ratios"] if row["key"] == "loss")[
        "ratio"
    ] == pytest.approx(1.0)
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0].startswith(
        "| # | configuration | runs | samples/s | step | p95 | warm-up | peak |"
    )
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert "a CPU, torch 2.13.0" in lines[5]


def test_export_of_runs(ledger: RunLedger, swept: SweepPlan, capsys) -> None:
    rows = list(csv.DictReader(io.StringIO(call(capsys, "export", "1", "2", "--format", "csv")[1])))
    assert [row["id"] for row in rows] == ["1", "2"]
    assert rows[0]["command"].startswith("gpuscope lab --model gpt-tiny")
    assert len(json.loads(call(capsys, "export", "--format", "json")[1])["runs"]) == 6
    assert call(capsys, "export")[1].count("\n") == 8


def test_hostile_labels_cannot_break_a_table(ledger: RunLedger, capsys) -> None:
    ledger.add(document(), label='=cmd|"/c calc"!A1\n| x | <script> \x1b[31m *b*')
    out = call(capsys, "export", "--format", "csv")[1]
    (row,) = csv.DictReader(io.StringIO(out))
    assert row["label"].startswith("'=cmd")
    lines = call(capsys, "export", "--format", "md")[1].splitlines()
    assert len(lines) == 3
    assert "\\<script\\>" in lines[2]
    assert lines[2].replace("\\|", "").count("|") == lines[0].count("|")
    assert call(capsys)[0] == 0


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("peak_allocated_bytes", 3 << 29, "1.50 GiB"),
        ("step_seconds", 0.0123, "12.3 ms"),
        ("warmup_seconds", 75.25, "1m 15s"),
        ("samples_per_second", 12_345.6, "12,346"),
        ("samples_per_second", 2.345, "2.35"),
        ("tensor_active_percent", 40.0, "40.0 %"),
        ("loss", None, "–"),
    ],
)
def test_figures_have_their_unit(key: str, value: float | None, text: str) -> None:
    assert tables.figure(key, value) == text


def test_options_stand_before_or_after_the_action(
    ledger: RunLedger, swept: SweepPlan, capsys
) -> None:
    for words in (["--json", "list"], ["list", "--json"], ["--json"]):
        assert len(json.loads(call(capsys, *words)[1])["runs"]) == 6
    assert json.loads(call(capsys, "--json", "show", "1")[1])["id"] == 1


def test_a_narrow_terminal_keeps_what_matters(ledger: RunLedger, swept: SweepPlan) -> None:
    found = tables.results(swept, ledger.entries(group=swept.group))
    wide = tables.text_rows(found)
    narrow = tables.text_rows(found, 70)
    assert {"p95", "warm-up", "reserved", "loss ×"} < set(wide[0])
    assert narrow[0][:4] == ["#", "configuration", "runs", "samples/s"]
    assert "samples/s ×" in narrow[0]
    assert sum(max(len(row[i]) for row in narrow) + 2 for i in range(len(narrow[0]))) - 2 <= 70
    assert tables.text_rows(found, 1)[0] == [
        "#",
        "configuration",
        "runs",
        "samples/s",
        "peak",
        "samples/s ×",
    ]


def test_a_sweep_over_processes_tells_its_efficiency(ledger: RunLedger, capsys) -> None:
    cells = [
        LabConfig(model="gpt-tiny", device="cpu", steps=100, batch=8, parallel=how)
        for how in ("none", "ddp")
    ]
    plan = new_plan(cells, 2)
    ledger.keep_plan(plan.group, plan.to_mapping())
    for repeat in range(2):
        for cell, world, seconds in zip(cells, (1, 4), (0.10, 0.125), strict=True):
            values = document(seconds, parallel=cell.parallel, world=world)
            ledger.add(values, group=plan.group, repeat=repeat, cell=cell_key(cell))
    out = call(capsys, "show", plan.group)[1]
    assert "2 parallel=ddp: efficiency, weak scaling 1 → 4: 0.800 × [0.800, 0.800]" in out


def test_the_ledger_is_read_without_heavy_packages(ledger: RunLedger, swept: SweepPlan) -> None:
    code = (
        "import sys; from gpuscope.cli import main as cli; cli.main(['lab', 'runs', 'compare', "
        "'1', '2'])\n"
        "print('LOADED', *[n for n in ('torch', 'textual', 'msgspec', 'plotext', 'pynvml') if n "
        "in sys.modules])"
    )
    done = python("-c", code)
    assert done.stdout.splitlines()[-1] == "LOADED", done.stdout + done.stderr
