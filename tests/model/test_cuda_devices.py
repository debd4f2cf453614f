"""CUDA's numbers of GPUs against NVML's."""

from __future__ import annotations

import pytest

from gpuscope.model.cuda_devices import ordinals
from gpuscope.wire.frames import GpuDef, Unknown

ALIKE = [GpuDef(f"GPU-{letter * 8}-0000", index, "NVIDIA H200") for index, letter in enumerate("abcd")]
MIXED = [GpuDef("GPU-aaaaaaaa-0000", 0, "NVIDIA A2"), GpuDef("GPU-bbbbbbbb-0000", 1, "NVIDIA H200")]


def indices(visible: str | None, gpus: list[GpuDef] = ALIKE, order: str | None = None) -> list[int] | str:
    environment = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    found = ordinals({name: value for name, value in environment.items() if value is not None}, gpus)
    if isinstance(found, Unknown):
        return found.text
    assert [one.number for one in found] == list(range(len(found)))
    return [one.gpu.index for one in found]


@pytest.mark.parametrize(
    ("visible", "wanted"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 3 , 1 ", [3, 1]),
        ("1,7,2", [1]),
        ("1,-1,2", [1]),
        ("none", []),
        ("1,1", []),
        ("GPU-cccccccc-0000,GPU-aaaa", [2, 0]),
        ("gpu-CCCC", [2]),
        ("GPU-", []),
        ("GPU-cccc,GPU-zzzz,1", [2]),
        ("9" * 5000, []),
    ],
)
def test_what_is_listed_is_seen_up_to_the_first_that_is_not_valid(visible: str | None, wanted: list[int]) -> None:
    assert indices(visible) == wanted


def test_unlike_gpus_have_numbers_of_their_own_unless_told_otherwise() -> None:
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in str(indices(None, MIXED))
    assert "the fastest first" in str(indices("1", MIXED))
    assert indices("1,0", MIXED, "PCI_BUS_ID") == [1, 0]
    assert indices("GPU-bbbb", MIXED) == [1], "a UUID is one GPU in any order"


def test_instances_of_mig_are_no_gpus() -> None:
    assert "MIG" in str(indices("MIG-4711"))
