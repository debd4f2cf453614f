"""The Lab trains the model of a transformers config as it trains a user's own factory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gpuscope.predict.request import CONFIG, SEQUENCE  # noqa: E402
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
