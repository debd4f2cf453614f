"""The doctor judges how GPUs reach each other.

NVML's answers come through the real pynvml.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuscope.agent import environment_paths
from gpuscope.cli.commands.doctor import environment as doctor_environment
from gpuscope.collect.nvml import Nvml
from gpuscope.doctor import environment
from gpuscope.doctor.environment_facts import Path
from tests.doctor.test_environment_rules import DEVICE, HEALTHY, host
from tests.fakes.nvml import FakeNvml, FakeProcess
from tests.fakes.proctree import tree

CAUSES = ("nvlink", "fabric", "p2p", "sockets", "affinity")


def about_paths(report):
    return [one for one in report.findings if one.cause.removeprefix("environment.") in CAUSES]


def look(fake, **environ):
    """The facts and what is said of paths, by a whole look at a driver."""
    with fake.install():
        facts = doctor_environment.gather(environ=environ)
    return facts, about_paths(environment.examine(facts))


def boxes(sockets=(0, 0, 1, 1), links=(1,) * 18):
    """A driver with GPUs on these sockets."""
    fake = FakeNvml(
        gpus=len(sockets), processes=[FakeProcess(77, gpu=index) for index in range(len(sockets))]
    )
    for index, socket in enumerate(sockets):
        fake.set(index, socket=socket, links=links, fabric=3 if links else 0)
    return fake


# ── what the driver tells ─────────────────────────────────────────────────────────────────────────


def test_every_pair_is_asked_once():
    fake = boxes((0,) * 4 + (1,) * 4)
    facts, said = look(fake)
    assert len(facts.paths) == 28
    assert {(path.first, path.second) for path in facts.paths} == {
        (a, b) for a in range(8) for b in range(a + 1, 8)
    }
    assert fake.count("nvmlDeviceGetTopologyCommonAncestor") == 28 + 56, (
        "the picture asks each device besides"
    )
    assert fake.count("nvmlDeviceGetP2PStatus") == 56 + 112
    assert facts.paths[0] == Path(
        first=0, second=1, crosses="one socket", sockets=False, no_peer="", nvlink=True
    )
    assert [(one.links, one.links_active, one.fabric) for one in facts.devices] == [
        (18, 18, "completed")
    ] * 8
    assert said == []


def test_cards_without_nvlink():
    fake = boxes((0, 0), links=())
    facts, said = look(fake)
    assert [(one.links, one.links_active, one.fabric) for one in facts.devices] == [(0, 0, "")] * 2
    assert facts.paths[0].nvlink is False
    assert said == []
    assert fake.count("nvmlDeviceGetNvLinkState") == 2 + 2, (
        "none is asked after the first that is not there"
    )


def test_fewer_links_than_the_most_there_can_be():
    fake = boxes((0, 0), links=(1,) * 12)
    facts, _ = look(fake)
    assert facts.devices[0].links == 12
    assert fake.count("nvmlDeviceGetNvLinkState", 0) == 13 + 13


def test_what_a_driver_does_not_answer_is_unknown_and_said():
    fake = boxes((0, 0))
    fake.missing(
        "nvmlDeviceGetP2PStatus", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"
    )
    with fake.install():
        facts = doctor_environment.gather(environ={})
    assert (facts.paths[0].no_peer, facts.paths[0].nvlink, facts.devices[0].fabric) == (
        None,
        None,
        None,
    )
    (missing,) = [
        one.missing for one in environment.examine(facts).abstained if one.pitfall == "nccl-config"
    ]
    assert "nvmlDeviceGetP2PStatus: this driver's NVML does not have it" in missing
    assert "nvidia-smi topo" in missing


def test_a_lost_gpu_has_no_paths_and_the_others_keep_theirs():
    fake = boxes((0, 0, 1))
    fake.lose(1)
    facts, said = look(fake)
    assert [(path.first, path.second) for path in facts.paths] == [(0, 2)]
    assert said == []


@pytest.mark.slow
def test_a_call_about_pairs_that_hangs_costs_its_limit():
    fake = boxes((0, 0))
    with fake.install(), fake.hang("nvmlDeviceGetP2PStatus", 0):
        facts = doctor_environment.gather(environ={})
    assert facts.paths is None
    assert facts.devices[0].persistence is None or facts.devices[0].links is None
    assert facts.devices[1].links == 18


def test_a_status_that_nobody_knows_is_no_status():
    fake = boxes((0, 0))
    fake.p2p[0, 1, 0] = 77
    with fake.install():
        (pair,) = Nvml.open().device(0).topology([1]).pairs
    assert pair.peer.text == "nvmlDeviceGetP2PStatus: the driver answered 77"
    assert pair.nvlink == 0


# ── what is made of it ────────────────────────────────────────────────────────────────────────────


def test_a_link_that_is_down():
    fake = boxes((0, 0))
    fake.set(1, links=(1,) * 16 + (0, 1))
    _, (one,) = look(fake)
    assert (one.pitfall, one.severity, one.where) == ("gpu-health", "warning", "GPU 1 NVLink")
    assert one.title == "GPU 1 has 17 NVLinks up, GPU 0 has 18"


def test_links_that_no_bridge_joins_are_no_fault():
    """PCIe cards with one bridge of three: all alike."""
    assert look(boxes((0, 0), links=(1, 1, 1, 1) + (0,) * 8))[1] == []
    assert look(boxes((0, 0), links=(0,) * 12))[1] == []


@pytest.mark.parametrize(("state", "status", "severity"), [(2, 0, "warning"), (3, 999, "problem")])
def test_a_fabric_that_does_not_come_up(state, status, severity):
    fake = boxes((0, 0))
    fake.processes.clear()
    for index in (0, 1):
        fake.set(index, fabric=state, fabric_status=status)
    _, (one,) = look(fake)
    assert (one.cause, one.severity) == ("environment.fabric", severity)
    assert "GPU 0 and 1" in one.title
    assert "802" in one.title


def test_a_gpu_that_is_in_use_has_its_fabric_whatever_the_driver_says():
    fake = boxes((0, 0))
    for index in (0, 1):
        fake.set(index, fabric=2)
    assert look(fake)[1] == []


def test_gpus_of_one_job_on_two_sockets():
    fake = boxes((0, 0, 1, 1), links=())
    _, (one,) = look(fake, CUDA_VISIBLE_DEVICES="1,2")
    assert (one.cause, one.severity) == ("environment.sockets", "info")
    assert one.fixes[0].environment == "CUDA_VISIBLE_DEVICES=0,1"
    assert "GPU 1 and 2: the link between sockets" in one.evidence[0].text
    _, (all_of_them,) = look(fake)
    assert not any(fix.environment for fix in all_of_them.fixes), "there are not four on one socket"
    assert look(fake, CUDA_VISIBLE_DEVICES="2,3")[1] == []
    assert look(fake, CUDA_VISIBLE_DEVICES="2")[1] == []
    assert look(boxes((0, 0, 1, 1)), CUDA_VISIBLE_DEVICES="1,2")[1] == [], "NVLink joins them"


def test_gpus_that_cannot_read_each_other():
    fake = boxes((0, 0, 0), links=())
    fake.p2p.update({(0, 1, 0): 3, (0, 2, 0): 3})
    _, (one,) = look(fake)
    assert (one.cause, one.severity) == ("environment.p2p", "info")
    assert "2 pairs of GPU 0-2" in one.title
    assert one.fixes[0].environment == "CUDA_VISIBLE_DEVICES=1,2"
    fake.p2p = dict.fromkeys(((0, 1, 0), (0, 2, 0), (1, 2, 0)), 4)
    _, (off,) = look(fake)
    assert (off.severity, off.title.startswith("GPU 0-2 cannot")) == ("warning", True)
    assert "switched off" in off.evidence[0].text
    assert "NVreg" in off.fixes[0].command


def test_a_job_on_the_wrong_socket():
    away = replace(DEVICE, cpus=frozenset(range(32, 64)))
    (one,) = about_paths(
        environment.examine(
            replace(host(allowed_cpus=frozenset(range(8))), devices=(away,), environment={})
        )
    )
    assert (one.pitfall, one.cause, one.severity) == ("pcie-link", "environment.affinity", "info")
    assert "CPU cores allowed here: 0-7" in one.evidence[0].text
    assert one.fixes[0].command.startswith("taskset -c 32-63 ")
    for fine in (
        replace(host(allowed_cpus=frozenset((7, 40))), devices=(away,)),
        replace(host(allowed_cpus=None), devices=(away,)),
        replace(host(allowed_cpus=frozenset(range(8))), devices=(DEVICE, replace(away, index=1))),
        replace(HEALTHY, devices=(replace(DEVICE, cpus=None),)),
    ):
        assert about_paths(environment.examine(replace(fine, environment={}))) == []


def test_the_processors_beside_a_gpu(tmp_path):
    place = "sys/bus/pci/devices/0000:18:00.0/"
    root = tree(tmp_path, {place + "numa_node": "1\n", place + "local_cpulist": "2-3,6\n"})
    assert environment_paths.cpus_near_device("00000000:18:00.0", root) == {2, 3, 6}
    assert environment_paths.cpus_near_device("00000000:19:00.0", root) is None
    assert environment_paths.cpus_near_device("../../etc", root) is None
    alone = tree(tmp_path / "vm", {place + "numa_node": "-1\n", place + "local_cpulist": "0-3\n"})
    assert environment_paths.cpus_near_device("00000000:18:00.0", alone) is None
    with pytest.raises(ValueError, match="5-2"):
        environment_paths.numbers("5-2")
