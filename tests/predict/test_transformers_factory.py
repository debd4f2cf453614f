"""The Lab trains the model of a transformers config as it trains a user's own factory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gpuscope.predict.request import CONFIG, SEQUENCE, CannotPredict  # noqa: E402
from gpuscope.predict.transformers_factory import make  # noqa: E402

GPT = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 32,
    "n_head": 2, "vocab_size": 100, "n_positions": 64,
}  # fmt: skip


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_config_becomes_a_model_that_learns(tmp_path: Path, checkpoint: bool):
    (tmp_path / "config.json").write_text(json.dumps(GPT))
    environ = {CONFIG: str(tmp_path), SEQUENCE: "16"}
    torch.manual_seed(0)
    model, optimizer, loss = make(2, torch.device("cpu"), checkpoint, environ)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        found = loss()
        found.backward()
        optimizer.step()
        losses.append(found.item())
    assert losses[-1] < losses[0]
    assert all(one.device.type == "cpu" for one in model.parameters())


def test_more_tokens_than_a_table_of_positions_has_are_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(GPT))
    environ = {CONFIG: str(tmp_path), SEQUENCE: "64"}
    _, _, loss = make(2, torch.device("cpu"), False, environ)
    assert torch.isfinite(loss())
    with pytest.raises(CannotPredict) as caught:
        make(2, torch.device("cpu"), False, {**environ, SEQUENCE: "65"})
    what, why, then, *_ = caught.value.args
    assert what == "A gpt2 with this config fails with 65 tokens."
    assert why == "its table of positions, transformer.wpe, has 64 rows."
    assert then.startswith("--sequence 64 ")


def test_a_model_that_computes_its_positions_takes_more_tokens_than_its_config_names(
    tmp_path: Path,
):
    llama = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1,
        "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 100,
        "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(llama))
    _, _, loss = make(2, torch.device("cpu"), False, {CONFIG: str(tmp_path), SEQUENCE: "80"})
    assert torch.isfinite(loss())
