"""``gpuscope lab``: documents, words and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from gpuscope.lab.config import LabConfig
from gpuscope.lab.launch import PYTHON_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    "config", "device", "steps", "loss_first", "loss_last", "samples_per_second", "step_seconds", "warmup_seconds",
    "peak_allocated_bytes", "peak_reserved_bytes",
}  # fmt: skip
"""What others may rely on."""


def lab(*words: str, python: str = sys.executable, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "gpuscope", "lab", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


def test_the_document_has_its_keys_and_says_what_it_does_not_know() -> None:
    pytest.importorskip("torch")
    done = lab("--model", "mlp", "--amp", "bf16", "--batch", "16", "--steps", "12", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document) >= KEYS
    assert document["config"]["model"] == "mlp"
    assert document["config"]["amp"] == "bf16"
    assert document["config"]["batch"] == 16
    assert document["device"] == "cpu"
    assert document["steps"] == 12
    assert document["loss_last"] < document["loss_first"]
    assert set(document["step_seconds"]) == {"median", "p95"}
    assert isinstance(document["warmup_seconds"], float)
    assert document["peak_allocated_bytes"] is None
    assert {entry["path"] for entry in document["unknown"]} == {"peak_allocated_bytes", "peak_reserved_bytes"}
    assert all(entry["code"] and entry["reason"] for entry in document["unknown"])
    assert "mlp-small" in done.stderr
    assert "samples/s" in done.stderr


def test_headless_without_json_speaks_to_a_person() -> None:
    pytest.importorskip("torch")
    done = lab("--model", "mlp", "--steps", "6", "--device", "cpu", "--headless")
    assert done.returncode == 0
    assert "6 steps on cpu" in done.stdout
    assert "ms median" in done.stdout
    assert "peak_allocated_bytes: unknown, torch counts no memory on a CPU" in done.stdout


def test_slow_fp16_on_a_cpu_is_said() -> None:
    pytest.importorskip("torch")
    done = lab("--model", "mlp", "--amp", "fp16", "--batch", "8", "--steps", "2", "--device", "cpu", "--json")
    assert "10 to 30 times" in done.stderr
    assert json.loads(done.stdout)["warnings"]


@pytest.mark.parametrize(
    ("words", "choices"), [(("--model", "resnet"), "mlp, conv, gpt"), (("--amp", "half"), "off, bf16, fp16")]
)
def test_a_value_that_does_not_exist_is_a_usage_error(words: tuple[str, ...], choices: str) -> None:
    done = lab(*words, "--json")
    assert done.returncode == 64
    assert choices in done.stderr
    assert done.stdout == ""


def test_a_toggle_that_does_not_exist_is_a_usage_error() -> None:
    done = lab("--warp", "9")
    assert done.returncode == 64
    assert "--warp" in done.stderr


def test_a_failed_run_still_has_its_document() -> None:
    pytest.importorskip("torch")
    done = lab("--device", "cuda", "--steps", "2", "--json", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert set(document) >= KEYS
    assert document["steps"] == 0
    assert document["error"]["next"] == "gpuscope lab --device cpu --steps 2"
    assert "Next: gpuscope lab --device cpu --steps 2" in done.stderr


def test_without_torch_the_document_says_what_to_install() -> None:
    done = lab("--steps", "2", "--json", **{PYTHON_VARIABLE: "/bin/false"})
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert set(document) >= KEYS
    assert document["device"] is None
    assert "gpuscope[torch]" in document["error"]["next"]
    assert "gpuscope[torch]" in done.stderr


def test_another_python_with_torch_trains_for_one_without() -> None:
    pytest.importorskip("torch")
    bare = getattr(sys, "_base_executable", sys.executable)
    if subprocess.run([bare, "-c", "import torch"], capture_output=True).returncode == 0:
        pytest.skip(f"{bare} has torch")
    done = lab("--model", "mlp", "--steps", "2", "--json", python=bare, **{PYTHON_VARIABLE: sys.executable})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 2


@pytest.mark.parametrize(("steps", "code"), [((), 0), (("--steps", "1000000"), 2)])
def test_ctrl_c_ends_it_with_the_document(steps: tuple[str, ...], code: int) -> None:
    pytest.importorskip("torch")
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "lab", "--model", "mlp", "--device", "cpu", "--json", *steps],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step "):
            break
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    assert json.loads(out)["steps"] >= 1
    assert process.returncode == code
    assert "Traceback" not in errors


def test_without_headless_the_tui_opens_on_the_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuscope import cli

    asked = {}

    def run_app(**how: object) -> int:
        asked.update(how)
        return 0

    screen = types.ModuleType("gpuscope.tui.launch")
    screen.run_app = run_app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpuscope.tui.launch", screen)
    assert cli.main(["lab", "--amp", "bf16"]) == 0
    assert asked["start_screen"] == "lab"
    assert asked["lab_config"] == LabConfig(amp="bf16")
