"""The adapters that a prediction adds ask for the same blocks as those of peft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from gpuscope.predict.request import Request  # noqa: E402
from gpuscope.predict.tracing import steps  # noqa: E402
from tests.predict.test_adapters import held  # noqa: E402
from tests.predict.test_serving import LLAMA  # noqa: E402

BATCH, TOKENS = 4, 32


def of_peft(batch: int, device: Any, targets: Any, dropout: float, checkpoint: bool) -> Any:
    config = transformers.AutoConfig.for_model(**LLAMA)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    options = {"r": 16, "target_modules": targets, "lora_dropout": dropout}
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options))
    model.to(device).train()
    if checkpoint:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    trained = [one for one in model.parameters() if one.requires_grad]
    words = torch.randint(0, 500, (batch, TOKENS), device=device)
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    return model, optimizer, lambda: model(input_ids=words, labels=words).loss


def every(batch: int, device: Any, checkpoint: bool = False) -> Any:
    return of_peft(batch, device, "all-linear", 0.0, checkpoint)


def some(batch: int, device: Any, checkpoint: bool = False) -> Any:
    return of_peft(batch, device, ["q_proj", "v_proj"], 0.05, checkpoint)


@pytest.mark.parametrize(
    ("factory", "lora", "amp", "checkpoint"),
    [
        ("every", "r=16", "off", 0),
        ("every", "r=16", "bf16", 0),
        ("every", "r=16", "bf16", 1),
        ("some", "r=16,dropout=0.05,targets=q_proj+v_proj", "bf16", 0),
    ],
)
def test_they_ask_for_the_same_bytes(
    tmp_path: Path, factory: str, lora: str, amp: str, checkpoint: int
):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    common: dict[str, Any] = {"batch": BATCH, "amp": amp, "checkpoint": checkpoint, "steps": 2}
    theirs = steps.trace(Request(f"{__name__}:{factory}", **common))
    ours = steps.trace(Request(f"hf:{tmp_path}", sequence=TOKENS, lora=lora, **common))
    assert ours.parameters == theirs.parameters
    wanted, found = held(theirs.trace), held(ours.trace)
    for category in ("parameter", "gradient", "optimizer", "activation", "temporary"):
        assert found[category] == pytest.approx(wanted[category], rel=0.005), category
