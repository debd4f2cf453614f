"""Fits the coefficients of recurrent networks to measurements, and writes them to the table.

``python -m bench.predict.fit_recurrent tests/data/recurrent-h200.jsonl`` reads the lines of
``truth_kernels.py --kind rnn``. It begins with the present table, changes one number at a time, and
keeps a change if more of the measured workspaces are then within :data:`NEAR`. It prints how many
of each case were right before and are now; with ``--write`` it writes the table to
``gpuscope/predict/data/recurrent_workspaces.json``. A case without measurements stays unchanged.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from gpuscope.predict import tables
from gpuscope.predict.tracing import recurrent_sizes as sizes
from gpuscope.predict.tracing.recurrent_sizes import Case, Passes

ABOUT = (
    "Coefficients of the memory that cuDNN's passes of a recurrent network take for each sample: "
    "numbers for steps × states, for steps × inputs, and for the states in all of a layer. "
    "Written by python -m bench.predict.fit_recurrent from measurements on an H200."
)
MODES = {"LSTM": sizes.LSTM, "GRU": sizes.GRU, "RNN": sizes.TANH}
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
NEAR = 0.002
"""A share of the measured workspace."""
STEPS = (1, -1, 2, -2)


class Network:
    """One row of the measurements."""

    def __init__(self, row: dict[str, Any]):
        self.row = row
        self.mode, self.ways = MODES[row["kind"]], 1 + row["both"]
        self.dtype = TYPES.get(row["mode"], torch.float32)
        with torch.device("meta"):
            model = getattr(torch.nn, row["kind"])(
                row["inputs"],
                row["width"],
                row["layers"],
                bias=row["biases"],
                bidirectional=row["both"],
                dtype=self.dtype,
            )
            self.x = torch.empty(row["steps"], row["batch"], row["inputs"], dtype=self.dtype)
        self.parameters = list(model.parameters())

    @property
    def case(self) -> Case:
        row = self.row
        return sizes.case_of(
            self.mode, self.ways, row["width"], row["layers"], row["dropout"] > 0, self.dtype
        )

    def workspace_bytes(self) -> int:
        """Return the workspace by the present table."""
        row = self.row
        shape = (row["width"], row["batch"], row["layers"], self.ways)
        return sizes.workspace_bytes(self.mode, self.x, self.parameters, *shape, row["dropout"])

    def reserve_bytes(self) -> int:
        row = self.row
        numbers = row["batch"] * row["steps"] * row["width"] * self.ways
        return sizes.reserve_bytes(
            self.mode, numbers, row["layers"], row["dropout"], self.dtype.itemsize, self.ways
        )

    def off(self) -> float:
        """Return the error of the workspace as a share of the measured one."""
        return abs(self.workspace_bytes() / int(self.row["workspace_bytes"]) - 1)


def read(path: Path) -> list[Network]:
    """Return the networks of a file, without those for which there are no rules."""
    rows = [measured(json.loads(line)) for line in path.read_text().splitlines()]
    return [Network(row) for row in rows if row is not None]


def measured(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return a row with the bytes of its workspace and of its reserve.

    A row of ``truth_kernels`` has every request and free of the forward pass in order. The
    workspace is requested right before the reserve and freed right after it. None: a row of an
    error, of a projection, or without a reserve that can be told from its neighbours.
    """
    if "workspace_bytes" in row:
        return row
    if "error" in row or row["projected"] or row["relu"]:
        return None
    forward = row["forward"]
    for one, other, third in zip(forward, forward[1:], forward[2:], strict=False):
        if one > 0 and other > 0 and third == -one:
            return {**row, "workspace_bytes": one, "reserve_bytes": other}
    return None


def right(networks: list[Network]) -> int:
    return sum(network.off() <= NEAR for network in networks)


def fit(case: Case, networks: list[Network]) -> None:
    """Change the case's row of the table, as long as that makes more networks right.

    The table is changed in this process only.
    """
    best, improved = right(networks), True
    while improved and best < len(networks):
        improved = False
        flat = [*sizes.PASSES[case].states, *sizes.PASSES[case].weights]
        for place, step in ((place, step) for place in range(len(flat)) for step in STEPS):
            tried = [*flat]
            tried[place] = max(0, tried[place] + step)
            before = sizes.PASSES[case]
            sizes.PASSES[case] = Passes(
                (tried[0], tried[1], tried[2]), (tried[3], tried[4], tried[5])
            )
            found = right(networks)
            if found > best:
                best, improved = found, True
                break
            sizes.PASSES[case] = before


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.predict.fit_recurrent", description=__doc__
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    networks = read(arguments.rows)
    for case in sizes.PASSES:
        theirs = [network for network in networks if network.case == case]
        before, was = right(theirs), sizes.PASSES[case]
        fit(case, theirs)
        changed = "" if sizes.PASSES[case] == was else f"; {was} became {sizes.PASSES[case]}"
        print(
            f"{' '.join(map(str, case)):40} {before:3} of {len(theirs):3} right, now "
            f"{right(theirs):3}{changed}"
        )
    if arguments.write:
        rows: list[dict[str, Any]] = []
        for (cell, ways, small, layers), passes in sizes.PASSES.items():
            key = {"cell": cell, "directions": ways, "small": small, "layers": layers}
            rows.append(
                {**key, **{name: list(values) for name, values in passes._asdict().items()}}
            )
        tables.write(sizes.FILE, ABOUT, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
