"""Measure generation of models that no rule was made from, beside the prediction.

``python -m bench.predict.serve_cards_fresh --out DIR`` has cases as those of ``serve_cards``:
attention with biases, fused projections, one head of keys for all, slopes instead of positions,
sinks, chunks, layers without positions, plain mathematics in fp32; longer answers, one in which
a window fills; half, full and brain floats; caches that grow and that are whole.

``--only 'held-*'`` chooses the models that were declared after the others had been measured, and
that no rule has seen: part of each head rotated, windows in some layers only, layers without
attention, many small experts, shared slopes, large vocabularies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import serve_cards
from .cards import Case, main

run = serve_cards.run
_case = serve_cards.case


def _held(model: str, batch: int, context: int, cache: str = "dynamic", **more: Any) -> Case:
    """Return a case of the models that are declared and not yet measured."""
    found = _case(model, batch, context, cache, **more)
    return replace(found, name=f"held-{found.name}")


CASES = [
    _case("granite", 8, 2048, "static"),
    _case("qwen2", 8, 4096, new=64),
    _case("starcoder2", 8, 2048, new=512),
    _case("phi3", 4, 4096),
    _case("falcon", 16, 1024, new=128),
    _case("gpt_neox", 8, 2048),
    _case("bloom", 8, 1024),
    _case("cohere", 2, 8192),
    _case("gpt_oss", 4, 2048),
    _case("mixtral", 8, 2048, new=96),
    _case("olmo2", 4, 4096),
    _case("gptj", 4, 1024),
    _case("llama4_text", 4, 3072),
    _case("smollm3", 4, 2048),
    _case("gpt_bigcode", 32, 1024, new=64),
    _case("glm4", 6, 3000, "static", eager=True),
    _case("phi3", 16, 1500, new=300),
    _case("bloom", 4, 700, new=200),
    _held("ernie4_5", 16, 2048),
    _held("exaone4", 4, 3072, new=96),
    _held("stablelm", 8, 2048, new=64),
    _held("gpt_neo", 8, 1024),
    _held("codegen", 6, 1536, new=48),
    _held("nemotron", 4, 4096),
    _held("olmoe", 8, 1024, new=128),
    _held("xglm", 8, 1024),
    _held("mpt", 4, 2048),
    _held("cohere2", 2, 4096, new=256),
    _held("phi", 8, 2048, "static", eager=True),
    _held("helium", 12, 1000, new=200),
    _held("ministral", 4, 4096),
    _held("qwen3_next", 4, 2048),
]

if __name__ == "__main__":
    raise SystemExit(main("serve_cards_fresh", CASES, (__doc__ or "").splitlines()[0]))
