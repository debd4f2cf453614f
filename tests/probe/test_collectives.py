"""The flight recorder as three generations of torch have it.

The rows of a real one are read in ``test_stall.py``.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.probe import collectives

MIXED = "cpu:gloo,cuda:nccl"


def dump(backend: str, *states: str) -> bytes:
    """As torch 2.15 writes it: an entry a millisecond, the newest last."""
    entries = [
        {
            "collective_seq_id": number,
            "record_id": number - 1,
            "profiling_name": f"{backend}:all_reduce",
            "process_group": ["0", "default_pg"],
            "input_sizes": [[3, 2]],
            "state": state,
            "retired": False,
            "time_created_ns": 1_795_432_534_000_000_000 + 1_000_000 * number + (backend == "nccl"),
            "time_discovered_completed_ns": 0,
            "is_p2p": False,
        }
        for number, state in enumerate(states, 1)
    ]
    empty: dict[str, Any] = {
        "nccl_comm_state": {},
        "pg_config": {},
        "pg_status": {},
        "version": "2.10",
    }
    return json.dumps({**empty, "entries": entries} if entries else empty).encode()


GLOO, NCCL, NONE = (
    dump("gloo", "completed"),
    dump("nccl", "completed", "completed", "started"),
    dump(""),
)


def by_name(backend: str = "gloo") -> bytes:
    return {"gloo": GLOO, "nccl": NCCL}.get(backend, NONE)


@pytest.mark.parametrize(
    ("backend", "functions", "rows"),
    [
        pytest.param(
            "nccl",
            {"_dump_fr_trace_json": by_name, "_dump_nccl_trace_json": lambda: NONE},
            [("nccl", 1), ("nccl", 2), ("nccl", 3)],
            id="2.15, a recorder for each backend",
        ),
        pytest.param(
            MIXED,
            {"_dump_fr_trace_json": by_name, "_dump_nccl_trace_json": lambda: NCCL},
            [("gloo", 1), ("nccl", 1), ("nccl", 2), ("nccl", 3)],
            id="2.15, two backends",
        ),
        pytest.param(
            MIXED,
            {"_dump_fr_trace_json": lambda: GLOO, "_dump_nccl_trace_json": lambda: NCCL},
            [("gloo", 1), ("nccl", 1), ("nccl", 2), ("nccl", 3)],
            id="2.13, two backends",
        ),
        pytest.param(
            "nccl",
            {"_dump_nccl_trace_json": lambda: NCCL},
            [("nccl", 1), ("nccl", 2), ("nccl", 3)],
            id="2.4",
        ),
        pytest.param("gloo", {}, [], id="before"),
    ],
)
def test_every_backend_that_is_in_use_is_asked_for_its_own(monkeypatch, backend, functions, rows):
    group = SimpleNamespace(
        group_name="0", group_desc="default_pg", _get_sequence_number_for_group=lambda: 3
    )
    known = SimpleNamespace(items=lambda: [(group, (backend, None))])
    c10d = SimpleNamespace(is_initialized=lambda: True, _world=SimpleNamespace(pg_map=known))
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", c10d)
    core = SimpleNamespace(_distributed_c10d=SimpleNamespace(**functions))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=core))
    head, *entries = collectives.describe()
    assert [(row["op"].partition(":")[0], row["sequence"]) for row in entries] == rows
    assert head["completed"] == {MIXED: 1 + 2, "nccl": 2}.get(backend)
