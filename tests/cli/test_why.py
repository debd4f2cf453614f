"""``gpuscope why PID`` says where the time goes, and why it does not know."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from gpuscope.cli import main as cli
from gpuscope.cli import one_trainer
from gpuscope.cli.commands import why
from tests.cli.test_snapshot_live import frames_of
from tests.fakes.asked import AskedSource, fails, gives


def minute(looks: int = 300) -> dict[str, Any]:
    return {
        "age_seconds": 60.0,
        "seconds": 60.0,
        "steps": 100,
        "looks": looks,
        "rows": [["input", 30.0, looks // 2], ["forward", 30.0, looks // 2]],
        "places": [["input", "data.py:12 __getitem__", 30.0]],
        "collections": 0,
    }


@pytest.fixture
def ask(monkeypatch, capsys):
    """Run the verb over a trainer that answers so: (exit code, output, errors, what was asked)."""
    monkeypatch.setattr(one_trainer, "FIND_SECONDS", 0.5)
    monkeypatch.setattr(why, "LOOK_SECONDS", 0.01)

    def run(*words: str, time: Any = None) -> tuple[int, str, str, list[Any]]:
        source = AskedSource(frames_of(os.getpid()), time=time)
        monkeypatch.setattr("gpuscope.tui.shell.launch.local_source", lambda hz, settings: source)
        code = cli.main(["why", *words])
        out, errors = capsys.readouterr()
        return code, out, errors, source.asked

    return run


def test_it_says_what_takes_most_and_what_a_step_would_take_without_it(ask):
    value = {"minutes": [minute()], "problem": ""}
    code, out, _, asked = ask(str(os.getpid()), time=gives(value))
    assert code == 1
    assert "50 % of the time (44 % to 56 %) goes into waiting for input" in out
    assert "at data.py:12 __getitem__" in out
    assert "a step of 600 ms would take 300 ms or more" in out
    assert "num_workers" in out
    assert [name for name, _ in asked] == ["time", "time"]
    assert asked[0][1]["close_seconds"] == 0.01


def test_the_document_has_the_rows_and_the_causes(ask):
    value = {"minutes": [minute()], "problem": ""}
    code, out, _, asked = ask(str(os.getpid()), "--json", "--no-look", time=gives(value))
    document = json.loads(out)
    assert code == 1
    assert len(asked) == 1
    assert [row["row"] for row in document["rows"]] == ["input", "forward"]
    assert document["rows"][0]["share"] == 0.5
    assert document["causes"][0]["pitfall"] == "num-workers"
    assert document["causes"][0]["step_seconds_at_least"] == 0.3


def test_few_looks_are_said_to_be_few(ask):
    code, out, _, _ = ask(
        str(os.getpid()), "--no-look", time=gives({"minutes": [minute(10)], "problem": ""})
    )
    assert code == 3
    assert "too few to tell" in out


def test_a_trainer_that_has_not_trained_yet_is_said_so(ask):
    value = {"minutes": [], "problem": "no optimizer step was seen yet"}
    code, _, errors, _ = ask(str(os.getpid()), "--no-look", time=gives(value))
    assert code == 3
    assert "Why: no optimizer step was seen yet" in errors


def test_an_older_probe_is_said_to_be_old(ask):
    refusal = fails("unsupported", "this probe does not serve time")
    code, _, errors, _ = ask(str(os.getpid()), "--no-look", time=refusal)
    assert code == 3
    assert "older gpuscope" in errors


def test_a_process_that_does_not_exist(ask):
    code, _, errors, _ = ask("4194303")
    assert code == 3
    assert "no process has pid 4194303 here" in errors
