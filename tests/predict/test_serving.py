"""Generation of text instead of training: the switches, and what the cache takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuscope.errors import UsageError
from gpuscope.predict.from_switches import request_of
from gpuscope.predict.request import CannotPredict, Request
from gpuscope.predict.serving import Serving, parse_serving
from tests.predict.test_adapters import held

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 500, "max_position_embeddings": 512,
}  # fmt: skip
TOKEN_BYTES = 3 * 2 * 2 * 32 * 2
"""Of one token of one sequence: layers, keys and values, two heads of 32, bfloat16."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("batch=8,context=4096", Serving(8, 4096)),
        ("context=512, cache=static", Serving(1, 512, "static")),
        ("batch=2", Serving(2)),
    ],
)
def test_generation_is_read_from_text(text: str, found: Serving):
    assert parse_serving(text) == found


@pytest.mark.parametrize("text", ["8", "batch=0", "context=3", "batch=1,batch=2", "cache=paged"])
def test_what_cannot_be_generated_is_refused(text: str):
    with pytest.raises(UsageError, match="--serve"):
        parse_serving(text)


def test_generation_excludes_what_is_about_training():
    found = request_of("hf:/tmp", {"serve": "batch=8,context=512", "quantize": "nf4"}, "9.0")
    assert (found.batch, found.sequence, found.serve) == (8, 512, "dynamic")
    for model, switches in (
        ("gpt-small", {}),
        ("hf:/tmp", {"lora": "r=16"}),
        ("hf:/tmp", {"amp": "bf16"}),
        ("hf:/tmp", {"parallel": "fsdp", "nproc": 2}),
    ):
        with pytest.raises(UsageError, match="--serve"):
            request_of(model, {"serve": "batch=1", **switches}, "9.0")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_cache_takes_what_its_tokens_need(tmp_path: Path, cache: str):
    pytest.importorskip("transformers")
    from gpuscope.predict.allocator import simulate
    from gpuscope.predict.tracing import steps

    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    traced = steps.trace(Request(f"hf:{tmp_path}", batch=4, sequence=128, serve=cache))
    held_bytes = held(traced.trace)
    assert "gradient" not in held_bytes
    assert "optimizer" not in held_bytes
    full = 4 * 128 * TOKEN_BYTES
    # a cache that grows is copied with each of two tokens
    copies = 1 if cache == "static" else 3
    assert held_bytes["cache"] == pytest.approx(copies * full, rel=0.03)
    peak = simulate(traced.trace).peak_allocated_bytes
    assert held_bytes["parameter"] + full < peak


def test_a_model_that_generates_no_text_is_refused(tmp_path: Path):
    pytest.importorskip("transformers")
    from gpuscope.predict.tracing import steps

    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "vit", "architectures": ["ViTForImageClassification"]})
    )
    with pytest.raises(CannotPredict, match="does not generate text"):
        steps.trace(Request(f"hf:{tmp_path}", batch=1, sequence=16, serve="dynamic"))
