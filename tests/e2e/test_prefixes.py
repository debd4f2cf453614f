"""A real agent runs through stand-ins of srun, kubectl, docker and sudo.

They have the real ones' stdio behaviour.
"""

from __future__ import annotations

import json
import os

import pytest

from tests.fakes import stand_ins
from tests.fakes.program import program


def gpuscope(env, *words):
    return program(*words, env=env)


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (["k8s:team/a-0/main"], "kubectl exec -i -n team a-0 -c main -- sh -c"),
        pytest.param(
            ["--via", "docker exec -i trainer"],
            "docker exec -i trainer sh -c",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--via", "ssh login sudo -n -u ada srun --overlap --jobid 7"],
            "sudo -n -u ada srun --overlap --jobid 7 sh -c",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_devices_through_a_prefix(words, noted, tmp_path):
    env = stand_ins.install(tmp_path / "bin")
    done = gpuscope(env, "devices", *words, "--json")
    assert json.loads(done.stdout)["host"] == os.uname().nodename, done.stderr
    assert noted in (tmp_path / "bin" / "log").read_text()


def test_a_job_of_two_nodes_is_too_much_for_one_look_and_says_how_to_choose(tmp_path):
    env = stand_ins.install(tmp_path / "bin")
    done = gpuscope(env, "devices", "slurm:77")
    assert done.returncode == 64
    assert "2 hosts" in done.stderr
    assert "-w gpu1" in done.stderr


@pytest.mark.slow
def test_every_node_of_a_job_is_examined(tmp_path):
    env = stand_ins.install(tmp_path / "bin")
    done = gpuscope(env, "doctor", "slurm:77@login", "--json")
    assert len(json.loads(done.stdout)["examined"]) >= 1, done.stderr
    log = (tmp_path / "bin" / "log").read_text()
    assert all(
        f"srun --overlap --quiet --jobid 77 -w gpu{n} --nodes=1 --ntasks=1 sh -c" in log
        for n in (1, 2)
    )
