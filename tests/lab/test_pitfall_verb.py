"""``gpuscope lab pitfall``: the list, and trainings that are really started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuscope.doctor import table
from gpuscope.lab import pitfalls
from tests.fakes.forking import forking_python
from tests.fakes.in_process import command
from tests.fakes.probe_client import ROOT, Reader, environment, sockets, wait_for

PITFALLS = {one.id: one for one in pitfalls.load()}
SECONDS = 120


def started(*words: str, **variables: str | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "lab", "pitfall", *words],
        text=True,
        cwd=ROOT,
        start_new_session=True,
        env=environment(CUDA_VISIBLE_DEVICES="", **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finished(*words: str, **variables: str | None) -> tuple[int, str, str]:
    process = started(*words, **variables)
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def test_the_list_names_every_pitfall_in_one_line():
    done = command("lab", "pitfall")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[: len(PITFALLS)]] == [*PITFALLS]
    assert max(map(len, lines)) <= 100
    document: list[dict[str, Any]] = json.loads(command("lab", "pitfall", "--json").stdout)[
        "pitfalls"
    ]
    assert [one["id"] for one in document] == [*PITFALLS]
    for one in document:
        assert Path(one["faulty"]["script"]).is_file()
        assert one["cured"]["command"][-1] == one["cured"]["script"]


def test_a_name_of_the_doctor_finds_the_script_that_reproduces_it():
    for row in table.load().values():
        name = row.verify.removeprefix("gpuscope lab pitfall ")
        if name != row.verify:
            assert name == row.id
            assert pitfalls.find(name, [*PITFALLS.values()]) is not None, name
    found = pitfalls.find("num-workers", [*PITFALLS.values()])
    assert found is PITFALLS["slow-input"]
    assert "Did you mean: num-workers?" in command("lab", "pitfall", "num-worker").stderr


def test_no_such_pitfall_and_json_of_one_are_usage_errors():
    for words in (["no\x1bsuch"], ["slow-input", "--json"]):
        done = command("lab", "pitfall", *words)
        assert (done.returncode, done.stdout) == (64, "")
        assert "gpuscope lab pitfall" in done.stderr
        assert "\x1b" not in done.stderr


@pytest.mark.slow
def test_one_that_needs_gpus_and_torchrun_is_not_started_without():
    pytest.importorskip("torch")
    code, out, err = finished("wrong-backend")
    assert (code, out) == (3, "")
    assert "wrong-backend needs 2 GPUs" in err
    assert "torch.distributed" not in err


def test_no_python_with_torch_is_said(tmp_path: Path):
    code, out, err = finished("fp16-underflow", GPUSCOPE_LAB_PYTHON=str(tmp_path / "none"))
    assert (code, out) == (3, "")
    assert "The lab needs a Python with PyTorch" in err


@pytest.mark.slow
def test_it_becomes_the_training_with_the_probe_in_it():
    pytest.importorskip("torch")
    process = started("accumulation-not-divided", "--cured", "--args", "--seconds", "100")
    try:
        (path,) = wait_for(lambda: sockets(process.pid), SECONDS, "a socket")
        reader = Reader(path)
        try:
            reader.until(lambda: (reader.value("step") or 0) > 10)
            assert reader.trainer().origin == "run"
        finally:
            reader.close()
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM
    assert re.search("accumulation_not_divided_cured.py'? --seconds 100", err)
    assert "of the first" in out


@pytest.mark.slow
def test_output_and_exit_code_are_those_of_the_script(tmp_path: Path):
    pytest.importorskip("torch")
    python = forking_python(tmp_path)
    words = ("wrapped-model-attribute", "--args", "--steps", "2")
    code, out, err = finished(*words, GPUSCOPE_LAB_PYTHON=python)
    assert code == 1
    assert re.fullmatch(r"step 2  loss [\d.]+\n", out)
    traceback, _, diagnosis = err.partition("\ngpuscope doctor on ")
    assert traceback.rstrip().endswith(
        "AttributeError: " + PITFALLS["wrapped-model-attribute"].expect
    )
    assert "--explain use-module-attr" in diagnosis, (
        "a failing run is diagnosed below its traceback"
    )


@pytest.mark.slow
def test_torchrun_is_used_where_the_index_says_so(tmp_path: Path):
    pytest.importorskip("torch")
    words = ("ddp-no-environment", "--cured", "--args", "--steps", "5")
    code, out, err = finished(*words, PYTHON_EXEC=forking_python(tmp_path))
    assert code == 0, err
    assert re.search(r"step 5  loss [\d.]+", out)
    assert "torch.distributed.run --standalone --nproc-per-node 2" in err
