"""Measure generation of models that no rule was made from, beside the prediction.

``python -m bench.predict.serve_cards_fresh --out DIR`` has cases as those of ``serve_cards``:
attention with biases, fused projections, one head of keys for all, slopes instead of positions,
sinks, chunks, layers without positions, plain mathematics in fp32; longer answers, one in which
a window fills; half, full and brain floats; caches that grow and that are whole.
"""

from __future__ import annotations

from . import serve_cards
from .cards import main

run = serve_cards.run
_case = serve_cards.case
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
]

if __name__ == "__main__":
    raise SystemExit(main("serve_cards_fresh", CASES, (__doc__ or "").splitlines()[0]))
