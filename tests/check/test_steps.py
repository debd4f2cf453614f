"""Budgets for a step's time: three answers by interval, and a real run on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuscope.check import lock, run, settings, steps
from tests.check.projects import document, project

TABLE = '[check.training.net]\nfactory = "train:make"\nstep_time = "100 ms"\nslower = "10 %"\n'
NET = settings.parsed(Path("gpuscope.toml"), TABLE).trainings["net"]
BEFORE = {"card": lock.Timed("2.13.0", 40, (0.100, 0.101, 0.099))}


@pytest.mark.parametrize(
    ("runs", "known", "wanted"),
    [
        ((0.090, 0.091, 0.089), BEFORE, {"step_time": "ok", "slower": "ok"}),
        ((0.120, 0.121, 0.119), BEFORE, {"step_time": "problem", "slower": "problem"}),
        ((0.090, 0.125, 0.108), BEFORE, {"step_time": "warning", "slower": "warning"}),
        ((0.090,), BEFORE, {"step_time": "warning", "slower": "warning"}),  # no interval
        ((0.090, 0.091), {}, {"step_time": "ok", "slower": "warning"}),
    ],
)
def test_only_a_whole_interval_decides(runs, known, wanted):
    measured = steps.MeasuredRuns("card", "2.13.0+cu130", 40, runs)
    found = {one.kind: one.severity for one in steps.verdicts(NET, measured, known)}
    assert found == wanted


def test_a_time_of_another_torch_is_not_compared():
    measured = steps.MeasuredRuns("card", "2.14.0", 40, (0.1, 0.1))
    verdict = steps.verdicts(NET, measured, BEFORE)[-1]
    assert (verdict.severity, verdict.next) == ("warning", "gpuscope check net --steps 40 --update")


def test_a_machine_is_a_card_with_its_driver_or_a_processor():
    cuda = steps.machine_of({"device": "cuda:0", "device_name": "NVIDIA H100", "world_size": 2})
    assert cuda.startswith("2 x NVIDIA H100, driver ")
    assert steps.machine_of({"device": "cpu", "device_name": "Xeon"}).startswith("Xeon, ")


def test_a_run_that_was_stopped_is_not_said_to_have_had_too_few_steps(monkeypatch, tmp_path):
    ended = SimpleNamespace(failure=None, summary={"steps": 6, "torch_version": "2.13.0"})
    monkeypatch.setattr(steps.launch, "run_blocking", lambda config, hear: ended)
    for wanted, why in ((40, "It was stopped after 6 of 40 steps."), (6, "6 steps are too few.")):
        with pytest.raises(steps.CannotTime) as raised:
            steps.measure(NET, wanted, tmp_path, [], lambda _: None)
        assert raised.value.why == why


def test_after_one_that_was_stopped_no_further_training_is_started(monkeypatch, tmp_path):
    asked = []

    def measure(training, *_):
        asked.append(training.name)
        raise steps.WasStopped("net was not timed.", "It was stopped after 6 of 40 steps.")

    monkeypatch.setattr(run.steps, "measure", measure)
    outcomes = [
        SimpleNamespace(training=replace(NET, name=name), verdicts=[]) for name in ("net", "b", "c")
    ]
    found = SimpleNamespace(folder=tmp_path, path=())
    checked = SimpleNamespace(configuration=found, outcomes=outcomes)
    request = SimpleNamespace(steps=40, hear=lambda _: None)
    assert run._timed(checked, request, {}) == {}
    assert asked == ["net"]
    assert [one.verdicts[0].text for one in outcomes[1:]] == [
        f"{name} was not timed. One before was stopped." for name in ("b", "c")
    ]


@pytest.mark.slow
def test_steps_are_measured_on_the_cpu_and_kept_by_machine(tmp_path):
    pytest.importorskip("torch")
    table = (
        '[tool.gpuscope.check.training.net]\nfactory = "train:make"\nbatch = 2\nslower = "900 %"\n'
    )
    folder = project(tmp_path / "p", table)
    first = document(folder, "--steps", "12", "--update")
    assert first["updated"]
    (one,) = lock.read(folder / lock.NAME).values()
    ((machine, timed),) = one.times.items()
    assert "cores" in machine
    assert len(timed.runs_seconds) == steps.RUNS
    (training,) = document(folder, "--steps", "12")["trainings"]
    verdict = training["verdicts"][-1]
    assert verdict["kind"] == "slower"
    assert "times as long as in gpuscope-check.lock" in verdict["text"]
