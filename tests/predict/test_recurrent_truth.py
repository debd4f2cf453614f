"""The formulas know what cuDNN really took for recurrent networks on an H200.

The figures are those of ``truth_kernels.py --kind rnn``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from bench.predict.fit_recurrent import NEAR, read  # noqa: E402  # needs torch
from gpuscope.checked_rows import TableError  # noqa: E402
from gpuscope.predict.tracing import recurrent_sizes as sizes  # noqa: E402

pytestmark = pytest.mark.slow

TABLE = Path(__file__).parent.parent / "data" / "recurrent-h200.jsonl"


def test_workspaces_and_reserves_are_those_that_were_measured():
    found = read(TABLE)
    off = [network.off() for network in found]
    exact = sum(
        abs(network.reserve_bytes() - network.row["reserve_bytes"]) <= 512 for network in found
    )
    assert len(found) == 142
    assert exact >= 140
    assert sum(value <= NEAR for value in off) >= 0.84 * len(off)
    assert sum(value <= 0.02 for value in off) >= 0.9 * len(off)


MEASURED = {
    "kind": "RNN", "relu": False, "inputs": 1024, "width": 64, "layers": 3, "both": True,
    "batch": 64, "steps": 10, "mode": "fp32", "dropout": 0.0, "biases": True, "projected": 0,
    "forward": [98304, 327680, 98304, 70288128, 1638656, -70288128, -98304],
}  # fmt: skip


def test_rows_as_the_instrument_writes_them_are_fitted(tmp_path: Path):
    path = tmp_path / "rnn.jsonl"
    others = [{"error": "too large"}, {**MEASURED, "projected": 32}, {**MEASURED, "relu": True}]
    path.write_text("\n".join(json.dumps(row) for row in [MEASURED, *others]))
    (found,) = read(path)
    assert (found.row["workspace_bytes"], found.row["reserve_bytes"]) == (70288128, 1638656)
    assert found.off() <= NEAR
    assert found.reserve_bytes() == 1638656


def test_a_table_of_passes_that_lacks_a_case_is_refused(tmp_path: Path):
    table = json.loads(sizes.FILE.read_text())
    lost = table["rows"].pop(4)
    path = tmp_path / "passes.json"
    path.write_text(json.dumps(table))
    with pytest.raises(
        TableError, match=rf"passes.json: there is no row for .*{lost['cell']}.*{lost['layers']}"
    ):
        sizes.read(path)
