"""Real programs that measure badly: they die, hang, talk nonsense, fail. Each says so, and the others go on."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpuscope.cli.commands.lab import claims as lab_claims
from gpuscope.lab import claim_report, claim_run
from gpuscope.lab.claim_run import Machine, Options, Runner, Unusable
from gpuscope.lab.claim_table import BY_ID
from gpuscope.lab.claims import Result
from tests.fakes import pythons

FACTS = {
    "torch_version": "2.13.0", "cuda_version": None, "python_version": "3.12.1", "gpus": [], "cpu": "A CPU",
    "cores": 2, "threads": 2, "compiler": True,
}  # fmt: skip
HEAD = """#!{python}
import json, os, signal, subprocess, sys, time
def say(**event): print(json.dumps(event), flush=True)
def values(figure, *numbers):
    for number in numbers: say(event="value", figure=figure, value=number)
words = sys.argv[1:]
if words[1].endswith(".facts"):
    say(**{facts!r})
    sys.exit(0)
for claim in words[words.index("--claims") + 1].split(","):
    say(event="begin", claim=claim)
"""
GOOD = """
    values("gradients", 1e-7, 1.1e-7, 1.2e-7)
    values("time", 1.3, 1.31, 1.32)
    values("equal", 1.0, 1.0)
    values("ratio", 1.0, 1.01, 0.99)
    say(event="note", title="step", value=12.5, unit="ms")
    say(event="end")
"""


@pytest.fixture
def program(tmp_path: Path) -> Any:
    """Writes a program that stands in for Python and every measure, with ``body`` run for each claim."""

    def write(body: str = GOOD) -> Machine:
        path = tmp_path / "python"
        path.write_text(HEAD.format(python=pythons.by_plain_path(), facts=FACTS) + body)
        path.chmod(0o755)
        return Machine(str(path), "cpu", 0, dict(FACTS))

    return write


def measure(machine: Machine, *names: str, **options: Any) -> dict[str, Result]:
    done: list[Result] = []
    results = Runner(machine, Options(**options), lambda _: None, done.append).run([BY_ID[name] for name in names])
    assert {result.claim.id for result in done} == set(names)
    return {result.claim.id: result for result in results}


PAIR = ("accumulation-equivalence", "checkpointing-tradeoff")


def test_claims_of_one_program_are_measured_in_one_process(program: Any, tmp_path: Path):
    machine = program(f"    open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}} ')" + GOOD)
    found = measure(machine, *PAIR)
    assert {result.verdict for result in found.values()} == {"holds"}
    assert len(set((tmp_path / "pids").read_text().split())) == 1
    assert "in part: peak allocated" in found["checkpointing-tradeoff"].reason
    assert found["checkpointing-tradeoff"].notes[0].value == 12.5


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by signal 9 (SIGKILL)"),
        ("sys.exit('no space left')", "ended with exit code 1: no space left"),
        ("say(event='failed', reason='RuntimeError: no such thing'); sys.exit(1)", "RuntimeError: no such thing"),
        ("time.sleep(60)", "time limit"),
    ],
)
def test_a_program_that_dies_leaves_its_claim_undecided_and_the_next_one_measured(program: Any, body: str, reason: str):
    machine = program(f"    if claim == {PAIR[0]!r}:\n        values('gradients', 1e-7, 1e-7)\n        {body}\n" + GOOD)
    found = measure(machine, *PAIR, limit=3.0)
    first, second = found[PAIR[0]], found[PAIR[1]]
    assert first.verdict == "undecided"
    assert reason in first.reason
    assert first.figures[0].values == [1e-7, 1e-7]  # what was there is shown
    assert second.verdict == "holds"


def test_nothing_of_a_program_that_hangs_is_left(program: Any, tmp_path: Path):
    note = tmp_path / "pid"
    machine = program(
        "    child = subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(note)!r}, 'w').write(str(child.pid))\n    time.sleep(600)\n"
    )
    assert measure(machine, PAIR[0], limit=1.5)[PAIR[0]].reason == "time limit"
    pid = int(note.read_text())
    deadline = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_that_never_begins_costs_no_second_try(program: Any, tmp_path: Path):
    machine = program()
    path = Path(machine.python)
    path.write_text(
        path.read_text().replace(
            "for claim in",
            f"open({str(tmp_path / 'tries')!r}, 'a').write('x')\nsys.exit('ImportError: libcudart')\nfor claim in",
        )
    )
    found = measure(machine, *PAIR)
    assert all(result.verdict == "undecided" and "libcudart" in result.reason for result in found.values())
    assert (tmp_path / "tries").read_text() == "x"


def test_nonsense_on_its_output_is_left_out(program: Any):
    machine = program(
        "    print('hello'); print('[1]'); print('{'); print('[' * 100000); say(event='value'); say(event=5)\n"
        "    say(event='value', figure='time', value='fast'); say(event='value', figure='time', value=True)\n" + GOOD
    )
    found = measure(machine, "checkpointing-tradeoff")["checkpointing-tradeoff"]
    assert found.verdict == "undecided"
    assert found.reason == "2 of 5 repeats gave no figure"


def test_what_the_program_finds_impossible_is_not_undecided(program: Any):
    machine = program("    say(event='cannot', reason='there is no compiler'); say(event='end')\n")
    found = measure(machine, "compile-speed")["compile-speed"]
    assert (found.verdict, found.reason) == ("cannot_be_tested", "there is no compiler")


def test_a_python_that_cannot_say_what_is_here_ends_it(tmp_path: Path):
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho 'ImportError: libtorch.so' >&2\nexit 1\n")
    path.chmod(0o755)
    with pytest.raises(Unusable, match=r"libtorch\.so"):
        claim_run.look(str(path), "auto")
    path.write_text(f"#!{pythons.by_plain_path()}\nprint('''{json.dumps(FACTS)}''')\n")
    assert claim_run.look(str(path), "auto").device == "cpu"
    with pytest.raises(Unusable, match="finds no CUDA device"):
        claim_run.look(str(path), "cuda")


# ── the verb ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def verb(monkeypatch: pytest.MonkeyPatch, machine: Machine, *words: str) -> int:
    monkeypatch.setenv("GPUSCOPE_LAB_PYTHON", machine.python)
    monkeypatch.setattr(lab_claims, "find_python", lambda: machine.python)
    parser = argparse.ArgumentParser()
    lab_claims.add_arguments(parser)
    return lab_claims.run(parser.parse_args(words))


def test_the_json_document(program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert verb(monkeypatch, program(), "--json", "--only", "checkpointing-tradeoff,pin-memory") == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"machine", "warnings", "tiny", "repeats", "seconds", "complete", "claims", "unknown"}
    assert document["complete"] is True
    assert document["machine"]["device"] == "cpu"
    first, second = document["claims"]
    assert (first["id"], first["verdict"], second["verdict"]) == ("checkpointing-tradeoff", "holds", "cannot_be_tested")
    assert set(first) == {
        "id", "statement", "stated", "device", "configuration", "verdict", "reason", "figures", "notes", "seconds",
    }  # fmt: skip
    memory, steps = first["figures"]
    assert memory["mean"] is None
    assert memory["verdict"] == "cannot_be_tested"
    assert steps["values"] == [1.3, 1.31, 1.32]
    assert steps["low"] < steps["mean"] < steps["high"]
    assert steps["threshold"] == {"at_least": 1.05, "at_most": None, "words": "≥ 1.05 ×"}
    assert {
        "path": "claims.checkpointing-tradeoff.memory",
        "code": "not_measured",
        "reason": "needs a CUDA device",
    } in (document["unknown"])


def test_exit_code_1_where_something_is_undecided(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    machine = program("    values('time', 0.5, 2.0, 1.0); say(event='end')\n")
    assert verb(monkeypatch, machine, "--only", "checkpointing-tradeoff") == 1
    shown = capsys.readouterr()
    assert "undecided" in shown.out
    assert "≥ 1.05 ×" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "1 claim, 8 repeats, about" in shown.err


def test_the_file_has_the_results_so_far_when_it_is_cut_off(
    program: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    seen = []
    real = lab_claims._write

    def write(path: Path, content: str) -> None:
        real(path, content)
        seen.append(json.loads(path.read_text()))
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(lab_claims, "_write", write)
    output = tmp_path / "claims.json"
    assert verb(monkeypatch, program(), "--only", ",".join((*PAIR, "dp-cpu")), "-o", str(output)) == 130
    assert [len(document["claims"]) for document in seen] == [1, 2]
    assert json.loads(output.read_text())["complete"] is False
    assert "Stopped" in capsys.readouterr().err


def test_markdown_has_a_row_for_each_figure(program: Any):
    results = list(measure(program(), *PAIR).values())
    lines = claim_report.markdown(results, program()).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + sum(len(result.figures) for result in results)
    assert all(line.count("|") == 7 for line in rows)
    assert "**checkpointing-tradeoff**" in lines[-2]
    assert "1.31 × [" in lines[-1]


@pytest.mark.parametrize("words", [["--only", "amp"], ["--repeats", "1"], ["--limit", "0"]])
def test_usage(program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]):
    assert verb(monkeypatch, program(), *words) == 64
    assert "gpuscope lab claims --help" in capsys.readouterr().err


def test_no_torch_is_exit_code_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho 3 12 0\n")
    path.chmod(0o755)
    monkeypatch.setenv("GPUSCOPE_LAB_PYTHON", str(path))
    parser = argparse.ArgumentParser()
    lab_claims.add_arguments(parser)
    assert lab_claims.run(parser.parse_args([])) == 3
    assert "has none" in capsys.readouterr().err


def test_the_list_needs_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(os.environ, "GPUSCOPE_LAB_PYTHON", "/nonexistent")
    parser = argparse.ArgumentParser()
    lab_claims.add_arguments(parser)
    assert lab_claims.run(parser.parse_args(["--list"])) == 0
    shown = capsys.readouterr().out
    assert all(f"{name}: " in shown for name in BY_ID)
