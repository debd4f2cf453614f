"""Adapters on frozen weights: what is trained, what is packed, and what that asks for."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.errors import UsageError
from gpuscope.predict.adapters import LAYOUTS, Lora, parse_lora
from gpuscope.predict.from_switches import request_of
from gpuscope.predict.request import CannotPredict, Request
from gpuscope.predict.trace import Trace

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from gpuscope.predict.tracing import adapters, quantised, steps  # noqa: E402

WIDTH, INNER, RANK = 256, 512, 8


class Layers(nn.Module):
    def __init__(self, device: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(300, WIDTH, device=device)
        self.up_proj = nn.Linear(WIDTH, INNER, bias=False, device=device)
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False, device=device)
        self.head = nn.Linear(WIDTH, 300, bias=False, device=device)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        return self.head(x + self.down_proj(torch.relu(self.up_proj(x))))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("r=16", Lora(16)),
        ("r=8,alpha=16,dropout=0.05", Lora(8, 0.05)),
        ("r=4, targets=q_proj+v_proj", Lora(4, 0.0, ("q_proj", "v_proj"))),
    ],
)
def test_adapters_are_read_from_text(text: str, found: Lora):
    assert parse_lora(text) == found


@pytest.mark.parametrize(
    "text", ["16", "r=0", "r=16,r=8", "r=16,dropout=1", "r=16,targets=", "r=x", "rank=16", ""]
)
def test_what_cannot_be_adapters_is_refused(text: str):
    with pytest.raises(UsageError, match="--lora"):
        parse_lora(text)


@pytest.mark.parametrize(
    ("switches", "said"),
    [
        ({"quantize": "nf4"}, "add --lora"),
        ({"lora": "r=16", "quantize": "nf2"}, "--quantize must be one of"),
        ({"task": "translation"}, "--task must be one of: causal-lm, "),
        ({"lora": "16"}, "It takes r=16"),
    ],
)
def test_combinations_that_cannot_be_are_refused(switches: dict[str, str], said: str):
    with pytest.raises(UsageError, match=said):
        request_of("hf:/tmp", switches, "9.0")


def test_adapters_are_for_a_transformers_config():
    with pytest.raises(UsageError, match="--hf-config"):
        request_of("gpt-small", {"lora": "r=16"}, "9.0")


def test_only_adapters_are_trained_and_the_head_of_another_task():
    model = Layers("cpu")
    before = sum(one.numel() for one in model.parameters())
    adapters.prepare(model, Lora(RANK, targets=("up_proj",)), "nf4", language=True)
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert trained == {"up_proj.lora_A.weight", "up_proj.lora_B.weight"}
    assert quantised.numbers(model) == before + RANK * (WIDTH + INNER)
    assert isinstance(model.down_proj, quantised.Packed)
    assert isinstance(model.head, nn.Linear)
    model = Layers("cpu")
    adapters.prepare(model, Lora(RANK), "", language=False)
    assert model.head.weight.requires_grad


def test_targets_that_no_layer_has_are_named():
    with pytest.raises(CannotPredict, match="named query") as trouble:
        adapters.prepare(Layers("cpu"), Lora(RANK, targets=("query",)), "", language=True)
    assert "down_proj, up_proj" in trouble.value.why


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_weights_take_the_bytes_of_their_layout(layout: str):
    model = Layers("cpu")
    adapters.prepare(model, Lora(RANK), layout, language=True)
    packed = model.up_proj.base_layer
    found = sum(one.nbytes for one in (*packed.parameters(), *packed.buffers()))
    count = WIDTH * INNER
    wanted = {
        "int8": count + 4 * INNER,
        "nf4": count // 2 + 4 * count // 64 + 4 * 16,
        "nf4-double": count // 2 + count // 64 + 4 * (count // 64 // 256 + 16 + 256 + 1),
    }
    assert found == wanted[layout]


def fine_tuned(batch: int, device: Any, layout: str) -> Any:
    model = Layers("cpu").to(torch.bfloat16)
    adapters.prepare(model, Lora(RANK), layout, language=True)
    model.to(device)
    tokens = torch.randint(0, 300, (batch, 16), device=device)
    trained = [one for one in model.parameters() if one.requires_grad]
    return model, torch.optim.AdamW(trained), lambda: model(tokens).float().square().mean()


def held(trace: Trace) -> dict[str, int]:
    """Return the bytes of all blocks of a trace, by the category of their owner."""
    found: dict[str, int] = {}
    for block, size in enumerate(trace.sizes):
        category = trace.owner(block).category
        found[category] = found.get(category, 0) + size
    return found


def nf4(batch: int, device: Any) -> Any:
    return fine_tuned(batch, device, "nf4")


def plain(batch: int, device: Any) -> Any:
    return fine_tuned(batch, device, "")


@pytest.mark.parametrize("name", ["nf4", "plain"])
def test_gradients_and_states_are_those_of_the_adapters_alone(name: str):
    traced = steps.trace(Request(f"tests.predict.test_adapters:{name}", batch=4, steps=1))
    bytes_by = held(traced.trace)
    adapted = 2 * RANK * (WIDTH + INNER) * 4
    assert bytes_by["gradient"] == pytest.approx(adapted, rel=0.02)
    assert bytes_by["optimizer"] == pytest.approx(2 * adapted, rel=0.02)
    unpacked = 2 * 300 * WIDTH * 2
    weights = 2 * WIDTH * INNER * (0.5 if name == "nf4" else 2)
    assert bytes_by["parameter"] == pytest.approx(unpacked + weights + adapted, rel=0.02)


def eight_bit(batch: int, device: Any) -> Any:
    import bitsandbytes

    model = nn.Linear(WIDTH, INNER).to(device)
    x = torch.randn(batch, WIDTH, device=device)
    optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())
    return model, optimizer, lambda: model(x).square().mean()


def test_states_of_an_optimizer_in_eight_bits_have_the_bytes_of_their_layout():
    """Two bytes for each number, two scales for 256 numbers, and one table for each moment."""
    pytest.importorskip("bitsandbytes")
    traced = steps.trace(Request(f"{__name__}:eight_bit", batch=4, steps=2))
    count = WIDTH * INNER
    wanted = 2 * count + 2 * 4 * count // 256 + 2 * 4 * INNER + 2 * 4 * 256
    assert held(traced.trace)["optimizer"] == pytest.approx(wanted, rel=0.03)
    assert not hasattr(torch._C, "_cuda_getCurrentRawStream") or torch.version.cuda


def test_a_weight_that_is_stored_in_parts_is_counted_in_its_parts() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    first, second = torch.zeros(3), torch.zeros(3)
    nested = TwoTensor(TwoTensor(first, second), TwoTensor(second, first))
    assert [id(one) for one in quantised.parts(nested)] == [
        id(one) for one in (first, second, second, first)
    ]
    assert quantised.parts(first) == []


def test_layers_that_transformers_keeps_in_float32_are_not_packed():
    """Such a model asks these layers for the type of their weights."""
    model = Layers("cpu")
    model._keep_in_fp32_modules = ["down_proj"]
    adapters.prepare(model, Lora(RANK), "nf4", language=True)
    assert isinstance(model.up_proj.base_layer, quantised.Packed)
    assert isinstance(model.down_proj.base_layer, nn.Linear)
    assert model.down_proj.weight is model.down_proj.base_layer.weight
    assert model.up_proj.weight.dtype == torch.uint8


@pytest.mark.parametrize(("experts", "told"), [(64, True), (1, False)])
def test_experts_that_stay_whole_are_told(experts: int, told: bool):
    model = Layers("cpu")
    model.experts = nn.Parameter(torch.empty(experts, 64, 64, dtype=torch.bfloat16))
    adapters.prepare(model, Lora(RANK), "nf4", language=True)
    assert model.experts.dtype == torch.bfloat16
    said = [one.text for one in quantised.doubts(model) if one.operation == "experts"]
    assert len(said) == told
    assert all(one.startswith("512 KiB of weights stay") and "as experts:" in one for one in said)


def test_an_adapted_layer_has_the_bias_that_a_model_asks_for():
    adapted = adapters.Adapted(nn.Linear(4, 4), Lora(2))
    assert adapted.bias is adapted.base_layer.bias
