"""The whole history of a device on its way out of the reading child."""

from __future__ import annotations

import gzip
import pickle
from array import array
from pathlib import Path
from typing import Any

import pytest

from gpuscope.snapshot import history
from gpuscope.snapshot.columns import ACTIONS, Columns
from gpuscope.snapshot.reader import SnapshotError, open_snapshot

from . import synthetic

DEMOS = Path(__file__).parents[2] / "demos" / "snapshots"


@pytest.mark.parametrize("name", ["training", "leak-after"])
def test_every_entry_and_every_block_arrives(name: str) -> None:
    path = DEMOS / f"{name}.pickle.gz"
    data = pickle.loads(gzip.decompress(path.read_bytes()))
    trace: list[dict[str, Any]] = data["device_traces"][0]
    with open_snapshot(path) as reading:
        found = reading.history(0)
    assert [ACTIONS[code] for code in found.code] == [entry["action"] for entry in trace]
    assert list(found.addr) == [entry.get("addr", 0) for entry in trace]
    assert list(found.size) == [entry["size"] for entry in trace]
    assert list(found.stream) == [entry["stream"] for entry in trace]
    assert found.known
    segments = sorted(data["segments"], key=lambda one: one["address"])
    assert [(one.address, one.size, one.stream) for one in found.segments] == [
        (one["address"], one["total_size"], one["stream"]) for one in segments
    ]
    for one, segment in zip(found.segments, segments, strict=True):
        assert one.large == (segment["segment_type"] == "large")
        assert one.pool == ""
        assert one.blocks == [
            (
                block["address"],
                block["size"],
                block["requested_size"],
                block["state"] == "active_pending_free",
            )
            for block in segment["blocks"]
            if block["state"] != "inactive"
        ]


def test_streams_pools_and_what_waits_arrive(tmp_path: Path) -> None:
    allocator = synthetic.Allocator()
    allocator.stream = 0x55D0C0DE
    kept = allocator.alloc(5 << 20, None)
    allocator.stream = 0
    waiting = allocator.alloc(3 << 20, None)
    allocator.release(waiting, pending=True)
    segments = allocator.segment_dicts()
    segments[0]["segment_pool_id"] = (0, 7)
    allocator.trace[-1]["stream"] = ["not a stream"]
    path = synthetic.write(
        {"segments": segments, "device_traces": [allocator.trace]}, tmp_path / "x.pickle"
    )
    with open_snapshot(path) as reading:
        found = reading.history(0)
    assert list(found.stream) == [0x55D0C0DE, 0x55D0C0DE, 0, 0]
    assert found.segments[0].pool == "0, 7"
    assert sorted(found.segments[0].blocks) == [
        (kept, 5 << 20, 5 << 20, False),
        (waiting, 3 << 20, 3 << 20, True),
    ]


def test_without_a_trace_there_is_no_history(tmp_path: Path) -> None:
    allocator = synthetic.Allocator()
    allocator.alloc(100, None)
    path = synthetic.write(
        {"segments": allocator.segment_dicts(), "device_traces": [[]]}, tmp_path / "x.pickle"
    )
    with (
        open_snapshot(path) as reading,
        pytest.raises(SnapshotError, match="has no trace") as caught,
    ):
        reading.history(0)
    assert caught.value.code == "usage"


def test_a_long_trace_travels_in_parts() -> None:
    count = 2 * history.PART + 5
    columns = Columns(
        code=bytearray(number % 3 for number in range(count)),
        addr=array("q", range(count)),
        size=array("q", range(1, count + 1)),
        stream=array("H", [number % 2 for number in range(count)]),
        streams={0: 0, -9: 1},
    )
    found = history.History()
    while len(found.code) < count:
        part = history.part_of(columns, len(found.code))
        assert sum(map(len, (part.code, part.addr, part.size, part.stream))) < 8 << 20
        history.add_part(found, part)
    assert (found.code, found.addr, found.size) == (columns.code, columns.addr, columns.size)
    assert found.stream[1::2] == array("q", [-9]) * (count // 2)


@pytest.mark.parametrize(
    "change",
    [
        {"code": "AA=="},
        {"addr": "AAAA"},
        {"size": "!!!"},
        {"streams": []},
        {"stream": "/////w=="},
    ],
)
def test_an_answer_that_does_not_fit_together_is_refused(change: dict[str, Any]) -> None:
    columns = Columns(
        bytearray(2), array("q", [1, 2]), array("q", [3, 4]), stream=array("H", [0, 0])
    )
    part = history.part_of(columns, 0)
    for key, value in change.items():
        setattr(part, key, value)
    with pytest.raises(history.BadHistory):
        history.add_part(history.History(), part)


@pytest.mark.parametrize(
    "change", [{"counts": "AAAAAAAAAAA="}, {"address": ""}, {"pools": []}, {"flags": "AAAA"}]
)
def test_a_layout_that_does_not_fit_together_is_refused(change: dict[str, Any]) -> None:
    table = history.SegmentTable(
        *(array("q", [number]) for number in (512, 1024, 0)),
        bytearray([1]),
        array("q", [1]),
        [""],
        array("q", [512]),
        array("q", [512]),
        array("q", [7]),
        bytearray([0]),
    )
    layout = history.layout_of(table, True)
    history.add_layout(history.History(), layout)
    for key, value in change.items():
        setattr(layout, key, value)
    with pytest.raises(history.BadHistory):
        history.add_layout(history.History(), layout)
