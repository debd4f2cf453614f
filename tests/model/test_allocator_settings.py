"""The allocator's settings mean for the simulation what torch's text says.

What a snapshot notes of them is read too.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from gpuscope.lab.config import LabConfig
from gpuscope.lab.toggles import PREDICTED
from gpuscope.model.allocator_settings import (
    DEFAULT,
    INTERVALS,
    AllocatorSettings,
    BadSettings,
    read,
    recorded,
)
from gpuscope.predict.from_lab_config import request_of
from gpuscope.predict.request import Request
from tests.fakes.cases import each

MIB = 1 << 20


@each(
    ("text", "expected"),
    [
        ("", DEFAULT),
        (" , ", DEFAULT),
        ("expandable_segments:True", AllocatorSettings(expandable=True)),
        ("expandable_segments:True,expandable_segments:False", DEFAULT),
        ("max_split_size_mb:128", AllocatorSettings(max_split_bytes=128 * MIB)),
        ("max_non_split_rounding_mb:40", AllocatorSettings(max_rounding_bytes=40 * MIB)),
        ("garbage_collection_threshold:0.8", AllocatorSettings(collect_share=0.8)),
        ("large_segment_size_mb:64", AllocatorSettings(large_segment_bytes=64 * MIB)),
        ("per_process_memory_fraction:0.5", AllocatorSettings(fraction=0.5)),
        ("per_process_memory_fraction:1.0", DEFAULT),
        ("backend:cudaMallocAsync", AllocatorSettings(native=False)),
        ("roundup_power2_divisions:8", AllocatorSettings(divisions=(8,) * INTERVALS)),
        # the list that torch's own test of it has, and what it expects there
        (
            "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]",
            AllocatorSettings(divisions=(8, 8, 8, 8, 8, 8, 8, 2, 4, 2, 4, 1, 1, 1, 1, 1)),
        ),
        (
            "roundup_power2_divisions:[256:1,1024:4]",
            AllocatorSettings(divisions=(1,) * 9 + (0, 4) + (0,) * 5),
        ),
        ("pinned_use_background_threads:True", DEFAULT),
    ],
)
def test_what_the_text_means(text: str, expected: AllocatorSettings) -> None:
    assert read(text) == expected
    assert read(expected.text()) == expected  # and back


@pytest.mark.parametrize(
    "text",
    [
        "expandable_segments=True",
        "max_split_size_mb:1",
        "expandable:True",
        "roundup_power2_divisions:3",
        "x",
    ],
)
def test_what_torch_refuses_is_refused(text: str) -> None:
    with pytest.raises(BadSettings) as caught:
        read(text)
    assert text.partition(":")[0].partition("=")[0] in caught.value.what


def test_settings_change_those_that_are_in_force() -> None:
    own = read("max_split_size_mb:64,roundup_power2_divisions:4")
    changed = read("expandable_segments:True", own)
    assert (changed.expandable, changed.max_split_bytes, changed.divisions[0]) == (
        True,
        64 * MIB,
        4,
    )


def test_a_snapshots_notes_win_over_the_text_they_came_from() -> None:
    table = {f"roundup_power2_divisions.{1 << power}": "0" for power in range(INTERVALS)}
    pairs = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,large_segment_size_mb:40",
        "max_split_size": str(200 * MIB),
        "garbage_collection_threshold": "0.0",
        "expandable_segments": "False",  # switched off later, by the program
        **table,
        "roundup_power2_divisions.2": "4",
    }
    found = recorded(pairs)
    assert found == AllocatorSettings(
        max_split_bytes=200 * MIB,
        large_segment_bytes=40 * MIB,
        divisions=(0, 4) + (0,) * (INTERVALS - 2),
    )
    assert recorded({"max_split_size": "-1", "expandable_segments": "True"}) == AllocatorSettings(
        expandable=True
    )
    assert (
        recorded({})
        == recorded({"max_split_size": "much", "PYTORCH_CUDA_ALLOC_CONF": "nonsense,:"})
        == DEFAULT
    )


def test_a_request_and_a_run_of_the_lab_have_one_table_of_switches():
    known = {one.name: one for one in fields(Request)}
    others = {"settings", "doubts"}
    assert others < set(PREDICTED) <= {*known, *others}
    # Whose values, or defaults, are others in a request: a model that is not the lab's decides for
    # itself.
    elsewhere = {"model", "optimizer", "tf32", "checkpoint", "sharding", "ranks"}
    for name, toggle in PREDICTED.items():
        if name not in elsewhere | others:
            assert getattr(LabConfig(), toggle.name) == known[name].default == toggle.default
    odd = LabConfig(
        amp="bf16",
        batch=3,
        accumulate=2,
        foreach=False,
        set_to_none=False,
        seed=9,
        deterministic=True,
    )
    asked = request_of(odd, "9.0")
    assert {
        name: getattr(asked, name)
        for name in ("amp", "batch", "accumulate", "foreach", "set_to_none")
    } == {
        "amp": "bf16",
        "batch": 3,
        "accumulate": 2,
        "foreach": False,
        "set_to_none": False,
    }
    assert (asked.seed, asked.deterministic) == (9, True)
