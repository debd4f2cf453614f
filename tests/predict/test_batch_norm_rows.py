"""Batch norm without pixels takes memory for its blocks of rows.

The blocks of torch's kernel leave what they found in memory for each other.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from gpuscope.predict.child import Tracer  # needs torch
from gpuscope.predict.request import Request
from gpuscope.predict.tracing.normalization import row_blocks

pytestmark = pytest.mark.slow


def test_blocks_of_rows_are_as_torch_launches_them():
    assert row_blocks(20000, 256) == (79, 8)
    assert row_blocks(4000, 256) == (16, 8)
    assert row_blocks(1000, 256) == (1, 8)  # four blocks: not worth waiting for each other
    assert row_blocks(10_000_000, 256)[0] == 128


def test_what_they_leave_is_what_was_seen_on_a_gpu():
    # It was a graph network of 20000 nodes on an H200: 323584 bytes in each forward pass of a norm,
    # 161792 in the other.
    with Tracer() as tracer:
        traced = tracer.trace(Request("bench.predict.families_held_out:graph", batch=40), 120).trace
    names = {number: owner.operation for number, owner in enumerate(traced.owner_table)}
    pairs = list(zip(traced.sizes, traced.owners, strict=True))
    seen = [
        (size, names[owner])
        for size, owner in pairs
        if size > 1000 and "batch_norm" in names[owner]
    ]
    assert (323584, "native_batch_norm") in seen
    assert (161792, "native_batch_norm_backward") in seen
