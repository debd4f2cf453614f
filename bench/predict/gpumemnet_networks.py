"""Build the networks of GPUMemNet's tables from one row: a name with switches, a list of layers.

The name of a row has the sizes of inputs and the batch; the list has the layers in the order in
which they ran, each with the elements of its output for one example and with its parameters.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Row = dict[str, str]
Layer = tuple[str, int, int]
"""A layer's kind, the elements of its output, and its parameters."""
ACTIVATIONS = {"swish": "SiLU"}
GROWTH = 32
"""The channels that a layer of a dense block adds; four layers are a block."""


@dataclass(frozen=True)
class Training:
    """A network with the shape of its input for one example, and how many classes it tells apart.

    ``vocabulary`` is the number of tokens if the inputs are tokens. ``tried`` has the examples of
    each run that the generator makes before it trains, to check and to list the layers; 0 stands
    for the batch.
    """

    model: nn.Module
    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0
    tried: tuple[int, ...] = ()

    def inputs(self, batch: int) -> torch.Tensor:
        if self.vocabulary:
            return torch.randint(0, self.vocabulary, (batch, *self.shape))
        return torch.randn(batch, *self.shape)


def training(row: Row) -> Training:
    """Return what a row of any of the three tables describes."""
    name = row["Filename"]
    if "arch:" in name and "base_filters:" in name:
        return _convolutional(row)
    if "embedding_size:" in name:
        return _transformer(name)
    return _perceptron(row)


def _number(name: str, key: str) -> int:
    found = re.search(rf"(?:^|_){key}:(\d+)", name)
    if found is None:
        raise ValueError(f"no {key} in {name}")
    return int(found[1])


def _layers(row: Row) -> list[Layer]:
    return list(ast.literal_eval(row["Activations-Params"]))


def _activation(kind: str) -> nn.Module:
    return getattr(nn, ACTIVATIONS.get(kind, kind), nn.ReLU)()


def _perceptron(row: Row) -> Training:
    inputs = width = _number(row["Filename"], "input")
    made: list[nn.Module] = []
    for kind, outputs, _ in _layers(row):
        if kind == "linear":
            made.append(nn.Linear(width, outputs))
            width = outputs
        elif kind == "batch_normalization":
            made.append(nn.BatchNorm1d(width))
        elif kind == "dropout":
            made.append(nn.Dropout(0.5))
        elif kind == "Softmax":
            made.append(nn.Softmax(dim=1))
        else:
            made.append(_activation(kind))
    return Training(nn.Sequential(*made), (inputs,), width)


class _Classifier(nn.Module):
    """Tokens, a learned position, encoder layers, the mean over the positions, and classes."""

    def __init__(self, name: str) -> None:
        super().__init__()
        width, length = _number(name, "embedding_size"), _number(name, "seq_length")
        self.tokens = nn.Embedding(_number(name, "input_size"), width)
        self.positions = nn.Parameter(torch.zeros(1, length, width))
        rate = re.search(r"dropout_rate:([\d.]+)_", name)
        layer = nn.TransformerEncoderLayer(
            width,
            _number(name, "num_heads"),
            _number(name, "ff_hidden_size"),
            float(rate[1]) if rate else 0.1,
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, _number(name, "num_layers"))
        self.out = nn.Linear(width, _number(name, "num_classes"))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.encoder(self.tokens(tokens) + self.positions).mean(dim=1))


def _transformer(name: str) -> Training:
    model = _Classifier(name)
    length, classes = _number(name, "seq_length"), _number(name, "num_classes")
    return Training(model, (length,), classes, _number(name, "input_size"), tried=(0, 0))


class _Residual(nn.Module):
    def __init__(self, shortcut: nn.Module, body: nn.Module) -> None:
        super().__init__()
        self.shortcut, self.body = shortcut, body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.shortcut(x)
        return self.body(x) + kept


class _Dense(nn.Module):
    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [x]
        for part in self.parts:
            found.append(part(torch.cat(found, 1)))
        return torch.cat(found, 1)


def _convolutional(row: Row) -> Training:
    name, layers = row["Filename"], _layers(row)
    channels, size = _number(name, "input_channels"), _number(name, "input_size")
    groups: list[list[Layer]] = []
    end: list[Layer] = []
    for layer in layers:
        if layer[0] == "conv2d":
            groups.append([layer])
        elif layer[0] in ("adaptive_avg_pool2d", "linear", "softmax", "sigmoid"):
            end.append(layer)
        else:
            groups[-1].append(layer)
    blocks, width = _BLOCKS.get(_word(name, "arch"), _plain)(groups, channels, size)
    (classes,) = (elements for kind, elements, _ in end if kind == "linear")
    last = nn.Softmax(dim=1) if classes > 1 else nn.Sigmoid()
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
    model.append(last)
    return Training(model, (channels, size, size), classes, tried=(2,))


def _word(name: str, key: str) -> str:
    found = re.search(rf"{key}:([a-z_]+?)_base", name)
    return found[1] if found else ""


def _part(group: list[Layer], inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
    made: list[nn.Module] = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2)]
    for kind, _, _ in group[1:]:
        if kind == "batchnorm2d":
            made.append(nn.BatchNorm2d(outputs))
        elif kind == "dropout":
            made.append(nn.Dropout(0.3))
        else:
            made.append(_activation(kind))
    return nn.Sequential(*made)


def _outputs(group: list[Layer], inputs: int, kernel: int) -> int:
    parameters = group[0][2]
    outputs, rest = divmod(parameters, inputs * kernel * kernel + 1)
    if rest:
        raise ValueError(f"{parameters} parameters are no {kernel} x {kernel} of {inputs}")
    return outputs


Made = tuple[list[nn.Module], int]
"""The blocks of a network and the channels of the last one."""


def _plain(groups: list[list[Layer]], width: int, size: int) -> Made:
    made: list[nn.Module] = []
    for group in groups:
        outputs = _outputs(group, width, 3)
        made.append(_part(group, width, outputs, 3, 1))
        width = outputs
    return made, width


def _residual(groups: list[list[Layer]], width: int, size: int) -> Made:
    made: list[nn.Module] = []
    rest: Iterator[list[Layer]] = iter(groups)
    for group in rest:
        outputs = group[0][2] // (width + 1)
        shortcut: nn.Module = nn.Identity()
        stride = 1
        if group[0][2] == outputs * (width + 1) and group[0][1] % outputs == 0:
            side = round((group[0][1] / outputs) ** 0.5)
            stride = 1 if side == size else 2
            size = side
            shortcut = _part(group, width, outputs, 1, stride)
            group = next(rest)
        outputs = _outputs(group, width, 3)
        body = nn.Sequential(
            _part(group, width, outputs, 3, stride), _part(next(rest), outputs, outputs, 3, 1)
        )
        made.append(_Residual(shortcut, body))
        width = outputs
    return made, width


def _dense(groups: list[list[Layer]], width: int, size: int) -> Made:
    made: list[nn.Module] = []
    rest = list(groups)
    while rest:
        if rest[0][0][2] == (width // 2) * (width + 1):
            made.append(_part(rest.pop(0), width, width // 2, 1, 1))
            if size > 1:
                made.append(nn.AvgPool2d(2))
                size //= 2
            width //= 2
            continue
        parts = []
        for group in rest[:4]:
            if _outputs(group, width, 3) != GROWTH:
                raise ValueError("a dense block of another width")
            parts.append(_part(group, width, GROWTH, 3, 1))
            width += GROWTH
        del rest[:4]
        made.append(_Dense(parts))
    return made, width


_BLOCKS: dict[str, Callable[[list[list[Layer]], int, int], Made]] = {
    "residual": _residual,
    "dense": _dense,
}


def batch(row: Row) -> int:
    return int(row["Batch Size"])


def is_as_listed(row: Row) -> bool:
    """Return whether the network has as many parameters as its row lists.

    False for a list that is cut off. The list leaves out the projections of attention, the
    positions, and what an activation learns.
    """
    layers = _layers(row)
    if all(kind not in ("linear", "Linear") for kind, _, _ in layers):
        return False
    with torch.device("meta"):
        model = training(row).model
    learned = {id(one.weight) for one in model.modules() if isinstance(one, nn.PReLU)}
    left_out = ("in_proj_weight", "in_proj_bias", "positions")
    built = sum(
        one.numel()
        for name, one in model.named_parameters()
        if not name.endswith(left_out) and id(one) not in learned
    )
    return bool(built == sum(count for _, _, count in layers))


def factory(row: Row) -> Callable[[int, Any], Any]:
    """Return the factory of a row, which trains as the generator does: Adam, cross entropy."""

    def make(batch: int, device: Any) -> Any:
        one = training(row)
        model = one.model.to(device)
        for count in one.tried:
            model(one.inputs(count or batch).to(device))
        loss = nn.CrossEntropyLoss() if one.classes > 1 else nn.BCEWithLogitsLoss()

        def forward() -> torch.Tensor:
            x = one.inputs(batch).to(device)
            labels = torch.randint(0, max(2, one.classes), (batch,)).to(device)
            wanted = labels if one.classes > 1 else labels.view(-1, 1).float()
            return loss(model(x), wanted)

        return model, torch.optim.Adam(model.parameters()), forward

    return make
