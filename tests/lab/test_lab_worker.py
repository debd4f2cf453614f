"""The worker as a process of its own: what it says, how it ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuscope.lab import metrics
from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import RunLedger
from tests.fakes.forking import Forked, forking_python, script
from tests.fakes.waiting import until

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]


QUIET = "import sys, warnings; warnings.simplefilter('ignore'); sys.path.remove('')\n"


@contextmanager
def worker(
    config: str,
    *words: str,
    before: Callable[[], None] | None = None,
    cwd: Path | None = None,
    fork: bool = False,
    python: str = sys.executable,
    **variables: str,
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker; with ``fork`` one that finds torch imported. Its ranks are run by ``python``."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    words = ("--config", config, *words)
    process: Any
    if fork:
        code = f"import sys\nsys.executable = {python!r}\n{QUIET}"
        code += script("gpuscope.lab.worker", *words)
        process = Forked(code, environ, cwd=cwd or ROOT, text=False)
    else:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "gpuscope.lab.worker", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd or ROOT,
            env=environ,
            preexec_fn=before,
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def records(process: subprocess.Popen[bytes], seconds: float = 60) -> list[metrics.Record]:
    out, _ = process.communicate(timeout=seconds)
    found = [metrics.decode(line) for line in out.splitlines()]
    assert None not in found, out
    return found  # type: ignore[return-value]


def first_step(process: subprocess.Popen[bytes]) -> metrics.Step:
    assert process.stdout is not None
    for line in process.stdout:
        record = metrics.decode(line)
        if isinstance(record, metrics.Step):
            return record
    raise AssertionError(process.stderr.read() if process.stderr else "")


def test_a_run_tells_how_it_started_went_and_ended() -> None:
    with worker(LabConfig(model="mlp", batch=16, accumulate=2, steps=20).to_json()) as process:
        started, *steps, ended = records(process)
    assert process.returncode == 0
    assert isinstance(started, metrics.Started)
    assert (started.preset, started.device, started.samples_per_step) == ("mlp-small", "cpu", 32)
    assert started.parameters > 100_000
    assert all(isinstance(step, metrics.Step) for step in steps)
    assert steps[0].step == 1
    assert steps[0].warming_up
    assert steps[-1].step == 20
    assert not steps[-1].warming_up
    assert isinstance(ended, metrics.RunEnded)
    assert ended.summary["steps"] == 20
    assert ended.summary["loss_last"] < ended.summary["loss_first"]
    assert 0 < ended.summary["step_seconds"]["median"] <= ended.summary["step_seconds"]["p95"] < 10
    # Half of the steps took the median or longer, so the mean is at least half of it.
    assert (
        0 < ended.summary["samples_per_second"] <= 2 * 32 / ended.summary["step_seconds"]["median"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(number: signal.Signals) -> None:
    with worker(LabConfig(model="mlp").to_json(), fork=True) as process:
        first_step(process)
        process.send_signal(number)
        ended = records(process)[-1]
    assert process.returncode == 0
    assert isinstance(ended, metrics.RunEnded)
    assert ended.summary["steps"] >= 1


@pytest.mark.slow
def test_a_signal_while_torch_is_being_imported_ends_it_at_once() -> None:
    with worker(LabConfig(model="mlp").to_json()) as process:
        until(lambda: b"libtorch" in Path(f"/proc/{process.pid}/maps").read_bytes(), seconds=20)
        process.send_signal(signal.SIGTERM)
        ended = records(process)[-1]
    assert process.returncode == 0
    assert isinstance(ended, metrics.RunEnded)
    assert ended.summary["steps"] == 0


def test_the_end_of_stdin_ends_it() -> None:
    with worker(LabConfig(model="mlp").to_json(), "--stop-on-eof", fork=True) as process:
        first_step(process)
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        assert isinstance(records(process)[-1], metrics.RunEnded)
    assert process.returncode == 0


def test_a_run_whose_viewer_has_gone_is_written_down_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "lab.sqlite"
    config = LabConfig(model="mlp", seed=7)
    words = ("--stop-on-eof", "--keep")
    with worker(config.to_json(), *words, fork=True, GPUSCOPE_LEDGER=str(path)) as process:
        seen = first_step(process).step
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        assert not any(isinstance(one, metrics.RunEnded) for one in records(process)), (
            "written twice"
        )
    (entry,) = RunLedger(path).entries()
    assert entry.source == "lab"
    assert entry.config is not None
    assert entry.config.seed == 7
    assert entry.document["steps"] >= seen
    assert entry.document["loss_curve"]


def test_a_run_that_is_stopped_while_it_is_watched_is_left_to_its_viewer(tmp_path: Path) -> None:
    path = tmp_path / "lab.sqlite"
    words = ("--stop-on-eof", "--keep")
    with worker(
        LabConfig(model="mlp").to_json(), *words, fork=True, GPUSCOPE_LEDGER=str(path)
    ) as process:
        first_step(process)
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        ended = [metrics.decode(line) for line in process.stdout][-1]
    assert isinstance(ended, metrics.RunEnded)
    assert not path.exists()


def test_a_reader_that_went_away_ends_it() -> None:
    with worker(LabConfig(model="mlp").to_json(), fork=True) as process:
        first_step(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(20) == 0
        process.stdout = None


def test_cuda_where_there_is_none_names_the_nearest_that_works() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with worker(
        LabConfig(model="mlp", amp="bf16", device="cuda", steps=2).to_json(), fork=True
    ) as process:
        (failure,) = records(process)
    assert process.returncode == 2
    assert isinstance(failure, metrics.RunFailure)
    assert "cuda" in failure.what
    assert failure.next == "gpuscope lab --model mlp --device cpu --amp bf16 --steps 2"
    assert failure.summary["error"]["what"] == failure.what
    assert failure.summary["steps"] == 0


@pytest.mark.slow
def test_running_out_of_memory_says_what_needs_less() -> None:
    if torch.version.cuda:
        pytest.skip("a torch with CUDA maps more than this test leaves")

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    with worker(
        LabConfig(model="mlp", device="cpu", batch=1 << 20).to_json(), before=small
    ) as process:
        *_, failure = records(process)
        assert process.returncode == 2
    assert isinstance(failure, metrics.RunFailure)
    assert failure.what == "The lab ran out of memory at step 1."
    assert "can't allocate memory" in failure.why
    assert failure.next == "gpuscope lab --model mlp --device cpu --batch 524288 --accumulate 2"
    assert failure.summary["device"] == "cpu"


def test_a_configuration_that_is_none_is_a_usage_error() -> None:
    with worker('{"model": "resnet"}') as process:
        (failure,) = records(process)
    assert process.returncode == 64
    assert isinstance(failure, metrics.RunFailure)
    assert "gpt-small" in failure.why


def test_the_probe_in_it_answers_like_that_of_any_training() -> None:
    with worker(LabConfig(model="mlp").to_json(), fork=True) as process:
        first_step(process)
        folder = Path(f"/tmp/gpuscope-{os.getuid()}")
        (path,) = until(lambda: list(folder.glob(f"{process.pid}-*.sock")), seconds=20)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(20)
            link.connect(str(path))
            with link.makefile("rb") as lines:
                frames = (json.loads(line) for line in lines)
                trainer = next(frame["trainer"] for frame in frames if frame.get("trainer"))
        assert (trainer["pid"], trainer["origin"], trainer["script"]) == (
            process.pid,
            "lab",
            "gpuscope lab",
        )
        process.terminate()
        assert isinstance(records(process)[-1], metrics.RunEnded)
    assert not path.exists()


@pytest.mark.slow
def test_every_line_is_json_even_when_torch_talks() -> None:
    with worker(LabConfig(model="conv", amp="fp16", batch=2, steps=2).to_json()) as process:
        out, _ = process.communicate(timeout=60)
    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    assert kinds == ["started", "step", "step", "ended"]


@pytest.mark.slow
def test_processes_report_one_run(tmp_path: Path) -> None:
    config = LabConfig(
        model="mlp-tiny", device="cpu", batch=4, accumulate=2, parallel="ddp", nproc=2, steps=12
    )
    with worker(config.to_json(), fork=True, python=forking_python(tmp_path)) as process:
        started, *_, ended = records(process)
    assert isinstance(started, metrics.Started)
    assert isinstance(ended, metrics.RunEnded)
    document = ended.summary
    assert (started.world_size, started.backend, started.samples_per_step) == (2, "gloo", 16)
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    assert all(rank["step_seconds"] > 0 for rank in document["ranks"])
    assert len(document["loss_curve"]) == document["steps"] == 12


# ── a user's own model ────────────────────────────────────────────────────────────────────────────

OWN = """
import torch
from torch import nn
print("a module that prints")

def make(batch, device):
    torch.manual_seed(1)
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    def forward():
        inputs = torch.randn(batch, 8, device=device)
        return (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    return model, optimizer, forward

def broken(batch, device):
    model, optimizer, _ = make(batch, device)
    def forward():
        raise KeyError("labels")
    return model, optimizer, forward
"""


def test_a_model_of_the_user_s_in_the_current_folder_trains(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    config = LabConfig(model="own:make", device="cpu", batch=16, accumulate=2, steps=60)
    with worker(config.to_json(), cwd=tmp_path, fork=True) as process:
        started, *_, ended = records(process)
    assert isinstance(started, metrics.Started)
    assert (started.preset, started.parameters, started.samples_per_step) == ("own:make", 9, 32)
    assert isinstance(ended, metrics.RunEnded)
    assert ended.summary["loss_last"] < 0.5 * ended.summary["loss_first"]
    assert "input_seconds" in [entry["path"] for entry in ended.summary["unknown"]]


def test_an_exception_in_their_forward_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with worker(
        LabConfig(model="own:broken", device="cpu").to_json(), cwd=tmp_path, fork=True
    ) as process:
        *_, failure = records(process)
    assert process.returncode == 2
    assert isinstance(failure, metrics.RunFailure)
    assert "step 1 with KeyError" in failure.what
    assert failure.why == f"'labels' (at {tmp_path / 'own.py'}:18)"


HANGS = """
import os, time

def hangs(batch, device):
    model, optimizer, forward = make(batch, device)
    def slow(done=[]):
        if len(done) == 3:
            open("in-a-long-step", "x").close()
            time.sleep(600)
        done.append(1)
        return forward()
    return model, optimizer, slow
"""


def test_one_that_is_told_to_end_in_a_long_step_leaves_nothing_to_be_explained(
    tmp_path: Path,
) -> None:
    """It is killed soon: nobody shall find a training that died without a word."""
    (tmp_path / "own.py").write_text(OWN + HANGS)
    boxes = tmp_path / "boxes"
    config = LabConfig(model="own:hangs", device="cpu", batch=4)
    with worker(
        config.to_json(), cwd=tmp_path, fork=True, GPUSCOPE_BLACKBOX_DIR=str(boxes)
    ) as process:
        until((tmp_path / "in-a-long-step").exists, seconds=60)
        until(lambda: list(boxes.glob(f"{process.pid}-*.box")), seconds=20)
        process.terminate()
        until(lambda: not list(boxes.iterdir()), seconds=20)
        assert process.poll() is None
