"""The Lab sees GPUs that another job uses, and the tensor share of a run's own.

That is on a fake driver, with real processes on it.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuscope.cli.commands.lab import verb as lab_verb
from gpuscope.cli.commands.lab.devices import (
    TensorShare,
    facts,
    occupants_of_run,
    power_unknown,
    refusal,
    with_tensor_share,
)
from gpuscope.cli.local_look import look
from gpuscope.collect import processes
from gpuscope.lab import metrics
from gpuscope.lab.config import LabConfig
from gpuscope.model.cuda_devices import visible_in_order
from gpuscope.store.store import Store
from gpuscope.store.view import HostView
from gpuscope.wire.frames import ProcDef
from tests.fakes.nvml import GIB, FakeNvml, FakeProcess
from tests.fakes.program import python
from tests.fakes.waiting import until


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeNvml]:
    """Three GPUs with nobody on them."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "ledger.sqlite"))
    monkeypatch.setattr(processes, "pid_namespace_note", lambda root="/": None)
    fake = FakeNvml(gpus=3)
    for gpu in range(3):
        fake.set(gpu, used=10 << 20)
    with fake.install():
        yield fake


def occupy(fake: FakeNvml, gpu: int, used: int = 7 * GIB, pid: int | None = None) -> int:
    pid = pid or os.getpid()
    fake.processes.append(FakeProcess(pid, used=used, gpu=gpu))
    fake.set(gpu, used=used)
    return pid


def here() -> HostView:
    return look(5.0, want_trainers=False).host


AUTO = LabConfig(steps=5)
ALL = LabConfig(parallel="ddp", steps=5)


def test_free_gpus_are_taken_without_a_word(fake: FakeNvml) -> None:
    occupy(fake, 1)
    assert refusal(AUTO, here(), {}) is None
    assert refusal(LabConfig(device="cpu"), here(), {}) is None


def test_a_busy_gpu_is_refused_with_its_owner_and_the_command_for_a_free_one(
    fake: FakeNvml,
) -> None:
    pid = occupy(fake, 0)
    found = refusal(AUTO, here(), {}, options=" --headless")
    assert found is not None
    assert found.what == "GPU 0 is in use by another job."
    command = Path("/proc/self/cmdline").read_text().partition("\0")[0]
    assert f"pid {pid} ({getpass.getuser()}: {shlex.quote(command)[:20]}" in found.why
    assert "holds 7.00 GiB of GPU 0" in found.why
    assert found.next == "CUDA_VISIBLE_DEVICES=1 gpuscope lab --steps 5 --headless"


def test_a_run_on_all_gpus_minds_each_of_them(fake: FakeNvml) -> None:
    occupy(fake, 0)
    occupy(fake, 2)
    found = refusal(ALL, here(), {})
    assert found is not None
    assert found.what == "GPUs 0, 2 are in use by another job."
    assert found.next == "CUDA_VISIBLE_DEVICES=1 gpuscope lab --parallel ddp --steps 5"
    two = refusal(ALL.changed("nproc", 2), here(), {})
    assert two is not None
    assert two.next == "CUDA_VISIBLE_DEVICES=1 gpuscope lab --parallel ddp --nproc 1 --steps 5"


def test_without_a_free_gpu_the_way_around_is_named(fake: FakeNvml) -> None:
    for gpu in range(3):
        occupy(fake, gpu)
    found = refusal(AUTO, here(), {})
    assert found is not None
    assert "gpuscope lab --steps 5 --share-gpus" in found.next


def test_visible_devices_are_those_of_cuda_by_index_and_by_uuid(fake: FakeNvml) -> None:
    devices = here().devices
    uuids = [device.definition.uuid for device in devices]

    def seen(chosen: str | None, **more: str) -> list[int] | None:
        environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
        found = visible_in_order(devices, {**environ, **more})
        return None if found is None else [device.definition.index for device in found]

    assert seen(None) == [0, 1, 2]
    assert seen("2,0") == [2, 0]
    assert seen(f"{uuids[1]},{uuids[0][:12]}") == [1, 0]
    assert seen("1,7,0") == [1]  # CUDA stops at what is none
    assert seen("1,1") == []
    assert seen("") == []
    assert seen("GPU-,0") == []
    assert seen("MIG-1234") == []


def test_the_order_of_unlike_gpus_is_not_guessed(fake: FakeNvml) -> None:
    fake.set(0, name="NVIDIA T4")
    occupy(fake, 0)
    now = here()
    assert visible_in_order(now.devices, {}) is None
    assert refusal(AUTO, now, {}) is None
    by_bus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    found = refusal(AUTO, now, by_bus)
    assert found is not None
    uuid = now.devices[1].definition.uuid
    # an index would be another GPU's
    assert found.next.startswith(f"CUDA_VISIBLE_DEVICES={uuid} gpuscope lab")
    assert refusal(AUTO, now, {"CUDA_VISIBLE_DEVICES": uuid}) is None


def test_a_busy_gpu_that_this_run_does_not_see_is_no_concern(fake: FakeNvml) -> None:
    occupy(fake, 0)
    assert refusal(ALL, here(), {"CUDA_VISIBLE_DEVICES": "1,2"}) is None
    assert refusal(AUTO, here(), {"CUDA_VISIBLE_DEVICES": "2,0"}) is None


def test_a_screen_and_a_monitor_are_no_jobs(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    occupy(fake, 0, used=30 << 20)
    assert occupants_of_run(AUTO, here(), {}) == []
    desk = ProcDef(os.getpid(), 1, user="root", name="Xorg", command="/usr/lib/xorg/Xorg :0")
    monkeypatch.setattr(processes, "describe", lambda pid, redact=True: (desk, {}))
    occupy(fake, 0, used=2 * GIB)
    assert occupants_of_run(AUTO, here(), {}) == []


def test_what_a_container_hides_is_still_somebody(fake: FakeNvml) -> None:
    fake.set(0, used=30 * GIB)
    found = refusal(AUTO, here(), {})
    assert found is not None
    assert "a process that is not visible here holds" in found.why
    fake.set(0, used=600 << 20)  # the driver's own
    assert refusal(AUTO, here(), {}) is None


def test_without_a_driver_nothing_is_asked_and_nothing_refused() -> None:
    store = Store()
    store.add_source("here", "")
    nothing = store.host("here")
    assert nothing is not None
    assert refusal(AUTO, nothing, {}) is None
    assert facts(AUTO, nothing, {}) is None


def test_the_facts_of_the_driver_are_those_of_the_visible_gpus(fake: FakeNvml) -> None:
    found = facts(AUTO, here(), {"CUDA_VISIBLE_DEVICES": "2,1"})
    assert found is not None
    assert (found.device_type, found.gpus, found.gpu_name, found.capability) == (
        "cuda",
        2,
        "NVIDIA H200",
        (9, 0),
    )
    assert found.free_bytes is not None
    assert len(found.free_bytes) == 2


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    lab_verb.add_arguments(parser)
    return parser.parse_args(words)


def test_the_verb_refuses_before_anything_starts(
    fake: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    occupy(fake, 0)
    assert lab_verb.run(arguments("--model", "mlp", "--steps", "3", "--json")) == 2
    out, errors = capsys.readouterr()
    document = json.loads(out)
    assert document["error"]["what"] == "GPU 0 is in use by another job."
    assert (
        document["error"]["next"]
        == "CUDA_VISIBLE_DEVICES=1 gpuscope lab --model mlp --steps 3 --json"
    )
    assert document["steps"] == 0
    assert "Next: CUDA_VISIBLE_DEVICES=1" in errors
    assert (
        lab_verb.run(
            arguments(
                "--parallel", "ddp", "--nproc", "5", "--steps", "3", "--headless", "--share-gpus"
            )
        )
        == 2
    )
    assert "5 processes on 3 GPUs" in capsys.readouterr().err


def test_forced_it_trains_and_claims_no_tensor_share(
    fake: FakeNvml, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[LabConfig] = []

    def trained(config: LabConfig, hear: Any) -> Any:
        asked.append(config)
        hear(started(fake.gpus[0].uuid))
        found = lab_verb.LabRun(config)
        found.summary = metrics.document(config.to_mapping(), {}, {}, steps=3)
        return found

    occupy(fake, 0)
    monkeypatch.setattr(lab_verb, "run_blocking", trained)
    assert lab_verb.run(arguments("--steps", "3", "--json", "--share-gpus")) == 0
    document = json.loads(capsys.readouterr().out)
    assert asked == [LabConfig(steps=3)]
    assert document["tensor_active_percent"] is None
    why = next(row for row in document["unknown"] if row["path"] == "tensor_active_percent")
    assert f"pid {os.getpid()}" in why["reason"]


# ── the tensor share ──────────────────────────────────────────────────────────────────────────────


def started(*uuids: str, device: str = "cuda") -> metrics.Started:
    config = {**LabConfig().to_mapping(), "batch": 8}
    devices = [
        {"rank": rank, "device": f"cuda:{rank}", "uuid": uuid} for rank, uuid in enumerate(uuids)
    ]
    return metrics.Started(
        config, "gpt-small", device, "NVIDIA H200", "2.11", 1, 8, devices=devices
    )


STEADY = metrics.Step(9, 1.0, 10.0, 0.1)


def test_the_share_is_the_mean_over_the_gpus_of_the_run(fake: FakeNvml) -> None:
    fake.set(0, gpm={2: 90.0, 3: 50.0, 5: 20.0})
    fake.set(2, gpm={2: 90.0, 3: 50.0, 5: 60.0})
    share = TensorShare()
    share.record(started(fake.gpus[0].uuid, fake.gpus[2].uuid))
    share.record(metrics.Step(1, 1.0, None, None, warming_up=True))
    share.record(STEADY)
    until(lambda: len(share._sums) == 2, 20)
    share.record(metrics.RunEnded({}))
    assert share.end() == (40.0, "", "")


def test_the_power_is_that_of_the_steady_steps_alone(fake: FakeNvml) -> None:
    """The driver reports the mean of the last second, so the first one holds the warm-up."""
    fake.set(0, power=100_000)
    share = TensorShare()
    share.record(started(fake.gpus[0].uuid))
    share.record(STEADY)
    until(lambda: bool(share._watts), 20)
    assert share.power_watts == pytest.approx(100.0)
    fake.set(0, power=500_000)
    until(lambda: share.power_watts == pytest.approx(500.0), 20)
    share.record(metrics.RunEnded({}))
    share.end()
    assert share.power_watts == pytest.approx(500.0)


def test_why_the_power_of_a_run_cannot_be_known_is_told_before_it(fake: FakeNvml) -> None:
    assert power_unknown(AUTO, here(), [], {}) == ""
    occupy(fake, 0)
    beside = power_unknown(AUTO, here(), occupants_of_run(AUTO, here(), {}), {})
    assert "reports that of the whole GPU, and pid" in beside
    fake.fail("nvmlDeviceGetPowerUsage", 0, "NotSupported")
    assert power_unknown(AUTO, here(), [], {}).startswith("GPU 0: ")
    assert power_unknown(AUTO, here(), [], {"CUDA_VISIBLE_DEVICES": "1"}) == ""
    assert "not known" in power_unknown(AUTO, here(), [], {"CUDA_VISIBLE_DEVICES": "MIG-7"})


def test_a_gpu_without_the_counters_says_so(fake: FakeNvml) -> None:
    fake.set(0, gpm_supported=False)
    share = TensorShare()
    share.record(started(fake.gpus[0].uuid))
    share.record(STEADY)
    until(lambda: share._code == "not_supported", 20)
    percent, code, why = share.end()
    assert (percent, code) == (None, "not_supported")
    assert "Hopper" in why


def test_a_run_that_is_over_at_once_has_no_share(fake: FakeNvml) -> None:
    share = TensorShare()
    share.record(started(fake.gpus[0].uuid))
    assert share.end() == (None, "not_measured", "the run had no steady steps")


def test_on_a_cpu_no_driver_is_asked() -> None:
    asked: list[str] = []
    share = TensorShare(make_nvml=lambda: asked.append("the driver"))
    share.record(started(device="cpu"))
    share.record(STEADY)
    assert share.end()[:2] == (None, "not_supported")
    assert asked == []


def test_the_document_gets_the_share_or_the_reason() -> None:
    document = {
        "tensor_active_percent": None,
        "unknown": [{"path": "tensor_active_percent"}, {"path": "loss_last"}],
    }
    assert with_tensor_share(document, (41.5, "", "")) == {
        "tensor_active_percent": 41.5,
        "unknown": [{"path": "loss_last"}],
    }
    row = {"path": "tensor_active_percent", "code": "not_supported", "reason": "why"}
    assert with_tensor_share(document, (None, "not_supported", "why"))["unknown"][-1] == row


def test_a_run_on_the_cpu_never_loads_the_drivers_library() -> None:
    code = (
        "import sys; from gpuscope.cli import main as cli; "
        "cli.main(['lab', '--device', 'cpu', '--parallel', 'ddp', '--nproc', '900', "
        "'--headless']); print([m for m in ('pynvml', 'torch', 'textual') if m in sys.modules])"
    )
    done = python("-c", code, check=True)
    assert done.stdout.strip() == "[]"
    assert "900 processes" in done.stderr
