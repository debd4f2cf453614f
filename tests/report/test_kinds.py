"""Each kind of result becomes a chapter with its own figures, and no document breaks the page."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from gpuscope.cli import main as cli
from gpuscope.cli import report_inputs
from gpuscope.cli.time_document import look_document
from gpuscope.lab import tables
from gpuscope.lab.compare import compare
from gpuscope.lab.config import LabConfig
from gpuscope.lab.intervals import ratio_text
from gpuscope.lab.ledger import RunLedger, entry_of
from gpuscope.lab.sweep import cell_key
from gpuscope.lab.tune.findings import CandidateRow, Found, Switch
from gpuscope.lab.tune.judge import Speed
from gpuscope.lab.tune.result import SearchResult
from gpuscope.model.look import read as read_look
from gpuscope.predict.answer import Card, TracedRequest
from gpuscope.predict.document import document as predicted
from gpuscope.predict.document import failure
from gpuscope.predict.request import CannotPredict, Request
from gpuscope.report import page
from gpuscope.report.content import Map
from tests.predict.hand_made import traced
from tests.recordings import REDACTED, without_samples
from tests.report import made_up
from tests.report.test_page import Reader

ROOT = Path(__file__).parents[2]
SNAPSHOTS = ROOT / "demos" / "snapshots"
BASE = LabConfig(model="gpt-small", device="cuda", batch=8)
BEST = LabConfig.from_mapping({**BASE.to_mapping(), "amp": "bf16"})


def text_of(target: str | Path) -> str:
    made = page.html(report_inputs.chapters(str(target)), "made")
    return " ".join("".join(f" {one}" for one in Reader(made).texts).split())


def written(document: Any, name: str = "result.json") -> Path:
    path = Path(name)
    path.write_text(json.dumps(document))
    return path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))


# ── snapshots ──


def test_a_snapshot_says_what_is_reserved_and_who_holds_it():
    text = text_of(SNAPSHOTS / "training.pickle.gz")
    for said in (
        "allocated 83.8 MiB",
        "reserved 178 MiB",
        "largest free run 20.0 MiB of 94.2 MiB free in 14 runs",
        "Live at the peak of 158 MiB",
        "step make.py:72",
        "1,661 recorded allocations and releases in 4.03 s",
        "The segments",
    ):
        assert said in text, said
    fragmented = report_inputs.chapters(str(SNAPSHOTS / "fragmented.pickle.gz"))[0]
    (drawn,) = (part for one in fragmented.sections for part in one.parts if isinstance(part, Map))
    assert [row.value for row in drawn.rows[:3]] == ["0 B free", "0 B free", "12.0 MiB free"]
    live = sum(piece.end - piece.begin for piece in drawn.rows[2].pieces)
    assert live / drawn.rows[2].end == pytest.approx(8 / 20, abs=0.01)


def test_a_snapshot_that_failed_has_its_error_and_findings():
    text = text_of(SNAPSHOTS / "failing.pickle.gz")
    assert "Findings" in text
    assert "Out of memory: " in text


def test_a_file_that_is_no_snapshot_is_refused(capsys):
    Path("odd.pickle").write_bytes(b"\x80\x04cos\nsystem\n(S'touch gone'\ntR.")
    assert cli.main(["report", "odd.pickle"]) == 3
    assert not Path("gone").exists()
    assert not Path("odd.html").exists()


# ── predictions ──


def prediction(gib: float = 16.0) -> dict[str, Any]:
    card = Card("h200", "h200", int(gib * (1 << 30)), "9.0")
    asking = TracedRequest(Request("hand", batch=8), traced, card)
    return predicted(asking.finish())


def test_a_prediction_has_its_verdict_errors_and_parts():
    document = prediction()
    text = text_of(written(document))
    assert "It fits on h200 with 16.0 GiB" in text
    assert f"± {document['device_peak_error_percent']:.1f} %" in text
    for said in ("activations", "The peak is reached in step 2, backward pass"):
        assert said in text
    assert "does not fit on h200" in text_of(written(prediction(1.0)))


def test_a_prediction_that_failed_says_why():
    why = CannotPredict("There is no such model.", "No module named 'mine'.", "gpuscope predict")
    text = text_of(written(failure("mine:make", why, 0.1)))
    assert "Nothing was predicted" in text
    assert "No module named 'mine'." in text


# ── runs ──


def run(config: LabConfig, rate: float, repeat: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "config": config.to_mapping(), "device": "cuda", "device_name": "NVIDIA H100",
        "torch_version": "2.11.0", "samples_per_second": rate, "samples_per_step": 32,
        "warmup_seconds": 2.0, "steps": 20, "peak_reserved_bytes": 8 << 30,
        "step_seconds": {"median": 32 / rate, "low": 31 / rate, "high": 33 / rate, "p95": 34 / rate,
                         "count": 20},
        "loss_by_step": [[1, 4.0], [10, 3.0 - repeat / 10], [20, 2.0]], **more,
    }  # fmt: skip


def test_a_search_says_what_is_how_much_faster():
    speed = Speed(2.9, 2.8, 3.0, "3 pairs of runs, in turns")
    rows = [
        CandidateRow(BASE, {}, "baseline"),
        CandidateRow(BEST, {"amp": "bf16"}, "kept", speed, BASE),
        CandidateRow(BEST, {"batch": 999}, "failed", reason="it ran <out> of memory"),
    ]
    found = Found(BASE, BEST, speed, rows, [Switch("amp", "off", "bf16", speed)])
    entries = [
        entry_of(run(config, rate), id=1, cell=cell_key(config))
        for config, rate in ((BASE, 100.0), (BEST, 290.0))
    ]
    document = SearchResult("tune-x", found, entries, 300.0).document()
    text = text_of(written(document))
    for said in (
        document["sentence"],
        "2.90 × [2.80, 3.00]",
        "amp: off → bf16",
        "failed: it ran <out> of memory",
        *document["lines"],
    ):
        assert " ".join(said.split()) in text, said


def test_the_ledger_is_a_table_with_losses_and_failures():
    ledger = RunLedger()
    ledger.add(run(BASE, 100.0), group="tune-1-2")
    ledger.add(run(BEST, 290.0, error={"what": "It died.", "why": "<b>no</b>"}), group="tune-1-2")
    for target in ("lab.sqlite", "tune-1-2"):
        text = text_of(target)
        assert "2 runs, 1 failed." in text
        assert "It died: <b>no</b>" in text
        assert "NVIDIA H100" in text
        assert "Loss over steps" in text
    listed = {"runs": [tables.run_mapping(one, whole=True) for one in ledger.entries()]}
    assert "2 runs, 1 failed." in text_of(written(listed))


def test_a_comparison_has_ratios_with_their_intervals(capsys):
    ledger = RunLedger()
    ids = [
        ledger.add(run(config, rate), group="g", repeat=n, cell=cell_key(config)).id
        for n in range(3)
        for config, rate in ((BASE, 100.0 + n), (BEST, 290.0 + n))
    ]
    sides = ",".join(map(str, ids[::2])), ",".join(map(str, ids[1::2]))
    assert cli.main(["lab", "runs", "compare", *sides, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    text = text_of(written(document))
    entries = ledger.entries(limit=None)[::-1]
    row = compare(entries[::2], entries[1::2]).row("samples_per_second")
    assert ratio_text(row.ratio, row.low, row.high) in text
    assert "3 interleaved repeats" in text
    assert "amp off bf16" in text


def test_one_run_has_its_measures():
    document = {
        **run(BASE, 100.0),
        "loss_first": 4.0,
        "unknown": [{"path": "loss", "reason": "nan"}],
    }
    text = text_of(written(document))
    for said in (
        "step, median 320 ms",
        "samples/s, mean 100",
        "gpuscope lab --model gpt-small",
        "nan",
    ):
        assert said in text, said


# ── dead jobs ──


def test_a_dead_job_has_its_ranks_over_time_with_the_first_one_marked(capsys):
    job = ROOT / "tests" / "data" / "dead_jobs" / "dev" / "data-missing-node"
    text = text_of(job)
    cli.main(["doctor", str(job), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["title"] in text
    (ranks,) = (one["ranks"] for one in document["jobs"])
    culprit = next(row for row in ranks if row["culprit"])
    assert "The ranks of data-missing-node" in text
    assert f"▶ rank{'s' * (len(culprit['ranks']) > 1)} {culprit['ranks'][0]}" in text
    for row in ranks:
        assert " ".join(f"{row['end']}: {row['text']}".split()) in text
    assert text_of(written(document)).count("▶ rank") == text.count("▶ rank")


def test_a_redacted_dead_job_names_no_host(capsys):
    job = ROOT / "tests" / "data" / "dead_jobs" / "dev" / "data-missing-node"
    cli.main(["doctor", str(job), "--json"])
    document = written(json.loads(capsys.readouterr().out))
    for target in (job, document):
        named = page.html(report_inputs.chapters(str(target)), "made")
        redacted = page.html(report_inputs.chapters(str(target), redact=True), "made")
        assert "node02" in named
        assert "node02" not in redacted


# ── where the time goes ──

LOOK = {
    "seconds": 0.1, "steps": 4, "events": 300, "start_seconds": 0.002, "stop_seconds": 0.04,
    "lost_seconds": 0.09, "kernels": [["ampere_fp16_s16816gemm<evil>", 40, 0.03, 0.03]],
    "idle": [["sync", 0.05, 4, "train.py:12 main", 0.0]], "communication": [0.02, 0.02],
}  # fmt: skip


def test_a_look_at_the_gpu_has_its_rows_in_the_words_of_the_screen(capsys):
    made_up.recording(Path("run.gsr"), 130.0)
    cli.main(["why", "run.gsr", "--json"])
    document = json.loads(capsys.readouterr().out)
    found = read_look(LOOK)
    document["look"] = look_document(found, "")
    text = text_of(written(document))
    assert document["sentence"] in text
    for row in found.rows:
        assert row.words in text
    assert "train.py:12 main" in text
    assert "ampere_fp16_s16816gemm<evil>" in text


def test_where_there_is_no_clock_the_page_has_the_parts_of_a_step_and_what_the_readings_show(
    capsys, tmp_path
):
    path = without_samples(REDACTED.parent / "slow-input-cpu.gsr", tmp_path / "parts.gsr")
    cli.main(["why", str(path), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert sum(part["share"] for part in document["parts"]) == pytest.approx(1.0)
    text = text_of(written(document))
    told = [("input", "90.8 ms", "92 %"), ("compute", "6.66 ms", "7 %"), ("step", "98.4 ms")]
    for words in told:
        assert re.search(r"\s+".join(map(re.escape, words)), text), words
    assert " waits for input 92 % of the last 32 steps" in text
    assert "Load in a worker process" in text


# ── any document ──


def documents(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    made_up.recording(Path("run.gsr"), 130.0)
    found: dict[str, Any] = {"predict": prediction()}
    speed = Speed(2.9, 2.8, 3.0, "pairs")
    rows = [
        CandidateRow(BASE, {}, "baseline"),
        CandidateRow(BEST, {"amp": "bf16"}, "kept", speed, BASE),
    ]
    search = Found(BASE, BEST, speed, rows, [Switch("amp", "off", "bf16", speed)])
    entries = [
        entry_of(run(config, rate), id=number, cell=cell_key(config))
        for number, (config, rate) in enumerate(((BASE, 100.0), (BEST, 290.0)), 1)
    ]
    found["tune"] = SearchResult("tune-x", search, entries, 300.0).document()
    found["runs"] = {"runs": [tables.run_mapping(entries[0], whole=True)]}
    ratios = tables.comparison_rows(compare(entries[:1], entries[1:]))
    side = {"name": "1", "runs": []}
    one = {"a": side, "b": side, "differing": [], "rows": ratios, "notes": []}
    found["compare"] = {"comparisons": [one]}
    cell = {"number": 2, "label": "amp=bf16", "runs": [2], "failure": None, "ratios": ratios}
    found["sweep"] = {"group": "sweep-1", "cells": [cell], "remarks": ["a remark"], "where": "H100"}
    found["lab"] = {
        **run(BASE, 100.0),
        "loss_first": 4.0,
        "unknown": [{"path": "x", "reason": "y"}],
    }
    for verb in ("why", "doctor"):
        cli.main([verb, "run.gsr", "--json"])
        found[verb] = json.loads(capsys.readouterr().out)
    job = {"ranks": [0, 1], "culprit": True, "end": "failed", "text": "x", "step": 3, "host": "h"}
    times = {"begin_seconds": 1e9, "last_words_seconds": 1e9 + 5, "end_seconds": 1e9 + 9}
    clocks = [{"host": "h", "offset_seconds": 2.0, "spread_seconds": 0.1}]
    found["doctor"]["jobs"] = [
        {"name": "job", "world": 2, "ranks": [job | times], "clocks": clocks}
    ]
    found["why"]["look"] = look_document(read_look(LOOK), "")
    return found


BREAKING = "<b>\u202e\x00"
ODD = (None, True, -1, 1e308, float("nan"), 10**400, "", BREAKING, [], {}, [[]], [{}], {"a": 1})


def spoiled(value: Any, chance: random.Random) -> Any:
    """Return a document in which some values are of another kind."""
    if chance.random() < 0.15:
        return chance.choice(ODD)
    if isinstance(value, dict):
        return {key: spoiled(one, chance) for key, one in value.items()}
    if isinstance(value, list):
        return [spoiled(one, chance) for one in value]
    return value


def test_no_document_breaks_the_page(capsys):
    for name, document in documents(capsys).items():
        chance = random.Random(name)
        for number in range(25):
            odd = {key: spoiled(one, chance) if number else one for key, one in document.items()}
            made = page.html(report_inputs.chapters(str(written(odd))), "made")
            assert "<b>\N{REPLACEMENT CHARACTER}" not in made, name
            assert len(made) < 500_000, name
