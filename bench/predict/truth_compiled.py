"""List the compiled trainings whose real peaks are measured, and predict them beforehand.

The models are those of the ``families_compiled*.py``, and of torchvision and transformers.
``python -m bench.predict.truth --compiled --out DIR`` measures them. ``python -m
bench.predict.truth_compiled predict --out DIR`` predicts them from the declaration alone, and
``score`` compares both: see ``cards.py``. ``compiled_card.sh`` does both for the newest ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from gpuscope.predict.request import CUDA_GRAPHS, SEARCHING, Request

from .cards import Case, main
from .truth_table import BLOCKS, PUBLIC, Config

COMPILED = "bench.predict.families_compiled"
NEVER_SEEN = "bench.predict.families_compiled_fresh"
TEXT, SIGNALS = "bench.predict.families_compiled_text", "bench.predict.families_compiled_signals"
LIBRARIES, LIBRARIES_AGAIN = "bench.predict.families_blind_public", "bench.predict.families_unseen"
REDUCE, AUTOTUNE = "reduce-overhead", "max-autotune-no-cudagraphs"
AUTOTUNE_GRAPHS = "max-autotune"
_SETS: list[tuple[str, int, dict[str, Any]]] = [
    ("gpt_narrow", 16, {"amp": "bf16"}),
    ("gated_narrow", 8, {"amp": "bf16"}),
    ("bert_small", 32, {"amp": "bf16"}),
    ("resnet_short", 64, {"amp": "bf16"}),
    ("vit_small", 64, {"amp": "bf16"}),
    ("unet_narrow", 24, {"amp": "bf16"}),
    ("gpt_untied", 8, {}),
    ("resnet_short", 48, {}),
    ("gpt_narrow", 8, {"amp": "bf16", "compile": REDUCE}),
    ("vit_small", 32, {"amp": "bf16", "compile": REDUCE}),
    ("gpt_blocks", 12, {"amp": "bf16", "compile": BLOCKS}),
    ("gated_deep", 6, {}),
    ("vit_small", 48, {}),
    ("bert_small", 16, {}),
    ("unet_narrow", 12, {}),
    ("gpt_untied", 16, {"amp": "bf16"}),
    ("gpt_blocks", 6, {"compile": BLOCKS}),
    ("gated_narrow", 12, {"amp": "bf16", "checkpoint": 1}),
    ("resnet_short", 64, {"compile": REDUCE}),
    ("gpt_narrow", 12, {"amp": "bf16", "compile": AUTOTUNE}),
    ("gpt_narrow", 16, {"amp": "fp16"}),
]
_FRESH: list[tuple[str, int, dict[str, Any]]] = [
    ("decaying", 24, {"amp": "bf16", "compile": AUTOTUNE}),
    ("shared_keys", 12, {"amp": "bf16"}),
    ("dense_images", 64, {"amp": "bf16"}),
    ("hourglass", 32, {"amp": "bf16", "compile": REDUCE}),
    ("latents_reader", 16, {"amp": "bf16"}),
    ("gated_positions", 16, {}),
    ("shared_keys_blocks", 8, {"compile": BLOCKS}),
    ("layered_patches", 48, {"amp": "bf16"}),
    ("signals", 32, {"tf32": True}),
    ("gated_positions", 32, {"amp": "bf16", "checkpoint": 1}),
]
"""Families that no rule was made with, declared before they were measured."""
_NEW: list[tuple[str, str, int, dict[str, Any]]] = [
    (TEXT, "parallel_text", 12, {"amp": "bf16", "compile": AUTOTUNE_GRAPHS}),
    (SIGNALS, "crossed_table", 32768, {"tf32": True, "compile": AUTOTUNE}),
    (TEXT, "qwen3", 8, {"amp": "bf16", "fused": True}),
    (SIGNALS, "denoising", 24, {"amp": "bf16"}),
    (TEXT, "encoder_decoder", 24, {"amp": "bf16", "compile": REDUCE}),
    (TEXT, "logged_text", 16, {"amp": "bf16", "checkpoint": 1}),
    (TEXT, "halting_text", 16, {"amp": "bf16"}),
    (SIGNALS, "window_images", 48, {"amp": "bf16", "compile": REDUCE}),
    (TEXT, "experts_text", 16, {"amp": "bf16"}),
    (SIGNALS, "responding_images", 64, {"amp": "bf16", "checkpoint": 1}),
    (SIGNALS, "listening_blocks", 16, {"amp": "bf16", "compile": BLOCKS}),
    (SIGNALS, "coded_images", 192, {"amp": "bf16", "optimizer": "sgd"}),
    (TEXT, "scan_text", 16, {"amp": "bf16"}),
    (SIGNALS, "attended_edges", 24, {}),
    (SIGNALS, "pooled_images", 64, {"amp": "bf16", "optimizer": "sgd"}),
]
"""A second set of such families, declared before it was measured."""
_LIBRARIES: list[tuple[str, str, int, dict[str, Any]]] = [
    (LIBRARIES, "hf_vit_mae", 64, {"amp": "bf16", "compile": AUTOTUNE}),
    (PUBLIC, "tv_densenet121", 48, {"amp": "bf16"}),
    (PUBLIC, "tv_swin_t", 48, {"amp": "bf16"}),
    (PUBLIC, "hf_gpt2", 12, {"amp": "bf16"}),
    (PUBLIC, "tv_resnet50", 64, {"amp": "bf16"}),
    (PUBLIC, "hf_bert", 32, {"amp": "bf16", "compile": REDUCE}),
    (PUBLIC, "hf_llama", 8, {"amp": "bf16", "checkpoint": 1}),
    (PUBLIC, "tv_convnext_tiny", 48, {"amp": "bf16"}),
    (LIBRARIES, "hf_whisper", 8, {"amp": "bf16"}),
    (PUBLIC, "tv_efficientnet_b0", 96, {"amp": "bf16"}),
    (PUBLIC, "hf_t5", 24, {"amp": "bf16"}),
    (PUBLIC, "tv_vit_b_16", 32, {"amp": "bf16", "compile": REDUCE}),
    (LIBRARIES, "hf_deberta", 24, {"amp": "bf16"}),
    (LIBRARIES_AGAIN, "tv_regnet", 64, {}),
    (LIBRARIES, "hf_wav2vec2", 8, {"amp": "bf16"}),
    (PUBLIC, "hf_distilbert", 64, {"tf32": True}),
    (LIBRARIES, "tv_simclr", 96, {"amp": "bf16"}),
    (LIBRARIES_AGAIN, "hf_bart", 24, {"amp": "bf16"}),
    (LIBRARIES_AGAIN, "tv_mobilenet", 128, {"amp": "bf16"}),
    (LIBRARIES_AGAIN, "hf_opt", 16, {"amp": "fp16"}),
    (LIBRARIES, "tv_deeplab", 12, {"amp": "bf16"}),
]
"""What people compile: models of torchvision and transformers with their own optimizers.

No rule of compiled trainings was made with them. Declared before they were measured.
"""
_LIBRARIES_FRESH: list[tuple[str, int, dict[str, Any]]] = [
    ("tv_maxvit", 24, {"amp": "bf16"}),
    ("hf_marian", 32, {"amp": "bf16", "compile": REDUCE}),
    ("hf_gemma2", 8, {"amp": "bf16"}),
    ("tv_video", 12, {"amp": "bf16"}),
    ("hf_clip", 48, {"amp": "bf16"}),
    ("hf_phi3", 8, {"amp": "bf16", "checkpoint": 1}),
    ("timm_beit", 32, {"amp": "bf16"}),
    ("hf_segformer", 16, {"amp": "bf16"}),
    ("timm_mixer", 96, {"amp": "bf16", "compile": REDUCE}),
    ("hf_bloom", 12, {"amp": "fp16"}),
    ("tv_shufflenet", 128, {"amp": "bf16"}),
    ("hf_electra", 48, {"amp": "bf16"}),
    ("timm_nfnet", 48, {"tf32": True}),
    ("hf_albert", 32, {"amp": "bf16"}),
    ("hf_gemma2", 6, {}),
    ("tv_mnasnet", 128, {"amp": "bf16"}),
]
"""A second set of them, declared after the first was measured and before this was."""
_SEARCHED: list[tuple[str, str, int, dict[str, Any]]] = [
    (TEXT, "logged_text", 12, {"amp": "bf16", "compile": AUTOTUNE}),
    (SIGNALS, "coded_images", 96, {"amp": "bf16", "compile": AUTOTUNE_GRAPHS}),
    (NEVER_SEEN, "latents_reader", 12, {"tf32": True, "compile": AUTOTUNE_GRAPHS}),
    (SIGNALS, "denoising", 16, {"amp": "bf16", "compile": AUTOTUNE}),
    (SIGNALS, "attended_edges", 16, {"amp": "bf16", "compile": AUTOTUNE_GRAPHS}),
]
"""Trainings whose kernels inductor searches for: no rule of a search was made with these families.

Declared before they were measured.
"""


def compiled() -> Iterator[Config]:
    """Yield the configurations, the most informative ones first."""
    sets = [(COMPILED, *row) for row in _SETS] + [(NEVER_SEEN, *row) for row in _FRESH]
    sets += _NEW + _SEARCHED
    for module, name, batch, toggles in sets:
        given = {"optimizer": "sgd" if "resnet" in name else "adamw", "compile": "default"}
        yield Config(f"{module}:{name}", batch, gib=9, **{**given, **toggles})
    fresh = [("bench.predict.families_compiled_libraries", *row) for row in _LIBRARIES_FRESH]
    for module, name, batch, toggles in _LIBRARIES + fresh:
        yield Config(f"{module}:{name}", batch, gib=9, **{"compile": "default", **toggles})


def request_of(config: Config) -> Request:
    names = {one.name for one in fields(Request)}
    given = {key: value for key, value in config.toggles().items() if key in names}
    mode = config.compile
    given |= {"cuda_graphs": mode in CUDA_GRAPHS, "max_autotune": mode in SEARCHING}
    return Request(**{**given, "compile": config.compiled_whole})


NEW = ",".join([*(f"{name}-b{batch}-*" for _, name, batch, _ in _SEARCHED), "*maxvit*", "*mixer*"])
"""Patterns of the names of the newest cases."""
CASES = [Case(config.name, request_of(config), ranks=1) for config in compiled()]

if __name__ == "__main__":
    raise SystemExit(main("truth_compiled", CASES, (__doc__ or "").splitlines()[0]))
