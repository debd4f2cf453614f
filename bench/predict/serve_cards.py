"""Measure what generation with transformers takes on one GPU, beside the prediction.

``python -m bench.predict.serve_cards --out DIR`` builds each model of ``serving/*.json`` with random
weights and calls its ``generate()`` with the cache that it makes itself: attention with as many
heads of keys as of queries, with fewer, with a sliding window, and with latent keys. The prompt
fills the context but for the tokens that are generated. What the actions do is said in
``cards.py``.
"""  # noqa: E501

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import torch

from gpuscope.predict.request import Request

from .cards import Case, Phases, Place, main

CONFIGS = Path(__file__).parent / "serving"
NEW_TOKENS = 5
SMALL = {
    "num_hidden_layers": 2, "n_layer": 2, "vocab_size": 300, "intermediate_size": 64, "ffn_dim": 64,
    "intermediate_size_mlp": 64,
}  # fmt: skip
"""What is smaller on a CPU, which only shows that everything runs."""


def case(
    model: str, batch: int, context: int, cache: str = "dynamic", *, eager: bool = False,
    new: int = NEW_TOKENS,
) -> Case:  # fmt: skip
    request = Request(f"hf:{CONFIGS / model}.json", batch, sequence=context, serve=cache, new=new)
    words = [model, f"b{batch}", f"c{context}", cache]
    words += ["eager"] if eager else []
    words += [f"new{new}"] if new != NEW_TOKENS else []
    about = "" if cache == "dynamic" or eager else "generate() compiles the model for this cache"
    options = {"eager": eager, "new": new, "record": context <= 4096}
    return Case("-".join(words), request, options, 1, about)


CASES = [
    case("llama", 8, 4096),
    case("gpt2", 16, 2048),
    case("gemma3", 8, 4096),
    case("deepseek_v3", 8, 2048),
    case("deepseek_v2", 8, 2048),
    case("mistral", 8, 4096),
    case("llama", 8, 4096, "static", eager=True),
    case("llama", 8, 4096, "static"),
    case("gemma2", 4, 3072),
    case("qwen3", 4, 8192),
    case("opt", 16, 1024),
    case("qwen3_moe", 8, 2048),
    case("llama", 1, 16384),
    case("llama", 64, 1024),
    case("gpt2", 64, 512, "static", eager=True),
    case("gemma3", 16, 2048, "static", eager=True),
    case("gemma3", 1, 512),
    case("mistral", 2, 8192, "static", eager=True),
    case("deepseek_v3", 16, 1024, "static", eager=True),
    case("qwen3", 32, 1024),
    case("gpt2", 1, 1024),
    case("qwen3", 16, 1024, new=512),
    case("llama", 16, 1024, new=256),
    case("gemma3", 4, 2048, "static"),
]


def run(case: Case, place: Place, phases: Phases) -> None:
    import transformers

    options, device = case.options, place.device
    batch, context, new = case.request.batch or 1, case.request.sequence or 0, options["new"]
    described = json.loads(Path(case.request.model[3:]).read_text())
    if device.type == "cpu":
        described |= {key: value for key, value in SMALL.items() if key in described}
        batch, context, new = 2, 24, 3
    config = transformers.AutoConfig.for_model(**described)
    dtype = getattr(torch, described["dtype"])
    phases.begin("build")
    with device:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.to(device).eval()
    model.generation_config.eos_token_id = None  # random weights would end sentences early
    words = torch.randint(3, described["vocab_size"], (batch, context - new), device=device)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    phases.end(0, "build")
    given: dict[str, Any] = {"attention_mask": torch.ones_like(words)}
    if case.request.serve == "static":
        given["cache_implementation"] = "static"
    if options["eager"]:
        given["disable_compile"] = True
    made = 0

    class Counted(transformers.StoppingCriteria):
        """Ends a phase with each token."""

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            nonlocal made
            made += 1
            if made <= 4 or made == new:
                phases.end(made, "forward")
                phases.begin(f"step {made + 1}")
            return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    phases.begin("step 1")
    with torch.no_grad():
        out = model.generate(
            words, max_new_tokens=new, do_sample=False, pad_token_id=0,
            stopping_criteria=transformers.StoppingCriteriaList([Counted()]), **given,
        )  # fmt: skip
    phases.end(made + 1, "end")
    assert out.shape[1] == context, (tuple(out.shape), context)


if __name__ == "__main__":
    raise SystemExit(main("serve_cards", CASES, (__doc__ or "").splitlines()[0]))
