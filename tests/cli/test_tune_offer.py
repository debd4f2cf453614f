"""The search that ``why`` and the doctor offer for a training whose factory can be named."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.cli import tune_offer
from gpuscope.doctor.finding import Finding, Report
from gpuscope.lab.config import LabConfig
from gpuscope.store.view import TrainerView
from gpuscope.wire import frames

WAITS = "import time, sys; print('up', flush=True); time.sleep(60)"
TRAINING = '[tool.gpuscope.check.training.{0}]\nfactory = "{1}"\n'


@contextmanager
def process(folder: Path, *words: str) -> Iterator[int]:
    child = subprocess.Popen(
        [sys.executable, "-c", WAITS, *words], cwd=folder, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        yield child.pid
    finally:
        child.kill()
        child.wait()


def trainer(pid: int, **more: str) -> TrainerView:
    return TrainerView(1, f"{pid}:1", {}, None, None, frames.TrainerDef(pid=pid, **more), None, ())


@pytest.mark.parametrize(
    ("trainings", "script", "said"),
    [
        ({"gpt": "train:make"}, "main.py", "gpuscope tune train:make"),
        ({"gpt": "train:make", "small": "tiny:make"}, "/srv/tiny.py", "gpuscope tune tiny:make"),
        ({"gpt": "train:make", "small": "tiny:make"}, "main.py", ""),
        ({"vit": "torchvision:vit_b_16"}, "main.py", ""),
        ({}, "main.py", ""),
    ],
)
def test_a_factory_of_the_project_is_named(
    tmp_path: Path, trainings: dict[str, str], script: str, said: str
):
    text = "".join(TRAINING.format(*one) for one in trainings.items())
    (tmp_path / "pyproject.toml").write_text(text or '[project]\nname = "none"\n')
    with process(tmp_path) as pid:
        found = tune_offer.offer(trainer(pid, script=script))
    assert found == (f"cd {tmp_path} && {said}" if said else "")


def test_the_default_model_of_the_lab_is_named_too(tmp_path: Path):
    with process(tmp_path, "--config", LabConfig(batch=4).to_json()) as pid:
        assert tune_offer.offer(trainer(pid, origin="lab")) == (
            f"gpuscope tune --model {LabConfig().model} --batch 4"
        )


def test_a_trainer_of_the_lab_is_named_by_its_switches(tmp_path: Path):
    config = LabConfig(model="mlp", batch=4, steps=100)
    with process(tmp_path, "--config", config.to_json()) as pid:
        lab = trainer(pid, origin="lab")
        assert tune_offer.offer(lab) == "gpuscope tune --model mlp --batch 4"
        findings = [
            Finding(
                pitfall=pitfall,
                cause=cause,
                title="t",
                severity="warning",
                confidence="likely",
                evidence=(),
            )
            for pitfall, cause in (
                ("too-small-workload", "live.launch_bound"),
                ("logging-in-loop", "live.logging"),
            )
        ]
        report = tune_offer.with_offers(Report(findings=tuple(findings)), [lab])
    launches, logging = report.findings
    assert launches.fixes[-1].command == "gpuscope tune --model mlp --batch 4"
    assert len(launches.fixes) > 1
    assert not logging.fixes


def test_nothing_is_offered_for_a_process_that_is_gone(tmp_path: Path):
    with process(tmp_path) as pid:
        pass
    time.sleep(0.01)
    assert tune_offer.offer(trainer(pid, script="train.py")) == ""
