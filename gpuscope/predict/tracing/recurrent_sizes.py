"""Say how much memory cuDNN takes and keeps for a recurrent network.

It takes scratch memory, and keeps a reserve for the backward pass.

cuDNN does not publish these sizes; :func:`reserve_bytes` and :func:`workspace_bytes` are what was
measured on an H200 (cuDNN 9.19) of 426 networks, 1 to 6 layers of 64 to 1024 states in one and two
directions: the reserve is exact in all but two, the workspace within 0.2 % in 85 of 100 and within
2 % in 90.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...checked_rows import TableError
from .. import tables

RELU, TANH, LSTM, GRU = 0, 1, 2, 3
"""cuDNN's constants."""
CELLS = {RELU: "RNN", TANH: "RNN", LSTM: "LSTM", GRU: "GRU"}
LAYERS = ("one", "several", "several with dropout")
FILE = tables.FOLDER / "recurrent_workspaces.json"
"""Written by ``bench/predict/fit_recurrent.py``."""
_KEPT = {RELU: 1, TANH: 1, LSTM: 5, GRU: 6}
_SMALL = 128
"""Up to this many states another kernel is used, but not in bf16. None was measured between 128 and
256.
"""


def reserve_bytes(
    mode: int, numbers: int, layers: int, dropout: float, size: int, ways: int = 1
) -> int:
    """Return the bytes that are kept from the forward to the backward pass.

    ``numbers``: samples × steps × width × directions. ``size``: bytes of a number. A dropout mask
    takes one bit for each number, and two with two directions.
    """
    kept = _KEPT[mode] * layers + layers - 1
    masks = -(-numbers * ways * (layers - 1) // 256) * 32 if dropout else 0
    return size * numbers * kept + masks + 256


class Passes(NamedTuple):
    """How many numbers a pass of cuDNN takes for each sample.

    There are coefficients for steps × states, steps × inputs, and the states in all of a layer:
    first in the pass of the states' gradients, then in that of the weights'.
    """

    states: tuple[int, int, int]
    weights: tuple[int, int, int]


Case = tuple[str, int, bool, str]
"""A cell of :data:`CELLS`, the number of directions, whether the kernel is that of small networks,
and :data:`LAYERS`.
"""


def read(path: Path = FILE) -> dict[Case, Passes]:
    """Return the passes of every case. Raises :class:`TableError`."""
    checks = {
        "cell": tables.one_of(*dict.fromkeys(CELLS.values())),
        "directions": tables.one_of(1, 2),
        "small": tables.yes_no,
        "layers": tables.one_of(*LAYERS),
        **dict.fromkeys(Passes._fields, tables.wholes(3)),
    }
    found: dict[Case, Passes] = {}
    for row in tables.read(path, checks):
        case = (row["cell"], row["directions"], row["small"], row["layers"])
        found[case] = Passes(tuple(row["states"]), tuple(row["weights"]))
    wanted = itertools.product(dict.fromkeys(CELLS.values()), (1, 2), (True, False), LAYERS)
    for case in wanted:
        if case not in found:
            raise TableError(f"{path.name}: there is no row for {case}")
    return found


PASSES = read()


def case_of(
    mode: int, ways: int, width: int, layers: int, dropout: bool, dtype: torch.dtype
) -> Case:
    """Return the row of the table that applies to a network."""
    small = width <= _SMALL and dtype != torch.bfloat16
    return CELLS[mode], ways, small, LAYERS[0 if layers == 1 else 2 if dropout else 1]


def workspace_bytes(
    mode: int,
    x: Any,
    params: Any,
    width: int,
    samples: int,
    layers: int,
    ways: int,
    dropout: float = 0.0,
) -> int:
    """Return the bytes that each pass takes.

    They hold all weights, 8 MiB for each layer and direction, and the numbers of the larger of its
    :class:`Passes`.
    """
    size: int = x.element_size()
    inputs = x.shape[-1]
    steps: int = x.numel() // max(1, inputs * samples)
    matrices: int = sum(parameter.numel() for parameter in params if parameter.dim() > 1)
    numbers: int = max(
        steps * (states * width + taken * inputs) + layers * each * width
        for states, taken, each in PASSES[case_of(mode, ways, width, layers, dropout > 0, x.dtype)]
    )
    fixed = (8 << 20) * layers * ways + 256 + 16 * (ways - 1)
    return fixed + size * matrices + samples * (size * numbers + 8)
