"""Law 6 in the agent: a device that hangs, is lost or comes back stops only itself.

Real pynvml on a fake driver.
"""

from __future__ import annotations

import os
import time

import pytest

from gpuscope.agent import device_workers, nvml_workers
from gpuscope.agent.nvml_workers import NvmlWorker
from gpuscope.collect.nvml import Nvml
from gpuscope.wire import frames
from tests.fakes import agents, probe_process
from tests.fakes.nvml import FakeNvml, FakeProcess
from tests.fakes.waiting import until


@pytest.fixture
def fake():
    fake = FakeNvml(
        gpus=2,
        processes=[FakeProcess(os.getpid(), used=7 << 20), FakeProcess(1, used=3 << 20, gpu=1)],
    )
    with fake.install():
        yield fake


def device(viewer, index):
    return viewer.definition("gpu", lambda gpu: gpu.index == index and gpu.name)[0]


def watts(viewer, number):
    rows = viewer.rows("g", number)
    return rows[-1]["power_watts"] if rows else None


def test_two_devices_their_processes_and_their_trainer(fake, tmp_path):
    sockets = probe_process.make_directory(tmp_path / "sockets")
    with (
        probe_process.start(sockets),
        agents.inside("--hz", "5", directories=[str(sockets)]) as viewer,
    ):
        first, second = device(viewer, 0), device(viewer, 1)
        viewer.wait(lambda: watts(viewer, first) and watts(viewer, second), "power")
        process, _ = viewer.definition("proc", lambda p: p.pid == os.getpid())
        use, definition = viewer.definition("use", lambda u: u.proc == process)
        assert definition.gpu == first
        viewer.wait(lambda: viewer.rows("u", use), "use")
        assert viewer.rows("u", use)[-1]["used_bytes"] == 7 << 20
        # torch writes the UUID without "GPU-"
        assert viewer.definition("alloc", lambda a: a.gpu is not None)[1].gpu == first


@pytest.mark.parametrize("call", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTotalEccErrors"])
def test_a_hung_call_stops_only_its_device(fake, call):
    with agents.inside("--hz", "5") as viewer:
        first, second = device(viewer, 0), device(viewer, 1)
        viewer.wait(lambda: watts(viewer, first) and watts(viewer, second), "power")
        with fake.hang(call, 1) as hang:
            assert hang.entered.wait(10)
            two_intervals_later = time.monotonic_ns() + int(2 * 0.2 * 1e9)
            viewer.wait(lambda: "power_watts" in viewer.reasons(second), "reason")
            silent = 0
            for sample in viewer.all(frames.Sample):
                if any(row[:2] == [second, "power_watts"] and row[2] for row in sample.why):
                    break
                silent += sample.m > two_intervals_later
            # However late a busy machine takes the samples; one may have been put together right
            # before.
            assert silent <= 1
            assert viewer.reasons(second)["used_bytes"][0] == "timeout"
            assert call in viewer.reasons(second)["used_bytes"][1]
            assert "has not returned for" in viewer.reasons(second)["used_bytes"][1]
            assert viewer.rows("g", second)[-1]["power_watts"] is None
            before = len(viewer.rows("g", first))
            fake.set(0, power=123_000)
            viewer.wait(lambda: watts(viewer, first) == 123.0, "new readings of the other device")
            viewer.wait(lambda: len(viewer.rows("g", first)) > before + 5, "more of them")
            assert "power_watts" not in viewer.reasons(first)
            # who was on the hung device is not said to have left
            assert not viewer.all(frames.Event, e="gone")
        fake.heal()
        viewer.wait(lambda: watts(viewer, second) is not None, "readings after the call returned")
        viewer.wait(lambda: "power_watts" not in viewer.reasons(second), "reason lifted")


@pytest.mark.slow
def test_a_slow_driver_is_not_a_hung_one(fake):
    fake.delay = 0.03  # a round of calls takes far longer than two intervals
    with agents.inside("--hz", "10") as viewer:
        first, second = device(viewer, 0), device(viewer, 1)
        viewer.wait(lambda: watts(viewer, first) and watts(viewer, second), "power")
        viewer.wait(lambda: len(viewer.rows("g", first)) > 8, "rows")
        told = [
            row for sample in viewer.all(frames.Sample) for row in sample.why if row[2] == "timeout"
        ]
        assert told == []


def test_a_lost_device_keeps_its_identity_and_says_why(fake):
    with agents.inside("--hz", "5") as viewer:
        second = device(viewer, 1)
        viewer.wait(lambda: watts(viewer, second), "power")
        fake.lose(1)
        viewer.wait(lambda: viewer.reasons(second).get("power_watts", ("",))[0] == "lost", "reason")
        first = device(viewer, 0)
        viewer.wait(lambda: watts(viewer, first), "power of the other")
        assert not [e for e in viewer.all(frames.Event, e="gone") if e.id == second]
        assert len({d.id for d in viewer.all(frames.Def) if d.gpu}) == 2


def test_opening_that_hangs_leaves_the_host(fake):
    with fake.hang("nvmlInitWithFlags", None), agents.inside("--hz", "5") as viewer:
        viewer.wait(
            lambda: "has not returned" in viewer.reasons(0).get("nvml", ("", ""))[1], "reason"
        )
        assert "nvmlInit" in viewer.reasons(0)["nvml"][1]
        viewer.wait(lambda: len(viewer.rows("h", 0)) > 3, "host rows")
        fake.heal()
        assert device(viewer, 1)
        viewer.wait(lambda: "nvml" not in viewer.reasons(0), "reason lifted")


def test_a_driver_that_comes_later_is_found(fake, monkeypatch):
    monkeypatch.setattr(nvml_workers.Backoff, "FIRST", 0.2)
    fake.fail("nvmlInitWithFlags", None, "DriverNotLoaded")
    with agents.inside("--hz", "5") as viewer:
        viewer.wait(lambda: "modprobe" in viewer.reasons(0).get("nvml", ("", ""))[1], "reason")
        fake.heal()
        number = device(viewer, 0)
        viewer.wait(lambda: watts(viewer, number), "power")
        assert "nvml" not in viewer.reasons(0)


def test_a_reloaded_driver_is_opened_again_and_the_devices_are_the_same(fake, monkeypatch):
    monkeypatch.setattr(nvml_workers.Backoff, "FIRST", 0.2)
    with agents.inside("--hz", "5") as viewer:
        first, second = device(viewer, 0), device(viewer, 1)
        viewer.wait(lambda: watts(viewer, first), "power")
        opened = fake.count("nvmlInitWithFlags")
        fake.lose(0)
        fake.lose(1)
        viewer.wait(lambda: fake.count("nvmlInitWithFlags") > opened, "opened again")
        viewer.wait(lambda: "power_watts" in viewer.reasons(first), "reason")
        fake.heal()
        rows = len(viewer.rows("g", second))
        viewer.wait(
            lambda: len(viewer.rows("g", second)) > rows and watts(viewer, second) is not None,
            "power again",
        )
        assert {d.id for d in viewer.all(frames.Def) if d.gpu} == {first, second}
        assert not viewer.all(frames.Event, e="gone")


def test_agent_leaves_at_once_while_a_call_hangs(fake):
    with fake.hang("nvmlDeviceGetPowerUsage", 0) as hang:
        with agents.inside("--hz", "5") as viewer:
            assert hang.entered.wait(10)
            viewer.wait_for(frames.Sample)
        assert not hang.released  # the agent has ended, and the call has not returned


def test_process_lists_that_cost_much_are_asked_less_often():
    assert [device_workers.lists_seconds(ms / 1e3) for ms in (0.0, 0.5, 2.0, 2.3, 6.5, 40.0)] == [
        1,
        1,
        1,
        2,
        4,
        5,
    ]


def test_devices_that_are_found_while_it_ends_are_left_too(fake):
    """To open a driver may take seconds, and meanwhile the agent may be told to stop."""
    nvml = Nvml()
    usual = nvml.start

    def start():
        worker.stop()
        usual()

    nvml.start = start
    worker = NvmlWorker(2.0, lambda: None, lambda: nvml)
    worker.start()
    until(lambda: not worker.alive, 20)
    asking = [*worker.devices, worker.paths, worker.xids]
    assert len(asking) == 4
    until(lambda: not any(one.alive for one in asking), 20)


def test_the_agent_tells_what_the_driver_sampled_before_but_not_of_a_device_that_hangs(fake):
    for index in (0, 1):
        fake.set(index, samples=((9.0, 40), (8.0, 60)))
    with agents.inside("--hz", "5") as viewer:
        second = device(viewer, 1)
        viewer.wait(lambda: watts(viewer, second), "power")
        viewer.send(frames.Request("recent", 1))
        told = viewer.wait_for(frames.Result, lambda r: r.id == 1).value["devices"]
        assert sorted(uuid for uuid, _ in told) == sorted(
            d.gpu.uuid for d in {d.id: d for d in viewer.all(frames.Def) if d.gpu}.values()
        )
        assert [one["utilization_percent"] for _, one in told] == [[40, 60]] * 2
        with fake.hang("nvmlDeviceGetUtilizationRates", 1) as hang:
            assert hang.entered.wait(10)
            viewer.wait(lambda: "power_watts" in viewer.reasons(second), "reason")
            viewer.send(frames.Request("recent", 2))
            told = viewer.wait_for(frames.Result, lambda r: r.id == 2).value["devices"]
            assert len(told) == 1
