"""What cuDNN really took for convolutions of random shapes on an H200, against the rules (``truth_kernels.py``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from gpuscope.predict.tracing.convolution import _Shape  # noqa: E402  # needs torch

TABLE = Path(__file__).parent.parent / "data" / "convolutions-h200.jsonl"
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MIB = 1 << 20


def shape_of(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> _Shape:
    """The wide side first, as the tracing child has it."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", row["mode"] != "fp32")
    dims, kernel, stride, groups = row["dims"], row["kernel"], row["stride"], row["groups"]
    padding = kernel // 2 if kernel % 2 and not row["transposed"] else 0
    out = (row["side"] + 2 * padding - kernel) // stride + 1
    parts = (row["filters"], row["channels"] // groups)
    if row["transposed"]:
        out, parts = (row["side"] - 1) * stride + kernel, (row["channels"], row["filters"] // groups)
    dtype = TYPES.get(row["mode"], torch.float32)
    with torch.device("meta"):
        x = torch.empty(row["batch"], row["channels"], *[row["side"]] * dims, dtype=dtype)
        weight = torch.empty(*parts, *[kernel] * dims, dtype=dtype)
        y = torch.empty(row["batch"], row["filters"], *[out] * dims, dtype=dtype)
    if row["last"]:
        x, weight, y = (part.to(memory_format=torch.channels_last) for part in (x, weight, y))
    wide, narrow = (y, x) if row["transposed"] else (x, y)
    return _Shape(wide, weight, narrow, [stride] * dims, groups)


def near(predicted: int, real: int) -> bool:
    return abs(predicted - real) <= max(MIB, 0.03 * max(predicted, real))


def test_most_scratch_memory_is_as_it_was_measured(monkeypatch):
    """Shapes of all kinds, most of which no model has. The choices are not published, and the error bar knows it."""
    right = {"forward": 0, "input": 0, "weight": 0}
    rows = [json.loads(line) for line in TABLE.read_text().splitlines()]
    for row in rows:
        shape = shape_of(row, monkeypatch)
        first, second = shape.forward(), shape.input_gradient()
        forward, back = (second, first) if row["transposed"] else (first, second)
        right["forward"] += near(forward, row["forward"])
        right["input"] += near(back, row["input"])
        right["weight"] += near(shape.weight_gradient(), row["weight"])
    assert len(rows) == 199
    shares = {name: count / len(rows) for name, count in right.items()}
    assert shares["forward"] >= 0.85, shares
    assert shares["input"] >= 0.83, shares
    assert shares["weight"] >= 0.6, shares


@pytest.mark.parametrize(("each", "filters", "bytes_taken"), [(12, 32, 885312 << 10), (24, 24, 2880 << 10)])
def test_groups_are_copied_to_a_power_of_two_of_channels_and_filters(each, filters, bytes_taken, monkeypatch):
    batch, side = (24, 96) if each == 12 else (1, 24)
    row = {"dims": 2, "batch": batch, "channels": 32 * each, "filters": 32 * filters, "side": side, "kernel": 3,
           "stride": 1, "groups": 32, "transposed": False, "last": False, "mode": "bf16"}  # fmt: skip
    assert shape_of(row, monkeypatch).forward() == bytes_taken
