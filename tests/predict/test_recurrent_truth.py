"""What cuDNN really took for recurrent networks on an H200, against the formulas (``truth_kernels.py --kind rnn``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from gpuscope.predict.tracing import recurrent  # noqa: E402  # needs torch

TABLE = Path(__file__).parent.parent / "data" / "recurrent-h200.jsonl"
MODES = {"LSTM": recurrent.LSTM, "GRU": recurrent.GRU, "RNN": recurrent.TANH}
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in TABLE.read_text().splitlines()]


def predicted(row: dict[str, Any]) -> tuple[int, int]:
    """Workspace and reserve in bytes."""
    dtype, ways = TYPES.get(row["mode"], torch.float32), 1 + row["both"]
    with torch.device("meta"):
        model = getattr(torch.nn, row["kind"])(
            row["inputs"], row["width"], row["layers"], bias=row["biases"], bidirectional=row["both"], dtype=dtype
        )
        x = torch.empty(row["steps"], row["batch"], row["inputs"], dtype=dtype)
    sizes = row["width"], row["batch"], row["layers"], ways
    mode, numbers = MODES[row["kind"]], row["batch"] * row["steps"] * row["width"] * ways
    work = recurrent.workspace_bytes(mode, x, list(model.parameters()), *sizes, row["dropout"])
    return work, recurrent.reserve_bytes(mode, numbers, row["layers"], row["dropout"], dtype.itemsize, ways)


def test_workspaces_and_reserves_are_those_that_were_measured():
    found = rows()
    off = [abs(predicted(row)[0] / row["workspace_bytes"] - 1) for row in found]
    exact = sum(abs(predicted(row)[1] - row["reserve_bytes"]) <= 512 for row in found)
    assert len(found) == 142
    assert exact >= 140
    assert sum(value <= 0.002 for value in off) >= 0.84 * len(off)
    assert sum(value <= 0.02 for value in off) >= 0.9 * len(off)
