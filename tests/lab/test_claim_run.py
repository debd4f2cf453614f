"""Claims go through the Lab's own runner, with a program in place of its Python.

Its runs end, fail, hang or babble.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gpuscope.cli import main as cli
from gpuscope.lab import claim_report, claim_run
from gpuscope.lab.claim_run import CannotMeasureClaims, Machine
from gpuscope.lab.claims import BY_ID, ClaimResult
from gpuscope.process import atomic_file
from tests.fakes import pythons

TOLD = {
    "gpus": 0,
    "names": [],
    "capability": None,
    "free": None,
    "total": None,
    "torch": "2.13.0",
    "cuda": None,
    "python": "3.12.1",
    "threads": 2,
    "folder": "/torch",
    "cxx": True,
    "cuda_compiler": False,
}
HEAD = """#!{python} -IS
import json, os, signal, sys, time
words = sys.argv[1:]
if words[0] == "-c":
    print("3 12 1" if "find_spec('torch')" in words[1] and "json" not in words[1] else json.dumps({told!r}))
    sys.exit(0)
config = json.loads(next(word for word in words if word.startswith("{{")))
pace = 0.010 + 0.0001 * config["seed"]
median = pace * (1.3 if config["checkpoint"] else 1.0)
losses = [[16.0, 2.0], [32.0, 1.5 + (1e-6 if config["accumulate"] > 1 else 0.0)]]
error = None
{body}
print(json.dumps({{"kind": "ended", "summary": {{
    "config": config, "loss_curve": losses, "error": error, "unknown": [],
    "step_seconds": {{"median": median, "p95": median, "low": median, "high": median, "count": 30}},
}}}}), flush=True)
"""  # noqa: E501
PAIR = ("accumulation-equivalence", "checkpointing-tradeoff")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a program that stands in for Python; ``body`` is done by each run."""

    def write(body: str = "") -> Machine:
        path = tmp_path / "python"
        path.write_text(HEAD.format(python=pythons.by_plain_path(), told=TOLD, body=body))
        path.chmod(0o755)
        monkeypatch.setenv("GPUSCOPE_LAB_PYTHON", str(path))
        return claim_run.look(str(path), "auto")

    return write


def measure(machine: Machine, *names: str, **options: Any) -> dict[str, ClaimResult]:
    options = {"repeats": 3, **options}
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: claim_run.measure(BY_ID[name], machine, Path(folder), **options) for name in names
        }


def test_a_claim_is_two_configurations_a_figure_and_a_threshold(program: Any):
    found = measure(program(), *PAIR)
    assert {result.verdict for result in found.values()} == {"holds"}
    apart, memory = found["accumulation-equivalence"].figures
    assert apart.values == pytest.approx([1e-6 / 1.5] * 3)
    assert memory.verdict == "cannot_be_tested"
    time = found["checkpointing-tradeoff"].figures[1]
    assert time.values == pytest.approx([1.3] * 3)
    assert "in part: peak allocated" in found["checkpointing-tradeoff"].reason
    titles = {note["title"]: note["value"] for note in found["checkpointing-tradeoff"].notes}
    assert titles["kept: step seconds"] == pytest.approx(0.0101)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "if config['checkpoint']: os.kill(os.getpid(), signal.SIGKILL)",
            "ended with signal SIGKILL",
        ),
        pytest.param(
            "if config['checkpoint']: sys.exit('no space left')",
            "no space left",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "if config['checkpoint']: error = {'what': 'Out of memory.', 'why': 'x', 'next': 'y'}",
            "Out of memory",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_that_fails_leaves_its_claim_undecided_and_the_next_one_measured(
    program: Any, body: str, reason: str
):
    found = measure(program(body), *reversed(PAIR))
    assert found["checkpointing-tradeoff"].verdict == "undecided"
    assert reason in found["checkpointing-tradeoff"].reason
    assert found["accumulation-equivalence"].verdict == "holds"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "verdict", "values"),
    [
        ("The model cannot be compiled as one graph.", "holds", [1.0] * 3),
        ("Out of memory.", "undecided", [None] * 3),
    ],
)
def test_a_graph_break_is_told_from_another_failure(
    program: Any, what: str, verdict: str, values: list[float | None]
):
    body = f"if 'broken' in config['model']: error = {{'what': {what!r}, 'why': 'x', 'next': 'y'}}"
    found = measure(program(body), "compile-fullgraph")["compile-fullgraph"]
    assert (found.figures[0].verdict, found.figures[0].values) == (verdict, values)


def test_a_run_that_hangs_is_ended_at_the_limit(program: Any):
    found = measure(
        program("if config['checkpoint']: time.sleep(600)"), "checkpointing-tradeoff", seconds=1.0
    )
    assert found["checkpointing-tradeoff"].verdict == "undecided"
    assert found["checkpointing-tradeoff"].reason == "time limit"


def test_a_loss_can_be_the_figure_itself(program: Any):
    body = "losses = [[2.0, 1e-4 if 'scaled' in config['model'] else 0.5]]"
    found = measure(program(body), "gradscaler-underflow")["gradscaler-underflow"]
    assert [judged.values for judged in found.figures] == [[1e-4] * 3, [2e-4] * 3, [0.5] * 3]
    assert found.verdict == "holds"


def test_a_python_that_cannot_say_what_is_here_ends_it(program: Any, tmp_path: Path):
    machine = program()
    assert machine.device == "cpu"
    with pytest.raises(CannotMeasureClaims, match="finds no GPU"):
        claim_run.look(str(tmp_path / "python"), "cuda")
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho 'ImportError: libtorch.so' >&2\nexit 1\n")
    with pytest.raises(CannotMeasureClaims, match=r"libtorch\.so"):
        claim_run.look(str(path), "auto")


# ── the verb ──────────────────────────────────────────────────────────────────────────────────────


def verb(*words: str) -> int:
    return cli.main(["lab", "claims", *words])


@pytest.mark.slow
def test_the_json_document(program: Any, capsys: pytest.CaptureFixture[str]):
    program()
    assert verb("--json", "--quick", "--only", "checkpointing-tradeoff,pin-memory") == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {
        "machine",
        "warnings",
        "repeats",
        "seconds",
        "complete",
        "claims",
        "unknown",
    }
    assert document["complete"] is True
    assert document["machine"]["device"] == "cpu"
    first, second = document["claims"]
    assert (first["id"], first["verdict"], second["verdict"]) == (
        "checkpointing-tradeoff",
        "holds",
        "cannot_be_tested",
    )
    assert set(first) == {
        "id",
        "statement",
        "stated",
        "device",
        "configuration",
        "verdict",
        "reason",
        "figures",
        "notes",
        "seconds",
    }
    memory, steps = first["figures"]
    assert memory["mean"] is None
    assert memory["verdict"] == "cannot_be_tested"
    assert steps["low"] < steps["mean"] + 1e-9
    assert steps["threshold"] == {"at_least": 1.05, "at_most": None, "words": "≥ 1.05 ×"}
    assert {
        "path": "claims.checkpointing-tradeoff.memory",
        "code": "not_measured",
        "reason": "needs a GPU",
    } in document["unknown"]


@pytest.mark.slow
def test_exit_code_1_where_something_is_undecided(program: Any, capsys: pytest.CaptureFixture[str]):
    program("median = pace * (config['seed'] + 0.5 if config['checkpoint'] else 1.0)")
    assert verb("--only", "checkpointing-tradeoff", "--repeats", "3") == 1
    shown = capsys.readouterr()
    assert "undecided" in shown.out
    assert "≥ 1.05 ×" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "1 claim, 3 repeats" in shown.err


@pytest.mark.slow
def test_the_file_has_the_results_so_far_when_it_is_cut_off(
    program: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    seen = []
    real = atomic_file.write_output

    def write(path: Path, content: bytes) -> None:
        real(path, content)
        seen.append(json.loads(path.read_text()))
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(atomic_file, "write_output", write)
    output = tmp_path / "claims.json"
    program()
    assert verb("--quick", "--only", ",".join((*PAIR, "dp-cpu")), "-o", str(output)) == 130
    assert [len(document["claims"]) for document in seen] == [1, 2]
    assert json.loads(output.read_text())["complete"] is False
    assert "Stopped" in capsys.readouterr().err


@pytest.mark.slow
def test_markdown_has_a_row_for_each_figure(program: Any):
    machine = program()
    results = list(measure(machine, *PAIR).values())
    lines = claim_report.markdown(results, machine).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + sum(len(result.figures) for result in results)
    assert all(line.count("|") == 7 for line in rows)
    assert "checkpointing-tradeoff: " in lines[-2]
    assert r"1.3 × \[" in lines[-1]


@pytest.mark.parametrize("words", [["--only", "amp"], ["--repeats", "1"], ["--timeout", "0"]])
def test_usage(capsys: pytest.CaptureFixture[str], words: list[str]):
    with pytest.raises(SystemExit) as left:
        verb(*words)
    assert left.value.code == 64
    assert "gpuscope lab claims --help" in capsys.readouterr().err


def test_no_torch_is_exit_code_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho 3 12 0\n")
    path.chmod(0o755)
    monkeypatch.setenv("GPUSCOPE_LAB_PYTHON", str(path))
    assert verb() == 3
    assert "has none" in capsys.readouterr().err


def test_the_list_needs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("GPUSCOPE_LAB_PYTHON", "/nonexistent")
    assert verb("--list") == 0
    shown = capsys.readouterr().out
    assert all(f"{name}: " in shown for name in BY_ID)
    assert verb("--list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["claims"]
    assert [claim["id"] for claim in listed] == list(BY_ID)
    assert all(claim["figures"] for claim in listed)
