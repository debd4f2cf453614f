"""The reports for CI systems, and the files that start a check there."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from gpuscope.check import document, github, junit, sarif, settings, text
from gpuscope.check.cause import CostlyLine, ModuleChange
from gpuscope.check.outcome import (
    BaselineChange,
    BudgetVerdict,
    Checked,
    Outcome,
    ScriptFinding,
)
from gpuscope.cli import main as cli
from gpuscope.doctor.finding import Evidence, Finding
from gpuscope.exit_status import FAIL_ON, of_severities
from gpuscope.text.styled import plain
from tests.check.projects import ROOT
from tests.fakes.documented import keys

HOSTILE = "a,b:c%\x1b[31m\r\n<x>&"
TABLE = '[check.training.net]\nfactory = "train:make"\npeak = "1 GiB"\nregression = "2 %"\n'
FINDING = Finding(
    pitfall="num-workers",
    cause="script.no-loader-workers",
    title="The loader has no worker processes",
    severity="warning",
    confidence="likely",
    evidence=(Evidence(HOSTILE),),
)


@pytest.fixture
def checked(tmp_path: Path) -> Checked:
    """A broken budget with its cause, one that is too close, one that holds, and a script."""
    found = settings.parsed(tmp_path / "gpuscope.toml", TABLE)
    (training,) = found.trainings.values()
    outcome = Outcome(training, None, [
        BudgetVerdict("regression", "problem", "it grew by 3 GiB", "gpuscope check --update", 4),
        BudgetVerdict("peak", "warning", f"too close {HOSTILE}", "", 3),
        BudgetVerdict("fits", "ok", "fits", "", 1),
    ])  # fmt: skip
    part = ModuleChange(f"blocks.*{'.inner' * 20}", "activation", 0, 3 << 30)
    cause = CostlyLine(
        "a b/mödel.py", 50, "x = block(x)", "x = checkpoint(block, x)", 3 << 30, "alone"
    )
    outcome.change = BaselineChange("main", True, 1 << 30, 4 << 30, (part,), (cause,))
    return Checked(
        found, str(tmp_path), [outcome], [ScriptFinding("train.py", 7, FINDING)], ["no file"]
    )


def test_junit_has_a_test_for_each_budget(checked):
    root = ElementTree.fromstring(junit.document(checked))
    (suite,) = root
    assert {key: suite.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "5", "failures": "1", "errors": "1",
    }  # fmt: skip
    broken, close, fine, script, missing = suite
    assert [one.get("name") for one in (broken, close, fine)] == ["regression", "peak", "fits"]
    assert "a b/mödel.py:50 x = block(x)" in broken[0].text
    assert [case[0].tag for case in (broken, close, fine, script, missing)] == [
        "failure", "system-out", "system-out", "system-out", "error",
    ]  # fmt: skip


def test_sarif_places_a_broken_budget_at_the_line_that_broke_it(checked):
    log = json.loads(json.dumps(sarif.document(checked)))
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(rules) == len(set(rules))
    places = {}
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        where = result["locations"][0]["physicalLocation"]
        places[result["ruleId"]] = (
            result["level"], where["artifactLocation"]["uri"], where["region"]["startLine"]
        )  # fmt: skip
    assert places == {
        "budget.regression": ("error", "a%20b/m%C3%B6del.py", 50),
        "budget.peak": ("warning", "gpuscope.toml", 3),
        "script.num-workers": ("warning", "train.py", 7),
    }
    related = run["results"][0]["relatedLocations"][0]["physicalLocation"]
    assert related["region"]["startLine"] == 4
    assert not run["invocations"][0]["executionSuccessful"]


def test_annotations_are_one_line_each_and_keep_hostile_names_as_text(checked):
    lines = list(github.commands(checked))
    heads = [line.split("::")[1] for line in lines]
    assert heads == [
        "error file=gpuscope.toml,line=4,title=gpuscope%3A net regression",
        "warning file=gpuscope.toml,line=3,title=gpuscope%3A net peak",
        "error file=a b/mödel.py,line=50,title=gpuscope%3A net +3.00 GiB",
        "warning file=train.py,line=7,title=gpuscope%3A num-workers",
        "error file=gpuscope.toml,line=1,title=gpuscope%3A not checked",
    ]
    assert not any(re.search(r"[\r\n\x1b]|%(?!25|0A|0D|3A|2C)", line) for line in lines)
    assert github.wanted({"GITHUB_ACTIONS": "true"})
    assert not github.wanted({})


def test_the_text_and_the_document_hold_the_same(checked):
    page = [plain(line) for line in text.lines(checked, 2, 80)]
    assert max(map(len, page)) <= 80
    assert "\x1b" not in "".join(page)
    assert any("a b/mödel.py:50   this change alone adds 3.00 GiB" in line for line in page)
    assert page[-1].startswith("1 training in 0 s: 1 problem, 2 warnings, 1 not checked.")
    found = document.document(checked, 2)
    assert found["trainings"][0]["change"]["lines"][0]["proof"] == "alone"
    assert found["trainings"][0]["peak_allocated_bytes"] is None
    json.dumps(found, allow_nan=False)
    (one,) = found["trainings"]
    for row, there in {
        "the document": found,
        "each of `trainings`": one,
        "each of `verdicts`": one["verdicts"][0],
        "`change`": one["change"],
        "each of `modules`": one["change"]["modules"][0],
        "each of `lines`": one["change"]["lines"][0],
        "each of `scripts`": found["scripts"][0],
        "each of `problems`": found["problems"][0],
    }.items():
        assert sorted(keys("check", row)) == sorted(there), row


def test_the_worst_decides_the_exit_code(checked):
    def codes() -> list[int]:
        return [of_severities(checked.severities(), fail_on) for fail_on in FAIL_ON]

    assert codes() == [2, 2, 3]
    checked.outcomes[0].verdicts[0] = replace(checked.outcomes[0].verdicts[0], severity="ok")
    assert codes() == [3, 3, 3]
    checked.problems.clear()
    assert codes() == [1, 0, 0]


def options_of_check() -> set[str]:
    parser = cli.parser("check")
    return {option for action in parser._actions for option in action.option_strings}


def test_the_hook_and_the_action_use_options_that_exist():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    action = yaml.safe_load((ROOT / ".github/actions/gpuscope-check/action.yml").read_text())
    script = action["runs"]["steps"][-1]["run"]
    for words in (hook["entry"], script):
        used = set(re.findall(r"--[a-z][\w-]+", words))
        assert used
        assert used <= options_of_check()


def test_the_actions_script_passes_its_inputs_as_they_are(tmp_path):
    """Its last step runs here, with a stand-in for Python that prints its arguments."""
    action = yaml.safe_load((ROOT / ".github/actions/gpuscope-check/action.yml").read_text())
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 2\n')
    python.chmod(0o755)
    step = action["runs"]["steps"][-1]
    environ = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "NAMES": "one two", "BASE": "a$(touch x)b",
        "FAIL_ON": "problem", "JUNIT": "", "SARIF": "out.sarif",
        "GITHUB_OUTPUT": str(tmp_path / "o"),
    }  # fmt: skip
    assert set(step["env"]) <= set(environ)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        env=environ, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout.split("\n")[:-1] == [
        "-m", "gpuscope", "check", "--fail-on", "problem", "--base=a$(touch x)b",
        "--sarif=out.sarif", "--", "one", "two",
    ]  # fmt: skip
    assert (tmp_path / "o").read_text() == "exit-code=2\n"
    assert not (tmp_path / "x").exists()
