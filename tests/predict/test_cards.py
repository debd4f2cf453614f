"""Which card is meant, and what a training takes of it beside its tensors."""

from __future__ import annotations

import json
import sys

import pytest

from gpuscope.cli.commands.predict import measure as predict_measure
from gpuscope.predict import context_memory, gpus
from gpuscope.predict.context_memory import ContextMemory
from tests.fakes.nvml import FakeNvml, FakeProcess

MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("rtx 3080 ti", "3080-ti"),
        ("NVIDIA RTX 6000 Ada Generation", "6000-ada"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("Tesla V100-SXM2-16GB", "v100-16"),
        ("Tesla T4", "t4"),
        ("A100", "a100-80"),
    ],
)
def test_a_card_is_found_by_its_key_and_by_the_drivers_name(name, key):
    found = gpus.find_gpu(name)
    assert found is not None
    assert found.key == key


@pytest.mark.parametrize(
    "name", ["", "Radeon RX 7900", "h300", "NVIDIA A100-SXM4-20GB", "4", "nvidia"]
)
def test_no_card_is_guessed(name):
    assert gpus.find_gpu(name) is None


def test_the_table_is_plausible():
    assert len({gpu.key for gpu in gpus.GPUS}) == len(gpus.GPUS)
    for gpu in gpus.GPUS:
        assert gpus.find_gpu(gpu.key) is gpu
        assert 0.94 < (gpu.cuda_bytes or gpu.total_bytes) / gpu.total_bytes <= 1, gpu
        assert gpu.total_bytes % MIB == 0


def test_known_pairs_are_shipped_and_others_are_calculated_with_a_wider_error(tmp_path):
    cache = tmp_path / "none.json"
    h200 = context_memory.outside("NVIDIA H200", "9.0", 143771 * MIB, "2.11.0+cu130", cache)
    assert (h200.context_bytes, h200.driver_bytes, h200.source) == (760 * MIB, 615 * MIB, "shipped")
    other = context_memory.outside("NVIDIA H200", "9.0", 143771 * MIB, "2.9.1+cu128", cache)
    assert other.error_bytes > h200.error_bytes
    assert "2.11" in other.note
    guess = context_memory.outside(
        "NVIDIA GeForce RTX 4090", "8.9", 24564 * MIB, "2.11.0+cu130", cache
    )
    assert guess.source == "calculated"
    assert guess.error_bytes > other.error_bytes
    # what is missing of 24564 MiB in torch's messages there
    assert 300 * MIB < guess.driver_bytes < 500 * MIB
    strange = context_memory.outside("Some Card", "13.0", 64 << 30, "2.11.0", cache)
    assert strange.error_bytes > guess.error_bytes


def test_what_was_measured_is_kept_and_comes_first(tmp_path):
    path = tmp_path / "deep" / "outside.json"
    context_memory.keep(
        "NVIDIA H200",
        "2.11.0+cu130",
        ContextMemory(800 * MIB, 600 * MIB, 20 * MIB, "measured"),
        path,
    )
    context_memory.keep(
        "NVIDIA H200",
        "2.11.0+cu130",
        ContextMemory(700 * MIB, 600 * MIB, 20 * MIB, "measured"),
        path,
    )
    context_memory.keep(
        "NVIDIA L4", "2.11.0+cu130", ContextMemory(400 * MIB, 500 * MIB, 20 * MIB, "measured"), path
    )
    found = context_memory.outside("nvidia h200", "9.0", 143771 * MIB, "2.11.0+cu130", path)
    assert (found.context_bytes, found.source) == (700 * MIB, "measured")
    # by any of its names
    assert context_memory.outside("h200", "9.0", 143771 * MIB, "2.11.0+cu130", path) == found
    assert len(json.loads(path.read_text())["measured"]) == 2
    assert (
        context_memory.outside("NVIDIA H200", "9.0", 143771 * MIB, "2.12.0", path).source
        == "shipped"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"measured": 3}',
        '{"measured": [1, {"gpu": 1}, {"gpu": "x", "torch": "y", "context_bytes": -5}]}',
        '{"measured": [{"gpu": "h200", "torch": "1", "context_bytes": 1e99, "driver_bytes": 1, '
        '"error_bytes": 1}]}',
    ],
)
def test_a_spoilt_cache_holds_nothing_and_can_be_written_again(tmp_path, text):
    path = tmp_path / "outside.json"
    path.write_text(text)
    assert context_memory.read_cache(path) == {}
    context_memory.keep("h200", "2.11.0", ContextMemory(1, 2, 3, "measured"), path)
    assert len(context_memory.read_cache(path)) == 1


# A stand-in for the child with CUDA: the same stages, no device.
STAGES = """
import json, sys
ready = {"torch": "2.11.0+cu130", "gpu": "x", "uuid": ""}
for stage, more in (("ready", ready), ("first", {"reserved_bytes": 2 << 20}),
                    ("products", {"reserved_bytes": 34 << 20}), ("kernels", {"reserved_bytes": 60 << 20})):
    print(json.dumps({"stage": stage, **more}), flush=True)
    if stage != "kernels": sys.stdin.readline()
"""  # noqa: E501


def test_measuring_asks_the_driver_after_each_stage(monkeypatch):
    monkeypatch.setattr(predict_measure, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(predict_measure, "_bytes_held", lambda host, device, pid, idle: held.pop(0))
    held = [621 * MIB, (749 + 34) * MIB, (809 + 60) * MIB]
    with FakeNvml(gpus=1, processes=[FakeProcess(1, used=1 << 30, gpu=0)]).install():
        gpu, torch, found, stages = predict_measure.measure(20.0, [sys.executable, "-c", STAGES])
    assert stages == {"first": 619 * MIB, "products": 749 * MIB, "kernels": 809 * MIB}
    assert (found.context_bytes, found.error_bytes, found.source) == (
        779 * MIB,
        30 * MIB,
        "measured",
    )
    assert torch == "2.11.0+cu130"
    assert gpu


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ('print(\'{"stage": "no_cuda", "torch": "2.13.0+cpu"}\')', "no GPU"),
        ("import sys; sys.exit('boom: no libcudart')", "boom"),
        ("import time; time.sleep(60)", "did not answer"),
        ("print('not json')", "without a message"),
    ],
)
def test_a_measurement_that_fails_says_why_within_its_time(code, why):
    with FakeNvml(gpus=1).install(), pytest.raises(predict_measure.ContextNotMeasured) as caught:
        predict_measure.measure(1.5, [sys.executable, "-c", code])
    assert why in str(caught.value.args[1])


def test_without_a_gpu_measuring_says_so_and_is_not_checked(capsys):
    from gpuscope.cli import main as cli

    assert cli.main(["predict", "--measure", "--json"]) == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["outside"] is None
    assert "Next:" in said.err
