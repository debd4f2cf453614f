"""Combinations that cannot run or do nothing: said beforehand, with the nearest one that works."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.lab.config import LabConfig
from gpuscope.lab.rules import PARAMETERS, RuleVerdict, RunFacts, check, least_bytes
from gpuscope.lab.toggles import TOGGLES
from tests.fakes.cases import each

GIB = 2**30
CPU = RunFacts(device_type="cpu", gpus=0, torch_version="2.13.0+cpu", cores=4, has_compiler=True)
GPUS = RunFacts(
    device_type="cuda",
    gpus=2,
    gpu_name="NVIDIA H200",
    capability=(9, 0),
    torch_version="2.11.0+cu130",
    cores=16,
    has_compiler=True,
    free_bytes=[140 * GIB] * 2,
)
ONE = replace(GPUS, gpus=1, free_bytes=[140 * GIB])
OLD_GPU = replace(ONE, gpu_name="Tesla T4", capability=(7, 5), free_bytes=[15 * GIB])


def one(config: LabConfig, facts: RunFacts, level: str) -> RuleVerdict:
    """The only verdict."""
    found = check(config, facts)
    assert [verdict.level for verdict in found] == [level], found
    return found[0]


REFUSED: list[tuple[dict[str, Any], RunFacts, str, dict[str, Any]]] = [
    ({"device": "cuda"}, CPU, "cannot train on cuda", {"device": "cpu"}),
    ({"parallel": "ddp", "nproc": 3}, GPUS, "3 processes on 2 GPUs", {"nproc": 2}),
    ({"parallel": "fsdp", "nproc": 9}, GPUS, "9 processes on 2 GPUs", {"nproc": 2}),
    ({"parallel": "dp", "nproc": 3}, GPUS, "3 GPUs on 2 GPUs", {"nproc": 2}),
    ({"parallel": "ddp"}, replace(GPUS, processes=4), "4 processes on 2 GPUs", {}),
    ({"parallel": "ddp", "nproc": 500}, CPU, "500 processes on 4 cores", {"nproc": 4}),
    ({"parallel": "fsdp"}, replace(GPUS, torch_version="2.3.1"), "no FSDP2", {"parallel": "ddp"}),
    (
        {"amp": "fp16"},
        replace(CPU, torch_version="2.2.0"),
        "fp16 autocast does not work on a CPU",
        {"amp": "bf16"},
    ),
    ({"foreach": True, "fused": True}, GPUS, "--foreach and --fused exclude", {"foreach": None}),
    ({"fused": True}, replace(CPU, torch_version="2.3.0"), "no fused adamw", {"fused": None}),
    (
        {"fused": True, "optimizer": "sgd"},
        replace(ONE, torch_version="2.1.2"),
        "no fused sgd",
        {"fused": None},
    ),
    (
        {"compile": "default", "fullgraph": True},
        replace(CPU, has_compiler=False),
        "torch.compile cannot build",
        {"compile": "off", "fullgraph": False},
    ),
    (
        {"compile": "default"},
        replace(CPU, torch_folder="/home/my own/torch"),
        "torch.compile cannot build",
        {"compile": "off"},
    ),
    (
        {"compile": "default", "parallel": "dp"},
        GPUS,
        "torch.compile and DataParallel",
        {"parallel": "ddp"},
    ),
    (
        {"compile": "default", "fullgraph": True, "parallel": "ddp"},
        CPU,
        "--fullgraph",
        {"fullgraph": False},
    ),
    (
        {"compile": "default", "fullgraph": True, "parallel": "dp"},
        GPUS,
        "torch.compile and",
        {"fullgraph": False},
    ),
    (
        {"loader": "workers", "workers": 0, "prefetch": 4},
        ONE,
        "--prefetch needs workers",
        {"prefetch": None},
    ),
    ({"model": "a.b:make", "parallel": "ddp"}, GPUS, "Your own model", {"parallel": "none"}),
    (
        {"model": "a:make", "checkpoint": True},
        replace(ONE, factory_takes_checkpoint=False),
        "a:make cannot be",
        {"checkpoint": False},
    ),
    ({"model": "gpt-1.3b"}, OLD_GPU, "does not fit", {"optimizer": "sgd"}),
    (
        {"model": "gpt-1.3b"},
        replace(OLD_GPU, gpus=4, free_bytes=[12 * GIB] * 4),
        "does not fit",
        {"parallel": "fsdp", "optimizer": "adamw"},
    ),
    (
        {"model": "gpt-1.3b"},
        replace(OLD_GPU, free_bytes=[6 * GIB]),
        "does not fit",
        {"model": "gpt-medium"},
    ),
    (
        {"model": "gpt-large", "parallel": "ddp"},
        replace(CPU, free_bytes=[20 * GIB]),
        "does not fit",
        {"model": "gpt-medium"},
    ),
    (
        {"model": "gpt-1.3b", "parallel": "ddp"},
        replace(GPUS, free_bytes=[140 * GIB, 24 * GIB]),
        "does not fit",
        {"parallel": "ddp", "optimizer": "sgd"},
    ),
]


@each(("toggles", "facts", "words", "changes"), REFUSED)
def test_what_cannot_run_is_refused(
    toggles: dict[str, Any], facts: RunFacts, words: str, changes: dict[str, Any]
) -> None:
    config = LabConfig(**toggles)
    verdict = next(verdict for verdict in check(config, facts) if verdict.level == "refuse")
    assert words in verdict.what
    assert verdict.why
    if not changes:  # the ranks are already there: nothing the toggles could change
        return
    assert verdict.nearest is not None
    assert {name: getattr(verdict.nearest, name) for name in changes} == changes
    assert not [other for other in check(verdict.nearest, facts) if other.level == "refuse"]
    assert verdict.failure().next == verdict.nearest.command()


WARNED: list[tuple[dict[str, Any], RunFacts, str, dict[str, Any]]] = [
    ({"amp": "fp16"}, CPU, "10 to 30 times", {"amp": "bf16"}),
    ({"amp": "bf16"}, OLD_GPU, "emulated", {"amp": "fp16"}),
    ({"amp": "fp16"}, replace(OLD_GPU, capability=(6, 1)), "no tensor cores", {"amp": "off"}),
    ({"tf32": True}, OLD_GPU, "has no TF32", {"tf32": False}),
    ({"tf32": True}, CPU, "--tf32 does nothing on a CPU", {"tf32": False}),
    ({"empty_cache": True}, CPU, "--empty-cache does nothing", {"empty_cache": False}),
    (
        {"expandable_segments": True},
        CPU,
        "--expandable-segments does nothing",
        {"expandable_segments": False},
    ),
    (
        {"cudnn_benchmark": True, "model": "conv"},
        CPU,
        "--cudnn-benchmark does nothing on",
        {"cudnn_benchmark": False},
    ),
    (
        {"loader": "workers", "pin_memory": True},
        CPU,
        "--pin-memory does nothing",
        {"pin_memory": False},
    ),
    ({"compile": "reduce-overhead"}, CPU, "same as default", {"compile": "default"}),
    ({"fullgraph": True}, ONE, "--fullgraph does nothing", {"fullgraph": False}),
    (
        {"workers": 2, "prefetch": 3},
        ONE,
        "--workers, --prefetch does nothing",
        {"loader": "workers"},
    ),
    ({"loader": "slow", "non_blocking": True}, ONE, "pageable memory", {"pin_memory": True}),
    ({"loader": "workers", "workers": 9}, CPU, "more workers than cores", {"workers": 4}),
    ({"nproc": 2}, GPUS, "--nproc does nothing", {"nproc": None}),
    ({"parallel": "dp"}, CPU, "DataParallel does nothing on a CPU", {"parallel": "none"}),
    ({"parallel": "fsdp"}, ONE, "shards nothing", {"parallel": "none"}),
    ({"parallel": "fsdp", "nproc": 1}, CPU, "shards nothing", {"parallel": "none"}),
    ({"parallel": "ddp", "nproc": 6}, CPU, "6 processes share 4 cores", {"nproc": 4}),
    ({"parallel": "dp", "batch": 1}, GPUS, "1 GPU will have nothing to do", {"batch": 2}),
    ({"model": "a:make", "fused": True}, ONE, "--fused does nothing", {"fused": None}),
    ({"model": "a:make", "loader": "slow"}, ONE, "--loader does nothing", {"loader": "synthetic"}),
    (
        {"cudnn_benchmark": True, "deterministic": True, "model": "conv"},
        ONE,
        "contradicts",
        {"deterministic": True},
    ),
    ({"cudnn_benchmark": True}, ONE, "no convolution", {"cudnn_benchmark": False}),
    ({"channels_last": True}, CPU, "no convolution", {"channels_last": False}),
]


@each(("toggles", "facts", "words", "changes"), WARNED)
def test_what_does_nothing_is_warned_about(
    toggles: dict[str, Any], facts: RunFacts, words: str, changes: dict[str, Any]
) -> None:
    verdict = one(LabConfig(**toggles), facts, "warn")
    assert words in str(verdict)
    assert verdict.nearest is not None
    assert {name: getattr(verdict.nearest, name) for name in changes} == changes
    assert check(verdict.nearest, facts) == []


@pytest.mark.parametrize("facts", [CPU, GPUS, ONE, RunFacts("cpu"), RunFacts("cuda")])
@pytest.mark.parametrize(
    "toggles",
    [
        {},
        {"amp": "bf16", "compile": "max-autotune", "fullgraph": True, "checkpoint": True},
        {"parallel": "none", "loader": "workers", "workers": 2, "prefetch": 4},
        {
            "model": "conv",
            "optimizer": "sgd",
            "foreach": False,
            "set_to_none": False,
            "deterministic": True,
        },
        {"model": "train:make", "accumulate": 4, "batch": 2, "validate": "no-grad"},
    ],
)
def test_what_works_is_left_alone(toggles: dict[str, Any], facts: RunFacts) -> None:
    assert check(LabConfig(**toggles), facts) == []


@pytest.mark.parametrize("parallel", ["dp", "ddp", "fsdp"])
def test_two_gpus_are_enough_for_two(parallel: str) -> None:
    assert check(LabConfig(parallel=parallel), GPUS) == []
    assert check(LabConfig(parallel=parallel, nproc=2), GPUS) == []


def test_two_processes_on_a_cpu_are_never_complained_about() -> None:
    assert check(LabConfig(parallel="ddp"), replace(CPU, cores=1)) == []
    assert check(LabConfig(parallel="fsdp"), CPU) == []


@given(
    st.fixed_dictionaries(
        {},
        optional={
            toggle.name: st.booleans()
            if toggle.yes_no
            else st.sampled_from([*toggle.choices, *(["m:f"] if toggle.factory else [])])
            if toggle.choices
            else st.integers(toggle.minimum, min(toggle.maximum, 40))
            for toggle in TOGGLES
        },
    ),
    st.sampled_from(
        [
            CPU,
            GPUS,
            ONE,
            OLD_GPU,
            RunFacts("cpu"),
            RunFacts("cuda"),
            replace(CPU, torch_version="2.1.0"),
        ]
    ),
    st.sampled_from([None, 1 * GIB, 10 * GIB]),
)
def test_the_nearest_combination_is_never_refused(
    toggles: dict[str, Any], facts: RunFacts, free: int | None
) -> None:
    if free is not None:
        facts = replace(facts, free_bytes=[free] * (facts.gpus or 1))
    for verdict in check(LabConfig(**toggles), facts):
        assert verdict.nearest is not None, verdict
        again = check(verdict.nearest, facts)
        assert not [
            other for other in again if other.level == "refuse" or other.what == verdict.what
        ], again


def test_a_model_of_ones_own_that_does_not_fit_has_no_nearest() -> None:
    verdict = one(LabConfig(model="a:make"), replace(OLD_GPU, parameters=4 * 10**9), "refuse")
    assert verdict.nearest is None
    assert verdict.failure().next == "gpuscope lab --help"


def test_the_least_memory_is_that_of_weights_gradients_and_state() -> None:
    config = LabConfig(model="gpt-small")
    count = PARAMETERS["gpt-small"]
    assert least_bytes(config, GPUS) == 16 * count
    assert least_bytes(config.changed("optimizer", "sgd"), GPUS) == 12 * count
    assert least_bytes(config.changed("parallel", "ddp"), GPUS) == 20 * count
    assert least_bytes(config.changed("parallel", "fsdp"), GPUS) == 8 * count
    assert least_bytes(config.changed("parallel", "ddp"), CPU) == 40 * count
    assert least_bytes(LabConfig(model="x:y"), GPUS) is None


@pytest.mark.slow
def test_the_number_of_parameters_is_that_of_the_models() -> None:
    torch = pytest.importorskip("torch")
    from gpuscope.lab import models

    assert set(PARAMETERS) == set(models.MODELS)
    meta = torch.device("meta")
    for name, preset in models.MODELS.items():
        with meta:
            task = preset.make(meta, None)
        assert sum(parameter.numel() for parameter in task.model.parameters()) == PARAMETERS[name]
