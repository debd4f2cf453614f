"""``gpuscope lab``: documents, words and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from gpuscope.cli.commands.lab.text import in_words
from gpuscope.lab import metrics
from gpuscope.lab.config import LabConfig
from gpuscope.lab.launch import PYTHON_VARIABLE
from gpuscope.lab.ledger import RunLedger
from tests.fakes.forking import forking_python
from tests.fakes.in_process import command

ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    "config", "device", "steps", "loss_first", "loss_last", "samples_per_second", "step_seconds",
    "warmup_seconds", "peak_allocated_bytes", "peak_reserved_bytes",
}  # fmt: skip
"""What others may rely on."""


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test writes into the user's own ledger."""
    path = tmp_path / "ledger.sqlite"
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(path))
    return path


@pytest.fixture
def _forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is a fork of a process that has imported torch."""
    pytest.importorskip("torch")
    monkeypatch.setenv(PYTHON_VARIABLE, forking_python(tmp_path))


FORKS = pytest.mark.usefixtures("_forks")


def lab(
    *words: str, python: str = sys.executable, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "gpuscope", "lab", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


@FORKS
@pytest.mark.slow
def test_the_document_has_its_keys_and_says_what_it_does_not_know(ledger: Path) -> None:
    done = lab(
        "--model",
        "mlp",
        "--amp",
        "bf16",
        "--batch",
        "16",
        "--steps",
        "12",
        "--device",
        "cpu",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document) >= KEYS
    assert document["config"]["model"] == "mlp"
    assert document["config"]["amp"] == "bf16"
    assert document["config"]["batch"] == 16
    assert document["device"] == "cpu"
    assert document["steps"] == 12
    assert document["loss_last"] < document["loss_first"]
    assert set(document["step_seconds"]) >= {"median", "p95"}
    assert isinstance(document["warmup_seconds"], float)
    assert document["peak_allocated_bytes"] is None
    on_gpus = {"peak_allocated_bytes", "peak_reserved_bytes", "tensor_active_percent"}
    assert {entry["path"] for entry in document["unknown"]} == on_gpus
    assert all(entry["code"] and entry["reason"] for entry in document["unknown"])
    assert "mlp-small" in done.stderr
    assert "samples/s" in done.stderr
    assert "gpuscope lab runs" in done.stderr
    (entry,) = RunLedger(ledger).entries()
    assert entry.source == "lab"
    assert entry.config == LabConfig.from_mapping(document["config"])
    assert entry.document["loss_last"] == document["loss_last"]


@FORKS
@pytest.mark.slow
def test_two_ranks_and_no_ledger(ledger: Path) -> None:
    words = [
        "--model",
        "mlp-tiny",
        "--device",
        "cpu",
        "--parallel",
        "ddp",
        "--steps",
        "8",
        "--accumulate",
        "2",
    ]
    done = lab(*words, "--headless", "--no-ledger")
    assert done.returncode == 0, done.stderr
    assert "ddp over gloo, 128 samples per step in 2 micro-batches on 2 ranks" in done.stderr
    assert "8 steps on cpu, 128 samples per step on 2 ranks over gloo" in done.stdout
    assert "rank 0" in done.stdout
    assert "rank 1" in done.stdout
    assert not ledger.exists()


@FORKS
@pytest.mark.slow
def test_headless_without_json_speaks_to_a_person_also_where_the_ledger_cannot_be_written(
    ledger: Path,
) -> None:
    ledger.write_bytes(b"this is no ledger, and somebody may want to keep it")
    done = lab("--model", "mlp-tiny", "--steps", "6", "--device", "cpu", "--headless")
    assert done.returncode == 0
    assert "6 steps on cpu" in done.stdout
    assert re.search(r"^step +[0-9.]+ [mµ]?s median", done.stdout, re.M)
    assert done.stdout.count("peak memory   unknown: torch counts no memory on a CPU") == 1
    assert "Warning: the run is not in the ledger." in done.stderr
    assert "Traceback" not in done.stderr
    assert ledger.read_bytes().startswith(b"this is no ledger")


def test_everything_that_was_measured_is_told() -> None:
    document = {
        **metrics.document({}, {}, {}, steps=30),
        "device": "cuda",
        "samples_per_step": 64,
        "world_size": 2,
        "backend": "nccl",
        "skipped_steps": 3,
        "loss_first": 2.0,
        "loss_last": 1.0,
        "validation_loss": 1.5,
        "validation_seconds": 0.02,
        "step_seconds": {"median": 0.1, "p95": 0.2, "low": 0.09, "high": 0.11, "count": 25},
        "scale": 32768.0,
        "samples_per_second": 640.0,
        "input_seconds": 0.05,
        "warmup_seconds": 4.0,
        "tensor_active_percent": 41.6,
        "peak_allocated_bytes": 3 << 30,
        "peak_reserved_bytes": 4 << 30,
        "cache": {"released_bytes": 1 << 30, "seconds": 0.004},
        "compile": {
            "mode": "default",
            "fullgraph": False,
            "first_step_seconds": 12.0,
            "graphs": 3,
            "graph_breaks": [{"where": "train.py:7", "reason": "print", "count": 2}],
            "recompiles": [{"function": f"f{n}", "reason": "shape", "count": 1} for n in range(7)],
        },
        "ranks": [
            {"rank": n, "device": f"cuda:{n}", "step_seconds": 0.1, "peak_allocated_bytes": 1 << 30}
            for n in range(2)
        ],
        "unknown": [
            {"path": path, "code": "y", "reason": "because"}
            for path in ("x", "input_seconds", "loss_curve")
        ],
    }
    assert in_words(document).splitlines() == [
        "30 steps on cuda, 64 samples per step on 2 ranks over nccl",
        "loss          2.0000 → 1.0000",
        "validation    1.5000, 20.0 ms each",
        "step          100 ms median (95 %: 90.0 ms to 110 ms), 200 ms p95",
        "throughput    640 samples/s",
        "input         50.0 ms of a step, 50 %",
        "warm-up       4.00 s",
        "compile       default: first step 12.0 s, 3 graphs, 2 graph breaks, 7 recompiles",
        "              graph break ×2 in train.py:7: print",
        *[f"              recompile in f{n}: shape" for n in range(5)],
        "              and 2 more places",
        "grad scaler   32,768, 3 steps skipped",
        "peak memory   3.00 GiB allocated, 4.00 GiB reserved",
        "empty_cache   returned 1.00 GiB and took 4.00 ms per call",
        "tensor pipes  42 % busy",
        "rank 0        cuda:0, 100 ms/step, 1.00 GiB allocated",
        "rank 1        cuda:1, 100 ms/step, 1.00 GiB allocated",
        "x             unknown: because",
        "input         unknown: because",
        "loss curve    unknown: because",
    ]
    assert in_words(metrics.document({}, {}, {})).startswith("0 steps on ")
    assert in_words({**document, "steps": 1}).startswith("1 step on ")


@pytest.mark.parametrize(
    ("words", "choices"),
    [(("--model", "resnet"), "mlp, conv, gpt"), (("--amp", "half"), "off, bf16, fp16")],
)
def test_a_value_that_does_not_exist_is_a_usage_error(words: tuple[str, ...], choices: str) -> None:
    done = command("lab", *words, "--json")
    assert done.returncode == 64
    assert choices in done.stderr
    assert done.stdout == ""


def test_a_toggle_that_does_not_exist_is_a_usage_error() -> None:
    done = command("lab", "--warp", "9")
    assert done.returncode == 64
    assert "--warp" in done.stderr


@FORKS
@pytest.mark.slow
def test_a_failed_run_still_has_its_document() -> None:
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
    assert "pip install torch" in document["error"]["next"]
    assert "pip install torch" in done.stderr


@pytest.mark.slow
def test_another_python_with_torch_trains_for_one_without_and_slow_fp16_is_said() -> None:
    pytest.importorskip("torch")
    bare = getattr(sys, "_base_executable", sys.executable)
    if subprocess.run([bare, "-c", "import torch"], capture_output=True).returncode == 0:
        pytest.skip(f"{bare} has torch")
    done = lab(
        "--model",
        "mlp-tiny",
        "--amp",
        "fp16",
        "--batch",
        "8",
        "--steps",
        "2",
        "--device",
        "cpu",
        "--json",
        python=bare,
        **{PYTHON_VARIABLE: sys.executable},
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["steps"] == 2
    assert document["warnings"]
    assert "10 to 30 times" in done.stderr


@FORKS
@pytest.mark.slow
@pytest.mark.parametrize(("steps", "code"), [((), 0), (("--steps", "1000000"), 2)])
def test_ctrl_c_ends_it_with_the_document(steps: tuple[str, ...], code: int) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gpuscope",
            "lab",
            "--model",
            "mlp-tiny",
            "--device",
            "cpu",
            "--json",
            *steps,
        ],
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
    from gpuscope.cli import main as cli

    asked = {}

    def run_app(**how: object) -> int:
        asked.update(how)
        return 0

    screen = types.ModuleType("gpuscope.tui.app.launch")
    screen.run_app = run_app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpuscope.tui.app.launch", screen)
    assert cli.main(["lab", "--amp", "bf16"]) == 0
    assert asked["start_screen"] == "lab"
    assert asked["lab_config"] == LabConfig(amp="bf16")
