"""The command line of ``gpuscope tune``: what it refuses, and in which words."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.cli import main as cli
from gpuscope.cli import tune_offer
from gpuscope.cli.commands import tune
from gpuscope.cli.commands.tune import TrialLines
from gpuscope.cli.progress_line import ProgressLine
from gpuscope.cli.tune_result import print_result
from gpuscope.exit_status import ExitStatus
from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry, RunLedger, entry_of
from gpuscope.lab.sweep import cell_key
from gpuscope.lab.torch_probe import Machine
from gpuscope.lab.tune import paste
from gpuscope.lab.tune.findings import CandidateRow, Found, Trial
from gpuscope.lab.tune.goal import Goal
from gpuscope.lab.tune.judge import Speed
from gpuscope.lab.tune.result import SearchResult, money_text
from gpuscope.lab.tune.runner import SearchProgress
from gpuscope.lab.tune.search import CannotTune


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no_such_model"], "neither MODULE:FACTORY nor one of"),
        (["gpt", "--model", "mlp"], "name the model once"),
        (["gpt", "--steps", "5"], "--steps has no meaning here"),
        (["gpt", "--vary", "amp"], "has no values"),
        (["gpt", "--vary", "colour=red"], "There is no lab setting"),
        (["gpt", "--task", "causal-lm"], "are for a transformers config"),
        (["gpt", "--hf-config", "/etc"], "one model at a time"),
        (["--hf-config", "/no/such/folder"], "there is no /no/such/folder"),
        (["gpt", "-o", "/no/such/folder/tune.json"], "there is no such folder"),
    ],
)
def test_a_wrong_command_line_is_refused(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["tune", *words]) == ExitStatus.USAGE
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--budget", "soon"], ["--keep-loss", "200%"]])
def test_a_value_that_is_no_time_or_share_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as end:
        cli.main(["tune", "gpt", *words])
    assert end.value.code == ExitStatus.USAGE
    assert "must be a" in capsys.readouterr().err


def test_several_processes_are_refused_with_what_to_do(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["tune", "gpt", "--parallel", "ddp"]) == ExitStatus.UNCHECKED
    said = capsys.readouterr().err
    assert "several processes" in said
    assert "Next: gpuscope tune without --parallel" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gpu", "7"], "torch sees no GPU with the number 7"),
        (["--capacity", "10GiB"], "torch sees no GPU on this machine"),
        (["--gpu", "0", "--device", "cpu"], "--device cpu was given"),
    ],
)
def test_the_cpu_is_not_searched_where_a_gpu_was_asked_for(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
):
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))
    monkeypatch.setenv(tune.VISIBLE, "")
    monkeypatch.setattr(tune.torch_probe, "ask", lambda _: Machine({"gpus": 0}))
    monkeypatch.setattr(tune, "_others", lambda *_: [])
    begun = ["tune", "mlp-tiny", "--budget", "20s", *words]
    assert cli.main(begun) == ExitStatus.UNCHECKED
    said = capsys.readouterr().err
    assert "This search would run on the CPU." in said
    assert says in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--goal", "cost"], "trains on the CPU, whose power is not read"),
        (["--goal", "cost", "--price", "2", "--price-energy", "0.3"], "whose power is not read"),
        (["--price-energy", "0.3"], "whose power is not read"),
    ],
)
def test_what_needs_the_energy_of_a_cpu_ends_before_the_first_trial(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
):
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))
    monkeypatch.setattr(tune.torch_probe, "ask", lambda _: Machine({"gpus": 0}))
    assert cli.main(["tune", "mlp-tiny", "--device", "cpu", *words]) == ExitStatus.UNCHECKED
    said = capsys.readouterr().err
    assert says in said
    assert "Next: gpuscope tune --goal cost --price MONEY" in said
    assert RunLedger(tmp_path / "lab.sqlite").entries(limit=None) == []


def test_costs_of_nothing_are_refused_as_a_wrong_command_line(capsys):
    assert cli.main(["tune", "mlp-tiny", "--goal", "cost", "--price", "0"]) == ExitStatus.USAGE
    assert "all settings cost the same" in capsys.readouterr().err


def test_a_table_of_prices_is_a_price(monkeypatch, tmp_path, capsys):
    """Which of its rows counts is known once the GPU is: until then it is no search by energy."""
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))
    monkeypatch.setattr(tune.torch_probe, "ask", lambda _: Machine({"gpus": 0}))
    table = tmp_path / "prices.toml"
    table.write_text("h200 = 3.5\n")
    words = ["--goal", "cost", "--price", str(table), "--price-energy", "0"]
    assert cli.main(["tune", "mlp-tiny", "--device", "cpu", *words]) == ExitStatus.USAGE
    assert "The table of --price has none of cpu." in capsys.readouterr().err


def test_a_search_with_another_goal_is_another_search(monkeypatch, tmp_path, capsys):
    """What one has measured does not decide the other: its slow trials ended early."""
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))
    stopped = SimpleNamespace(failure=None, found=None, stopped="SIGINT")
    groups = []

    def run(self, begin):
        groups.append(self.job.group)
        self.ledger.keep_plan(self.job.group, self.job.to_mapping())
        self.ledger.add({}, source="tune", group=self.job.group, repeat=0)
        return stopped

    monkeypatch.setattr(tune.SearchRunner, "run", run)
    by_cost = ["--goal", "cost", "--price"]
    for words in ([], [*by_cost, "2"], [*by_cost, "3"], [*by_cost, "2"], []):
        assert cli.main(["tune", "mlp-tiny", *words]) == ExitStatus.PROBLEMS
    assert "the cheapest settings of mlp-tiny" in capsys.readouterr().err
    assert groups[3] == groups[1]
    assert groups[4] == groups[0]
    assert len(set(groups[:3])) == 3


def test_a_config_that_does_not_train_ends_with_what_its_run_says_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
):
    def run(*_: object) -> object:
        raise CannotTune("The training does not run.", "no transformers", "gpuscope lab --model x")

    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))
    monkeypatch.setattr(tune.SearchRunner, "run", run)
    error = {"what": "It cannot be used.", "why": "", "next": "pip install transformers"}
    failed = [entry_of({"error": error})]
    monkeypatch.setattr(tune.RunLedger, "entries", lambda *_, **__: failed)
    for name in (tune.CONFIG, tune.TASK, tune.SEQUENCE):
        monkeypatch.setenv(name, "")
    assert cli.main(["tune", "--hf-config", str(tmp_path)]) == ExitStatus.UNCHECKED
    assert "Next: pip install transformers\n" in capsys.readouterr().err


def test_help_does_not_offer_what_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.main(["tune", "--help"])
    assert "--steps" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--budget", "10s"], ["--batch", "8"]])
def test_a_search_without_a_model_asks_for_one(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tune_offer, "offers_here", lambda: {"": 1})
    assert cli.main(["tune", *words]) == ExitStatus.USAGE
    said = capsys.readouterr().err
    assert "name what to tune: MODULE:FACTORY" in said
    assert "Next: gpuscope tune gpt-small " in said


def test_a_search_without_a_model_names_the_training_that_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tune_offer, "offers_here", lambda: {"": 1, "gpuscope tune a:make": 77})
    assert cli.main(["tune"]) == ExitStatus.USAGE
    assert "Next: gpuscope tune a:make    searches for what PID 77 trains" in (
        capsys.readouterr().err
    )


def test_an_unusable_ledger_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    broken = tmp_path / "lab.sqlite"
    broken.write_text("no database " * 200)
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(broken))
    pytest.importorskip("torch")
    assert cli.main(["tune", "mlp-tiny", "--device", "cpu"]) == ExitStatus.UNCHECKED
    assert str(broken) in capsys.readouterr().err


# ── the result ────────────────────────────────────────────────────────────────────────────────────

BASE = LabConfig(model="gpt-small", device="cuda", batch=8, accumulate=4)
BEST = LabConfig.from_mapping(
    {**BASE.to_mapping(), "amp": "bf16", "compile": "default", "batch": 16, "accumulate": 2}
)


def entry(config: LabConfig, rate: float, reserved: int, watts: float | None = None) -> Entry:
    document = {
        "config": config.to_mapping(), "device": "cuda", "samples_per_second": rate,
        "samples_per_step": 32, "warmup_seconds": 30.0 if config.compile != "off" else 2.0,
        "step_seconds": {"median": 32 / rate, "low": 31 / rate, "high": 33 / rate, "count": 20},
        "peak_reserved_bytes": reserved, "power_watts": watts,
    }  # fmt: skip
    return entry_of(document, id=1, cell=cell_key(config))


def test_the_result_says_how_much_faster_and_what_it_costs():
    speed = Speed(2.9, 2.8, 3.0, "3 pairs of runs, in turns")
    rows = [CandidateRow(BASE, {}, "baseline"), CandidateRow(BEST, {"amp": "bf16"}, "kept", speed)]
    found = Found(BASE, BEST, speed, rows)
    entries = [entry(BASE, 100.0, 60 << 30, 400.0), entry(BEST, 290.0, 74 << 30, 600.0)]
    result = SearchResult("tune-x", found, entries, 300.0, capacity=80 << 30, goal=Goal(hour=3.6))
    sentence = "Use amp=bf16 batch=16 accumulate=2 compile=default: 2.90 × [2.80, 3.00] as fast as"
    assert result.sentence().startswith(sentence)
    assert "6 GiB to spare" in result.sentence() or "6.00 GiB to spare" in result.sentence()
    cost = result.costs(BEST)
    assert cost["seconds"] == pytest.approx(1e6 / 290)
    assert cost["money"] == pytest.approx(1e6 / 290 / 3600 * 3.6)
    assert cost["joules"] == pytest.approx(1e6 / 290 * 600)
    # 28 s more of warm-up at 0.32 - 0.11 s a step
    assert result.pays_back_steps()[0] == pytest.approx(28 / (0.32 - 32 / 290), abs=1)


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (1234.5, "1,234.50"),
        (0.1, "0.10"),
        (0.00143, "0.0014"),
        (0.00000251, "0.0000025"),
        (0, "0.00"),
    ],
)
def test_a_small_cost_is_not_told_as_nothing(amount, said):
    assert money_text(amount) == said


def test_the_lines_to_paste_are_those_of_the_changed_switches_only():
    lines = paste.lines(BASE, BEST, 16, "cuda")
    assert any("torch.autocast" in line and "bfloat16" in line for line in lines)
    assert "model = torch.compile(model)" in lines
    assert any(line.startswith("batch_size = 16") for line in lines)
    assert not any("checkpoint" in line or "fused" in line for line in lines)
    assert paste.lines(BASE, BASE, 8, "cuda") == []


def test_nothing_found_says_to_keep_the_baseline():
    found = Found(BASE, BASE, None, [CandidateRow(BASE, {}, "baseline")])
    result = SearchResult("tune-x", found, [entry(BASE, 100.0, 60 << 30)], 30.0)
    assert "keep it" in result.sentence()
    assert result.remarks()[-1].startswith("1 run in 30 s, ")
    assert result.lines() == []
    assert result.document()["changed"] is False
    (named,) = re.findall(r"\(gpuscope (lab runs .*)\)", " ".join(result.remarks()))
    assert cli.main(named.split()) == ExitStatus.PROBLEMS, "valid, though nobody searched yet"


def test_what_was_not_tried_is_not_called_slower():
    def told(*status):
        rows = [
            CandidateRow(BASE, {}, "baseline"),
            *(CandidateRow(BEST, {}, s, reason="no time") for s in status),
        ]
        return SearchResult("tune-x", Found(BASE, BASE, None, rows, more_seconds=80.0), [], 30.0)

    undecided = told("not_tried", "not_tried")
    assert undecided.enough_seconds == 120
    assert undecided.sentence() == (
        "Not decided: only the baseline was run. What was left of the budget was too short to try "
        "2 more candidates and prove the best; a budget of 2 min should be enough."
    )
    assert "keep it. What was left" in told("slower", "not_tried").sentence()
    assert told("not_proved").sentence().startswith("Not proved: ")


def test_a_candidate_that_seems_slower_is_not_said_to_make_no_difference():
    row = CandidateRow(BEST, {"batch": 8}, "no_difference", Speed(0.12, None, None, "1 run"))
    found = Found(BASE, BASE, None, [CandidateRow(BASE, {}, "baseline"), row])
    last = SearchResult("tune-x", found, [], 30.0).table()[-1]
    assert last[-2:] == ["0.12 ×", "no clear gain"]
    assert SearchResult("tune-x", found, [], 30.0).table()[1][-1] == "keep it"


def test_the_reason_of_a_baseline_that_fails_is_printed_only_where_no_error_gives_it():
    out, baseline = io.StringIO(), LabConfig()
    lines = TrialLines(ProgressLine(out))
    failed = entry_of({"error": {"what": "There is no module nosuch", "why": ""}})
    search: Any = None  # no line needs it
    told = SearchProgress(search, Trial(baseline, 0, "fused=on"), "fused=on")
    assert told.purpose == "", "the label says it"
    assert replace(told, label="amp=bf16 fused=on").purpose == "  (fused=on)"
    first = SearchProgress(search, Trial(baseline, 0, "the baseline"), "baseline")
    lines.show(first, failed)
    assert out.getvalue() == "", "the search may end with an error that gives the reason"
    lines.show(SearchProgress(search, Trial(baseline, 0, "less memory"), "amp=bf16"), failed)
    said = out.getvalue().splitlines()
    assert [line.count("There is no module nosuch") for line in said] == [1, 1]
    assert "  baseline  " in said[0]


@pytest.mark.parametrize(("words", "says"), [([], "again"), (["--new"], "without --new")])
def test_what_continues_a_search_that_was_stopped(words, says, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))
    stopped = SimpleNamespace(failure=None, found=None, stopped="SIGINT")
    monkeypatch.setattr(tune.SearchRunner, "run", lambda *_: stopped)
    assert cli.main(["tune", "mlp-tiny", *words]) == ExitStatus.PROBLEMS
    assert f"Next: the same command {says} continues here" in capsys.readouterr().err


def test_runs_that_differ_much_are_told_with_their_ends_and_what_that_means(capsys):
    noisy = [entry(BASE, rate, 8 << 30) for rate in (107.0, 416.0)] + [entry(BEST, 486.0, 8 << 30)]
    row = CandidateRow(BEST, {"amp": "bf16"}, "no_difference", Speed(2.0, 0.1, 40.0, "1 run"), BASE)
    row.reason = "run again beside the baseline, it was not certainly faster"
    found = Found(BASE, BASE, None, [CandidateRow(BASE, {}, "baseline"), row])
    result = SearchResult("tune-x", found, noisy, 30.0)
    head, base, best = result.table()
    assert base[1:3] == ["2", "211 (107–416)"]
    assert best[1:3] == ["1", "486"]
    assert (head[-2], best[-2]) == ("over baseline", "not clear")
    assert "from 107 to 416 samples/s: the machine does other work" in result.remarks()[0]
    print_result(result, "")
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 120
    assert "amp=bf16" in said.split("no clear gain")[1], "why stands below the table"
    row.speed = Speed(0.92, 0.8, 1.41, "1 run")
    once = [entry(BASE, 1941.0, 0), entry(BEST, 9430.0, 0)]
    told = SearchResult("tune-x", found, once, 30.0).remarks()[0]
    assert told.startswith("A ratio of two runs compares their median steps")
    assert "make amp=bf16 batch=16 accumulate=2 compile=default look faster there" in told
    alike = SearchResult("tune-x", found, [once[0], entry(BEST, 1800.0, 0)], 30.0)
    assert not any("median" in one for one in alike.remarks())
    calm = SearchResult("tune-x", found, [entry(BASE, rate, 0) for rate in (99.0, 100.0)], 30.0)
    assert calm.table()[1][2] == "99.5", "what repeats always differ by is not told"
    assert not any("other work" in one for one in calm.remarks())
