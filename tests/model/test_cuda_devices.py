"""CUDA's numbers of GPUs against NVML's."""

from __future__ import annotations

import pytest

from gpuscope.model.cuda_devices import names_by_number, ordinals, visible
from gpuscope.wire.frames import GpuDef, Unknown
from tests.fakes.cases import each

ALIKE = [
    GpuDef(f"GPU-{letter * 8}-0000", index, "NVIDIA H200") for index, letter in enumerate("abcd")
]
MIXED = [GpuDef("GPU-aaaaaaaa-0000", 0, "NVIDIA A2"), GpuDef("GPU-bbbbbbbb-0000", 1, "NVIDIA H200")]


def indices(
    visible: str | None, gpus: list[GpuDef] = ALIKE, order: str | None = None
) -> list[int] | str:
    environment = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    found = ordinals(
        {name: value for name, value in environment.items() if value is not None}, gpus
    )
    if isinstance(found, Unknown):
        return found.text
    assert [one.number for one in found] == list(range(len(found)))
    return [one.gpu.index for one in found]


CASES = [
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
    ("gpu-cccc", []),
    ("GPU-CCCC", []),
    ("GPU-cccc, GPU-aaaa", [2]),
    ("GPU-cccc,0", [2]),
    ("0,GPU-cccc", [0]),
    ("0,7,0", []),
    ("GPU-aaaa,GPU-aaaaaaaa", []),
    ("1gpu,+2,-0", [1, 2, 0]),
    ("GPU-", []),
    ("GPU-cccc,GPU-zzzz,1", [2]),
    ("9" * 5000, []),
]


@each(("visible", "wanted"), CASES)
def test_what_is_listed_is_seen_up_to_the_first_that_is_not_valid(
    visible: str | None, wanted: list[int]
) -> None:
    assert indices(visible) == wanted


def test_unlike_gpus_have_numbers_of_their_own_unless_told_otherwise() -> None:
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in str(indices(None, MIXED))
    assert "the fastest first" in str(indices("1", MIXED))
    assert indices("1,0", MIXED, "PCI_BUS_ID") == [1, 0]
    assert indices("GPU-bbbb", MIXED) == [1], "a UUID is one GPU in any order"


def test_instances_of_mig_are_no_gpus() -> None:
    assert "MIG" in str(indices("MIG-4711"))


@pytest.mark.parametrize(
    "value", [value for value, _ in CASES if value is not None and len(value) < 4000]
)
def test_it_is_read_as_torch_reads_it(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has the rules of its own that its developers compared with the driver."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    listed = torch.cuda._parse_visible_devices()
    uuids = [gpu.uuid for gpu in ALIKE]
    if listed and isinstance(listed[0], str):
        told = torch.cuda._transform_uuid_to_ordinals(listed, uuids)
    else:
        missing = next(
            (place for place, number in enumerate(listed) if number >= len(uuids)), len(listed)
        )
        told = listed[:missing]
    assert list(visible(value, uuids).positions) == told


def test_where_reading_ends_and_what_is_repeated_can_be_told() -> None:
    uuids = [gpu.uuid for gpu in ALIKE]
    assert visible("1,7,2", uuids).stopped_at == "7"
    assert visible("0,,1", uuids).stopped_at == ""
    assert visible("GPU-aaaa,GPU-zz", uuids).stopped_at == "GPU-zz"
    assert visible("1,1", uuids).repeated == "1"
    assert visible("GPU-aaaa,GPU-aaaaa", uuids).repeated == "GPU-aaaaa"
    assert visible("3,1", uuids).stopped_at is None


def test_a_list_of_uuids_names_nothing_by_number() -> None:
    assert names_by_number({})
    assert names_by_number({"CUDA_VISIBLE_DEVICES": "3"})
    assert not names_by_number({"CUDA_VISIBLE_DEVICES": "GPU-1234"})
    assert not names_by_number({"CUDA_VISIBLE_DEVICES": ""})
