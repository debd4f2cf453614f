"""Rank, job and environment: from whom, in which order, and what never leaves the process."""

from __future__ import annotations

import os

import pytest

from gpuscope.probe import identity

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
}


@pytest.mark.parametrize(
    ("env", "distributed", "expected"),
    [
        ({}, None, (None, None, None)),
        (TORCHRUN, None, (3, 1, 4)),
        (TORCHRUN, (2, 4), (2, 1, 4)),
        (SLURM, None, (5, 1, 8)),
        ({**SLURM, **TORCHRUN}, None, (3, 1, 4)),
        ({**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, None, (None, None, None)),
        ({"RANK": "x", "WORLD_SIZE": "-1"}, None, (None, None, None)),
        ({}, (1, 2), (1, None, 2)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, None, (1, None, 2)),
    ],
)
def test_place(env, distributed, expected):
    assert identity.place(env, distributed) == expected


@pytest.mark.parametrize(
    ("env", "world", "key"),
    [
        ({}, None, None),
        (TORCHRUN, 4, "node7:29500"),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "exp1"}, 4, "exp1@node7:29500"),
        ({**TORCHRUN, **SLURM}, 4, "slurm:77.0"),
        ({**TORCHRUN}, 1, None),
        (SLURM, 1, None),
        ({"MASTER_ADDR": "a"}, 2, None),
    ],
)
def test_job_key(env, world, key):
    assert identity.job_key(env, world) == key


def test_only_the_allow_list_leaves_the_process(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "SECRET")
    monkeypatch.setenv("HF_TOKEN", "SECRET")
    monkeypatch.setenv("OMP_NUM_THREADS", "3" * 5000)
    found = identity.environment()
    assert "SECRET" not in str(found)
    assert found["OMP_NUM_THREADS"] == "3" * 1024


def test_the_cores_that_a_trainer_may_use(tmp_path):
    assert identity.describe(123, "watch").cores == identity.cores()
    assert 0 < identity.cores() <= len(os.sched_getaffinity(0))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/box\n")
    box = tmp_path / "sys/fs/cgroup/pod/box"
    box.mkdir(parents=True)
    (box / "cpu.max").write_text("max 100000\n")
    assert identity._quota(str(tmp_path)) == float("inf")
    (box.parent / "cpu.max").write_text("250000 100000\n")
    identity._quota.cache_clear()
    assert identity._quota(str(tmp_path)) == 2.5
    identity._quota.cache_clear()


def test_describe_outside_of_anything():
    found = identity.describe(123, "watch")
    assert (found.start, found.origin) == (123, "watch")
    assert found.pid > 0
    assert found.python_version


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, ""),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "a:1", "PYTORCH_ALLOC_CONF": "b:2"}, "b:2"),
        ({"PYTORCH_ALLOC_CONF": "", "PYTORCH_HIP_ALLOC_CONF": "c:" + "9" * 400}, "c:" + "9" * 254),
    ],
)
def test_what_the_allocator_was_told(monkeypatch, env, said):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert identity.describe(1, "watch").allocator_settings == said
