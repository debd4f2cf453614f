"""Quantised layers in a model factory: packed when they move to the GPU, unpacked for products."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.predict.request import Request

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from gpuscope.predict.tracing import quantised, steps  # noqa: E402

from .test_adapters import held  # noqa: E402

INPUTS, OUTPUTS, BATCH = 256, 512, 8


class Halves(nn.Parameter):
    """A weight of a class of its own, which packs two numbers into a byte when it is moved."""

    def __new__(cls, data: torch.Tensor, requires_grad: bool = False) -> Any:
        made = torch.Tensor._make_subclass(cls, data, requires_grad)
        made.packed = False
        return made

    def to(self, *args: Any, **kwargs: Any) -> Any:
        whole = self.data.to(*args, **kwargs)
        if not self.packed:
            self.data = torch.empty(-(-whole.numel() // 2), dtype=torch.uint8, device=whole.device)
            self.packed = True
        return self


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Halves(torch.randn(OUTPUTS, INPUTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.weight, Halves)
        return x @ torch.empty(INPUTS, OUTPUTS, device=self.weight.device)


def halved(batch: int, device: Any) -> Any:
    model = nn.Sequential(nn.Linear(INPUTS, INPUTS), Half()).to(device)
    x = torch.randn(batch, INPUTS, device=device)
    return model, torch.optim.SGD(model[0].parameters(), 0.1), lambda: model(x).square().mean()


def test_a_parameter_of_a_class_of_its_own_stays_one_and_can_change_its_data():
    traced = steps.trace(Request(f"{__name__}:halved", batch=BATCH, steps=1))
    assert held(traced.trace)["parameter"] == (
        4 * (INPUTS * INPUTS + INPUTS) + INPUTS * OUTPUTS // 2
    )
    assert torch.Tensor._make_subclass(Halves, torch.zeros(2)).numel() == 2


def layer(name: str) -> nn.Module:
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    if name == "int8":
        return Linear8bitLt(INPUTS, OUTPUTS, False, has_fp16_weights=False, threshold=6.0)
    nested = name == "nf4-double"
    return Linear4bit(INPUTS, OUTPUTS, False, torch.bfloat16, nested, "nf4")


def _trained(name: str, batch: int, device: Any) -> Any:
    model = nn.Sequential(nn.Linear(INPUTS, INPUTS), layer(name)).to(device)
    x = torch.randn(batch, INPUTS, device=device)
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    return model, optimizer, lambda: model(x).float().square().mean()


def nf4(batch: int, device: Any) -> Any:
    return _trained("nf4", batch, device)


def nf4_double(batch: int, device: Any) -> Any:
    return _trained("nf4-double", batch, device)


def int8(batch: int, device: Any) -> Any:
    return _trained("int8", batch, device)


@pytest.mark.parametrize("name", ["nf4", "nf4-double", "int8"])
def test_layers_of_the_library_take_the_bytes_of_the_real_ones(name: str):
    pytest.importorskip("bitsandbytes")
    real = layer(name).to("cpu").weight
    storages = {one.data_ptr(): one.nbytes for one in quantised.parts(real)}
    ours = quantised.Packed(nn.Linear(INPUTS, OUTPUTS, bias=False), name)
    stored = [*ours.parameters(), *ours.buffers()]
    traced = steps.trace(Request(f"{__name__}:{name.replace('-', '_')}", batch=BATCH, steps=1))
    packed = held(traced.trace)["parameter"] - 4 * (INPUTS * INPUTS + INPUTS)
    assert packed == sum(storages.values()) == sum(one.nbytes for one in stored)
    assert traced.parameters == INPUTS * INPUTS + INPUTS + INPUTS * OUTPUTS
    assert any("bitsandbytes" in doubt.operation for doubt in traced.doubts)
