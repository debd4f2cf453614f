"""The pitfall scripts on one GPU and on two: ``pytest -m gpu``.

What concerns the host alone is in ``test_pitfall_scripts.py``, and the gym runs it on GPUs.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.forked_scripts import Ended, Scripts
from tests.fakes.probe_client import environment
from tests.lab.test_pitfall_scripts import (
    ANYWHERE,
    PITFALLS,
    SECONDS,
    TIMED,
    Check,
    committed,
    fewer_milliseconds,
    shown,
    trains,
)


def gpus() -> int:
    """How many CUDA devices torch sees, asked only where these tests are run."""
    torch = pytest.importorskip("torch")
    return int(torch.cuda.device_count())


@pytest.fixture(scope="module")
def on_gpu() -> Iterator[Scripts]:
    with tempfile.TemporaryDirectory() as folder:
        scripts = Scripts(Path(folder))
        yield scripts
        scripts.end()


def model_left_on_cpu(faulty: Ended, cured: Ended) -> None:
    assert faulty.last(r"GPU memory (\d+) MiB") == 0
    assert cured.last(r"GPU memory (\d+) MiB") > 30
    for one in (faulty, cured):  # it does learn, wherever it is
        losses = re.findall(r"loss ([\d.]+)", one.text)
        assert float(losses[-1]) < float(losses[0])
    assert cured.last(r"([\d.]+) steps/s") > faulty.last(r"([\d.]+) steps/s")


def out_of_memory(faulty: Ended, cured: Ended) -> None:
    """The cured one evaluates the same batches with a few of their activations at a time."""
    assert cured.last(r"peak ([\d.]+) GiB") < 0.1 * faulty.last(r"total capac\w+ of ([\d.]+) GiB")


def faster(pattern: str, times: float) -> Check:
    """The cured one has ``times`` the figure of ``pattern``."""

    def check(faulty: Ended, cured: Ended) -> None:
        assert cured.last(pattern) > times * faulty.last(pattern), faulty.text + cured.text

    return check


def shorter_steps(times: float) -> Check:
    """A step of the cured one takes ``times`` as long at most."""

    def check(faulty: Ended, cured: Ended) -> None:
        each = [one.last(r"([\d.]+) ms a step") for one in (faulty, cured)]
        assert each[1] < times * each[0], faulty.text + cured.text

    return check


def timing_without_synchronize(faulty: Ended, cured: Ended) -> None:
    wrong, right = (one.last(r"forward ([\d.]+) ms") for one in (faulty, cured))
    assert wrong < right / 3
    assert cured.last(r"= ([\d.,]+) TFLOP/s") < 1000  # of float32, what a GPU of today can do


def not_reproducible(faulty: Ended, cured: Ended) -> None:
    assert faulty.last(r"(\d+) of \d+ weights differ") > 0
    assert cured.last(r"(\d+) of \d+ weights differ") == 0


def empty_cache_live_tensors(faulty: Ended, cured: Ended) -> None:
    wrong, right = (
        [int(figure) for figure in re.findall(r"allocated (\d+)", one.text)]
        for one in (faulty, cured)
    )
    assert len(wrong) == len(right) == 3
    assert wrong[1] - wrong[0] > 8
    assert wrong[2] - wrong[1] == pytest.approx(wrong[1] - wrong[0], abs=2)
    assert right[2] - right[0] <= 1


def dataparallel_autocast(faulty: Ended, cured: Ended) -> None:
    assert "computed in torch.float16" in faulty.text
    assert "computed in torch.bfloat16" in cured.text


def wrong_backend(faulty: Ended, cured: Ended) -> None:
    assert "over gloo" in faulty.text
    assert "over nccl" in cured.text
    assert faulty.last(r"([\d.]+) ms/step") > 3 * cured.last(r"([\d.]+) ms/step")


def allocator_retries(faulty: Ended, cured: Ended) -> None:
    """Both streams of the faulty one find the card full in each step, the cured one at no time."""
    again = [one.last(r"([\d.]+) retries of cudaMalloc a step") for one in (faulty, cured)]
    assert again[0] >= 1.5
    assert again[1] < 0.1
    shorter_steps(0.8)(faulty, cured)


ON_GPU: dict[str, tuple[Check, str]] = {
    **{
        name: ANYWHERE[name]
        for name in (
            "slow-input",
            "fp16-underflow",
            "wrapped-model-attribute",
            "deprecated-cuda-amp",
            "checkpoint-pause",
            "validation-pause",
        )
    },
    "mixed-devices": (trains, "--steps 3"),
    "model-left-on-cpu": (model_left_on_cpu, "--steps 40"),
    "out-of-memory": (out_of_memory, "--steps 50"),
    "cuda-slower-than-cpu": (faster(r"([\d.]+) steps/s", 1.0), "--steps 4000"),
    "timing-without-synchronize": (timing_without_synchronize, "--steps 40"),
    # what it gains is no law: not slower
    "convolution-speed": (faster(r"(\d+) pictures/s", 0.8), "--steps 100"),
    "not-reproducible": (not_reproducible, "--steps 20"),
    "empty-cache-live-tensors": (empty_cache_live_tensors, "--rounds 3"),
    "fp32-products": (shorter_steps(0.6), "--steps 60"),
    "host-bound": (shorter_steps(0.5), "--steps 100"),
    "synchronising-reads": (shorter_steps(0.7), "--steps 200"),
    "copies-to-host": (shorter_steps(0.7), "--steps 60"),
    "allocator-retries": (allocator_retries, "--steps 60"),
    "small-batch": (faster(r"(\d+) samples/s", 4.0), "--steps 100"),
}
ON_TWO_GPUS: dict[str, tuple[Check, str]] = {
    **{
        name: ANYWHERE[name]
        for name in ("ddp-no-process-group", "ddp-no-environment", "ddp-no-sampler", "ddp-no-sync")
    },
    "straggler": (fewer_milliseconds, "--steps 96"),  # who waits for a GPU uses a core
    "dataparallel-gil": (faster(r"(\d+) samples/s", 1.2), "--steps 60"),
    "wrong-backend": (wrong_backend, "--steps 20"),
    "dataparallel-odd-batch": (trains, "--epochs 2"),
    "dataparallel-autocast": (dataparallel_autocast, "--steps 20"),
}
BY_TORCHRUN = "inputs-on-wrong-gpu"
"""Its first rank waits for the one that failed, and it is torchrun that ends it."""


TIMED_HERE = TIMED | {
    "straggler",
    "model-left-on-cpu",
    "cuda-slower-than-cpu",
    "timing-without-synchronize",
    "convolution-speed",
    "fp32-products",
    "host-bound",
    "synchronising-reads",
    "copies-to-host",
    "allocator-retries",
    "small-batch",
    "dataparallel-gil",
    "wrong-backend",
}
ALONE = TIMED_HERE | {"out-of-memory"}
"""Of the others the faulty one and its cure run at the same time."""


def test_every_pitfall_is_run_somewhere():
    assert {*ANYWHERE, *ON_GPU, *ON_TWO_GPUS, BY_TORCHRUN} == {*PITFALLS}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_it_shows_on_a_gpu_and_the_cure_cures(name: str, on_gpu: Scripts):
    one = PITFALLS[name]
    committed(on_gpu, one, *ON_GPU[name], TIMED_HERE, one.id not in ALONE)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_TWO_GPUS)
def test_it_shows_on_two_gpus_and_the_cure_cures(name: str, on_gpu: Scripts):
    if gpus() < 2:
        pytest.skip("needs two GPUs")
    one = PITFALLS[name]
    committed(on_gpu, one, *ON_TWO_GPUS[name], TIMED_HERE, one.id not in ALONE)


@pytest.mark.gpu
def test_labels_on_the_first_gpu_end_the_run_of_both_ranks():
    if gpus() < 2:
        pytest.skip("needs two GPUs")
    one = PITFALLS[BY_TORCHRUN]
    ended = []
    for cured in (False, True):
        command = one.command(cured, arguments=["--steps", "20"])
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=SECONDS
        )
        ended.append(Ended([done.returncode], done.stdout + done.stderr))
    shown(one, trains, *ended)
