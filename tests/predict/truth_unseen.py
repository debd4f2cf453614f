"""The configurations of ``families_unseen*.py`` whose real peaks are measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .truth_table import Config

UNSEEN, TEXT = "tests.predict.families_unseen", "tests.predict.families_unseen_text"
_TEXT = ("translator", "narrow_decoder", "expert_text", "tagger", "sound")
# Factory, a small and a large batch, a guess at the GiB of both, whether it takes checkpoint.
FAMILIES: list[tuple[str, int, int, float, float, bool]] = [
    ("mixer", 24, 96, 4, 12, True),
    ("vgg_like", 12, 48, 5, 10, False),
    ("mobile_like", 48, 160, 4, 10, True),
    ("denoiser", 8, 40, 3, 12, True),
    ("autoencoder", 24, 200, 3, 6, False),
    ("translator", 12, 48, 4, 12, False),
    ("narrow_decoder", 2, 7, 8, 16, True),
    ("expert_text", 12, 40, 4, 9, False),
    ("tagger", 30, 250, 1, 3, False),
    ("sound", 6, 30, 3, 10, True),
    ("graph", 5, 30, 2, 8, False),
    ("towers", 24, 100, 4, 12, True),
    ("tabular", 700, 20000, 1, 4, False),
    ("tv_mobilenet", 24, 96, 3, 8, False),
    ("tv_regnet", 24, 96, 3, 8, False),
    ("hf_opt", 3, 10, 5, 12, True),
    ("hf_bart", 5, 20, 4, 10, False),
]
_PATTERNS: list[tuple[int, dict[str, Any]]] = [
    (0, {"optimizer": "adamw"}),
    (1, {"optimizer": "adamw", "amp": "bf16"}),
    (1, {"optimizer": "adamw", "fused": True}),
    (0, {"optimizer": "sgd", "amp": "fp16"}),
    (1, {"optimizer": "adamw", "amp": "bf16", "checkpoint": 1}),
    (0, {"optimizer": "adamw", "amp": "bf16", "accumulate": 3}),
]


def unseen() -> Iterator[Config]:
    for place, toggles in _PATTERNS:
        for name, small, large, low, high, takes in FAMILIES:
            if takes or not toggles.get("checkpoint"):
                yield Config(
                    f"{TEXT if name in _TEXT else UNSEEN}:{name}",
                    (small, large)[place],
                    gib=(low, high)[place],
                    **toggles,
                )
