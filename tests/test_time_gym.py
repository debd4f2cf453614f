"""The gym of time: its index, its scores, and two trainings of it on the CPU."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from bench.time_gym import index, score
from tests.fakes.probe_client import environment
from tests.fakes.program import python


def steps(each: float, seconds: float = 10.0) -> list[list[float]]:
    return [[number * each, number] for number in range(1, int(seconds / each))]


def document(*causes: tuple[str, float], looked: bool = False, severity: str = "info") -> Any:
    return {
        "rows": [
            {"row": "forward", "share": 0.99},
            {"row": "unattributed", "share": 0.01},
        ],
        "causes": [
            {
                "row": name,
                "severity": severity,
                "saves_share_at_most": share,
                "saves_share_at_most_low": share - 0.05,
                "saves_share_at_most_high": share + 0.05,
            }
            for name, share in causes
        ],
        "look": None
        if not looked
        else {
            "problem": None,
            "rows": [{"row": "unattributed", "share": 0.03}],
            "stood_seconds": 0.05,
            "lost_seconds": 0.1,
        },
    }


def row(name: str, names: list[str], why: Any, each: float, cured: bool = False) -> dict[str, Any]:
    return {
        "name": name + " cured" * cured,
        "subject": name,
        "cured": cured,
        "names": names,
        "single": True,
        "quiet": True,
        "problem": None,
        "why": why,
        "why_seconds": 5.0,
        "no_look_seconds": 0.5,
        "asked": [3.0, 8.0],
        "steps": steps(each),
        "output": [],
    }


def test_every_subject_of_the_index_is_a_function_that_trains():
    subjects = index.load()
    for one in subjects:
        if one.script:
            text = (index.SCRIPTS / one.script).read_text()
            name = one.id.replace("-", "_")
            assert f"def {name}(training: Training)" in text, one.id
            assert re.search(rf"\b{name}\b", text[text.index("main(") :]), one.id
    assert len([one for one in subjects if one.names]) >= 20
    assert len([one for one in subjects if not one.names]) >= 15


def test_a_part_has_both_variants_of_every_second_subject():
    first, second = (index.variants(part=(number, 2)) for number in (1, 2))
    assert {one.name for one in first} & {one.name for one in second} == set()
    assert len(first) + len(second) == len(index.variants())
    healthy = [one for one in first if not one.subject.names]
    assert first[: len(healthy)] == healthy, "those that nobody is to warn of come first"
    assert abs(2 * len(healthy) - len([one for one in index.load() if not one.names])) <= 1
    assert [one.name for one in first[len(healthy) :][:2]] == [
        "checkpoint-each-few-steps",
        "checkpoint-each-few-steps cured",
    ]


def test_causes_are_read_as_they_are_ranked_and_late_launches_are_a_fact_unless_they_warn():
    causes = score.named(document(("launch", 0.3), ("other", 0.1)))
    assert [(one.name, one.alarms) for one in causes] == [("launch", False), ("other", True)]
    assert score.named(document(("launch", 0.6), severity="warning"))[0].alarms
    assert score.named(None) == []


def test_the_clock_outside_leaves_out_what_the_look_has_cost():
    why = document(looked=True)
    assert score.step_seconds(row("a", [], why, 0.02)) == pytest.approx(0.02, rel=0.02)
    slow = row("a", [], why, 0.02)
    slow["steps"] = [[at + (0.3 if at > 3.2 else 0.0), step] for at, step in slow["steps"]]
    assert score.look_cost(slow) == pytest.approx(0.3, abs=0.01)
    assert score.step_seconds(row("a", [], why, 6.0)) is None


def test_the_bars_say_what_misses_them():
    rows = [
        row("sync", ["read"], document(("read", 0.5), looked=True), 0.04),
        row("sync", ["read"], document(("launch", 0.2), looked=True), 0.02, cured=True),
        row("save", ["checkpoint"], document(("checkpoint", 0.2)), 0.04),
        row("save", ["checkpoint"], document(), 0.01, cured=True),
        row("fp32", ["products-plain"], document(), 0.04),
        row("healthy", [], document(("other", 0.2)), 0.02),
    ]
    text = "\n".join(score.report(rows))
    assert "first cause right: 2 of 3, 67% (bar 90%); not: fp32" in text
    assert "no warning: 2 of 3, 67% of healthy (1) and cured ones (bar 100 %); not: healthy" in text
    assert "'at most' held: 1 of 2, 50% (bar 100 %); not: save" in text
    assert "not attributed, thread: median 1.00%" in text
    assert "not attributed, gpu: median 3.00%" in text


@pytest.mark.slow
def test_it_measures_a_training_with_a_fault_and_its_cure_on_the_cpu(tmp_path):
    words = ["--device", "cpu", "--only", "no-workers,gpt-in-bf16", "--out", str(tmp_path)]
    done = python("-m", "bench.time_gym", *words, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [one["name"] for one in rows] == ["gpt-in-bf16", "no-workers", "no-workers cured"]
    for one in rows:
        assert score.step_seconds(one) > 0
        assert one["why"]["looks"] > 25
        assert "does not use CUDA" in one["why"]["look"]["problem"]
    assert "3 trainings, 0 did not run" in (tmp_path / "table.txt").read_text()
