"""Judge predictions by the multilayer perceptrons of GPUMemNet, which others have measured.

``python -m bench.predict.gpumemnet mlp_data_step2.csv --rows 60`` reads the table of layer lists in
https://github.com/itu-rad/GPUMemNet (``Datasets/MLP``), builds each network from its list, predicts
its training as the generator there runs it (Adam, cross entropy, fp32), and compares it with the
most memory that ``nvidia-smi`` showed. The whole card is compared as predicted, and once more with
the one constant that fits half of the rows best in place of the context: neither the torch nor the
context of those runs is known. The table is not part of this repository.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import random
import re
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpuscope.predict import answer, child
from gpuscope.predict.request import CannotPredict, Request

TABLE = "GPUSCOPE_GPUMEMNET"
MIB = 1 << 20
A100 = answer.Card("an A100", "a100-40", 40 * 1024 * MIB, "8.0")
NAMES = {"ReLU": nn.ReLU, "Softmax": nn.Softmax, "swish": nn.SiLU, "Identity": nn.Identity}
Row = dict[str, str]


def rows(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def network(row: Row) -> tuple[nn.Module, int, int]:
    """Return the network of a row, its inputs and its outputs."""
    inputs = width = int(re.search(r"input:(\d+)", row["Filename"])[1])  # type: ignore[index]
    layers: list[nn.Module] = []
    for kind, outputs, _ in ast.literal_eval(row["Activations-Params"]):
        if kind == "linear":
            layers.append(nn.Linear(width, outputs))
            width = outputs
        elif kind == "batch_normalization":
            layers.append(nn.BatchNorm1d(width))
        elif kind == "dropout":
            layers.append(nn.Dropout(0.5))
        elif kind == "Softmax":
            layers.append(nn.Softmax(dim=1))
        else:
            layers.append(NAMES.get(kind, getattr(nn, kind, nn.ReLU))())
    return nn.Sequential(*layers), inputs, width


def __getattr__(name: str) -> Any:
    """Return the factory of a row by its number: ``row_17``."""
    if not name.startswith("row_"):
        raise AttributeError(name)
    row = rows(Path(os.environ[TABLE]))[int(name[4:])]

    def factory(batch: int, device: Any) -> Any:
        model, inputs, outputs = network(row)
        model.to(device)
        loss = nn.CrossEntropyLoss() if outputs > 1 else nn.BCEWithLogitsLoss()

        def forward() -> torch.Tensor:
            x = torch.randn(batch, inputs).to(device)
            labels = torch.randint(0, max(2, outputs), (batch,)).to(device)
            return loss(model(x), labels if outputs > 1 else labels.view(-1, 1).float())

        return model, torch.optim.Adam(model.parameters()), forward

    return factory


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.predict.gpumemnet")
    parser.add_argument("table", type=Path)
    parser.add_argument("--rows", type=int, default=60, help="how many, drawn at random")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    os.environ[TABLE] = str(arguments.table.resolve())
    table = rows(arguments.table)
    chosen = random.Random(arguments.seed).sample(range(len(table)), arguments.rows)
    found: list[tuple[float, float, float, bool]] = []
    with child.Tracer() as tracer:
        for number in chosen:
            row = table[number]
            request = Request(
                f"bench.predict.gpumemnet:row_{number}", int(row["Batch Size"]), architecture="8.0"
            )
            try:
                asked = answer.TracedRequest(request, lambda one: tracer.trace(one, 120), A100)
            except CannotPredict as trouble:
                print(number, *trouble.args[:2])
                continue
            device, truth = asked.answer.prediction.device, int(row["Max GPU Memory (MiB)"]) * MIB
            reserved = asked.answer.prediction.reserved.bytes
            held = device.low <= truth <= device.high
            found.append((truth, device.bytes, reserved, held))
            print(f"row {number}: {truth / MIB:7.0f} MiB, predicted {device.bytes / MIB:7.0f}")
    report(found)
    return 0


def report(found: list[tuple[float, float, float, bool]]) -> None:
    whole = [100 * abs(device / truth - 1) for truth, device, _, _ in found]
    print(f"n = {len(found)}, the error holds {sum(row[3] for row in found)}")
    print(f"whole card: median {statistics.median(whole):.1f} %, p95 {_high(whole):.1f} %")
    half = len(found) // 2
    constant = statistics.median(truth - reserved for truth, _, reserved, _ in found[:half])
    rest = [100 * abs((reserved + constant) / truth - 1) for truth, _, reserved, _ in found[half:]]
    print(
        f"reserved + {constant / MIB:.0f} MiB, on the other {len(rest)}: median "
        f"{statistics.median(rest):.1f} %, p95 {_high(rest):.1f} %"
    )


def _high(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


if __name__ == "__main__":
    raise SystemExit(main())
