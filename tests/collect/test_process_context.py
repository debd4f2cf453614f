"""Recorded control groups tell to what a process belongs.

Only some of an environment may be seen.
"""

from __future__ import annotations

import os

import pytest

from gpuscope.collect.process_context import Belonging, environment_of, may_be_shown, owners_of
from gpuscope.collect.processes import describe
from gpuscope.wire.frames import NO_PERMISSION, Unknown
from tests.fakes.proctree import stat_line, tree

LONG = "3f2a91c07d1e" + "0" * 52
POD = "1c2d3e4f-0000-4111-8222-333344445555"


@pytest.mark.parametrize(
    ("cgroup", "wanted"),
    [
        (f"0::/system.slice/docker-{LONG}.scope", Belonging("docker 3f2a91c07d1e")),
        (f"12:memory:/docker/{LONG}\n0::/\n", Belonging("docker 3f2a91c07d1e")),
        (f"0::/user.slice/libpod-{LONG}.scope/container", Belonging("podman 3f2a91c07d1e")),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/"  # noqa: E501
            f"cri-containerd-{LONG}.scope",
            Belonging("containerd 3f2a91c07d1e", POD),
        ),
        (f"3:cpu:/kubepods/burstable/pod{POD}/{LONG}", Belonging("container 3f2a91c07d1e", POD)),
        (
            "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0",
            Belonging(None, None, "4711"),
        ),
        ("9:memory:/slurm/uid_1000/job_99/step_batch", Belonging(None, None, "99")),
        ("0::/lxc.payload.box/init.scope", Belonging("lxc box")),
        ("0::/user.slice/user-1000.slice/session-3.scope", Belonging()),
        ("0::/system.slice/docker.service", Belonging()),
        ("0::/system.slice/containerd.service", Belonging()),
        ("0::/job_5/nothing", Belonging()),
        ("\x1b[2J garbage \n::::\n", Belonging()),
    ],
)
def test_control_groups(tmp_path, cgroup: str, wanted: Belonging) -> None:
    root = tree(
        tmp_path,
        {"proc/123/cgroup": cgroup, "proc/123/stat": stat_line(b"python"), "proc/123/status": ""},
    )
    assert owners_of(123, root) == wanted
    found = describe(123, root=root, boot_time=0.0)
    assert found is not None
    assert (found[0].container, found[0].pod, found[0].slurm_job) == wanted


def test_a_hostile_name_of_a_container_stays_one_short_word(tmp_path) -> None:
    root = tree(tmp_path, {"proc/5/cgroup": "0::/machine-\x1b]52;c;AA\x07" + "x" * 5000 + ".scope"})
    found = owners_of(5, root).container
    assert found is None or (found.isprintable() and len(found) < 40)


def test_what_may_be_shown() -> None:
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "RANK",
        "NCCL_DEBUG",
        "PYTORCH_ALLOC_CONF",
        "SLURM_JOB_ID",
    ):
        assert may_be_shown(name)
    for name in (
        "AWS_SECRET_ACCESS_KEY",
        "WANDB_API_KEY",
        "PATH",
        "NCCL_AUTH_TOKEN",
        "PYTORCH_PASSWORD",
        "HOME",
    ):
        assert not may_be_shown(name)


def test_an_environment_that_may_not_be_read_says_why(tmp_path) -> None:
    if os.geteuid() == 0:
        root = tree(
            tmp_path, {"proc/9/environ": "RANK=1\0A=2\0broken\0" + "NCCL_X=" + "y" * 9000 + "\0"}
        )
        told = environment_of(9, root)
        assert not isinstance(told, Unknown)
        assert told[1] == 1
        assert told[0]["RANK"] == "1"
        assert len(told[0]["NCCL_X"]) == 512
        return
    told = environment_of(1)
    assert isinstance(told, Unknown)
    assert told.code == NO_PERMISSION


def test_hidden_processes_are_unknown_with_their_reason() -> None:
    assert isinstance(environment_of(4194300), Unknown)
