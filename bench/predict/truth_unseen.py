"""List the configurations of models that nobody has predicted, whose real peaks are measured.

The families are those of ``families_blind*.py`` and ``families_frozen.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .truth_table import Config

BLIND = "bench.predict.families_blind"


@dataclass(frozen=True)
class Blind:
    """A factory of the module ``BLIND + part`` and two batch sizes.

    ``gib`` is a guess at the GiB of both in float32.
    """

    part: str
    name: str
    batches: tuple[int, int]
    gib: tuple[float, float]
    checkpoint: bool = False
    """Takes ``checkpoint``."""
    hooked: bool = False
    """Its optimizer does more than step, so no other can replace it."""

    @property
    def model(self) -> str:
        return f"{BLIND}{self.part}:{self.name}"


BLIND_FAMILIES = [
    Blind("", "chunked_llama", (2, 10), (5, 12), checkpoint=True),
    Blind("", "alibi_clipped", (4, 16), (5, 13), checkpoint=True, hooked=True),
    Blind("", "lora_frozen", (2, 10), (5, 14), checkpoint=True),
    Blind("", "gru_tied", (20, 160), (3, 9)),
    Blind("", "mamba_scan", (12, 64), (3, 8), checkpoint=True),
    Blind("_vision", "anchors", (6, 40), (3, 9)),
    Blind("_vision", "super_resolution", (16, 96), (3, 9), checkpoint=True),
    Blind("_vision", "gan_step", (16, 128), (3, 9)),
    Blind("_vision", "conv_lstm", (8, 64), (3, 7)),
    Blind("_vision", "dit_averaged", (8, 48), (4, 10), checkpoint=True, hooked=True),
    Blind("_public", "tv_efficientnet_v2", (12, 64), (4, 13), checkpoint=True),
    Blind("_public", "tv_swin_v2", (10, 56), (4, 14)),
    Blind("_public", "tv_inception", (12, 72), (3, 10)),
    Blind("_public", "tv_deeplab", (6, 28), (5, 15)),
    Blind("_public", "tv_simclr", (24, 256), (3, 10)),
    Blind("_public", "hf_whisper", (4, 24), (5, 14), checkpoint=True),
    Blind("_public", "hf_wav2vec2", (4, 24), (5, 14), checkpoint=True),
    Blind("_public", "hf_t5_gated", (6, 40), (4, 14), checkpoint=True),
    Blind("_public", "hf_deberta", (6, 32), (5, 14), checkpoint=True),
    Blind("_public", "hf_vit_mae", (12, 64), (4, 11), checkpoint=True),
    Blind("_signals", "wavenet", (4, 28), (3, 11), checkpoint=True),
    Blind("_signals", "pointnet", (32, 256), (3, 9)),
    Blind("_signals", "dcn_bags", (4096, 65536), (2, 6)),
    Blind("_signals", "nerf", (512, 3000), (3, 13)),
]
_ALL: list[tuple[int, dict[str, Any]]] = [
    (0, {}),
    (1, {"optimizer": "adamw", "amp": "bf16"}),
    (0, {"optimizer": "adamw", "amp": "fp16", "fused": True}),
    (1, {"optimizer": "adamw", "tf32": True, "foreach": True}),
]
# Two more for each model, alternating.
_CHECKPOINTED: list[list[tuple[int, dict[str, Any]]]] = [
    [(1, {"amp": "bf16", "checkpoint": 1}), (0, {"optimizer": "sgd", "checkpoint": 1})],
    [
        (1, {"optimizer": "sgd", "amp": "fp16", "checkpoint": 1}),
        (0, {"optimizer": "adamw", "amp": "bf16", "checkpoint": 1, "accumulate": 4}),
    ],
]
_WHOLE: list[list[tuple[int, dict[str, Any]]]] = [
    [(1, {"optimizer": "sgd", "amp": "bf16"}), (0, {"amp": "bf16", "accumulate": 4})],
    [(1, {"amp": "fp16"}), (0, {"optimizer": "adamw", "fused": True, "accumulate": 4})],
]


def _of(family: Blind, place: int, toggles: dict[str, Any]) -> Config:
    if family.hooked:
        toggles = {
            key: value
            for key, value in toggles.items()
            if key not in ("optimizer", "foreach", "fused")
        }
    return Config(family.model, family.batches[place], gib=family.gib[place], **toggles)


def blind() -> Iterator[Config]:
    """Yield six configurations of every model.

    Those of one pattern come after those of another, so that a run cut short has all models.
    """
    turns = {True: 0, False: 0}
    wanted: list[list[Config]] = []
    for family in BLIND_FAMILIES:
        more = (_CHECKPOINTED if family.checkpoint else _WHOLE)[turns[family.checkpoint] % 2]
        turns[family.checkpoint] += 1
        wanted.append([_of(family, place, toggles) for place, toggles in (*_ALL, *more)])
    for row in zip(*wanted, strict=True):
        yield from row


FROZEN_FAMILIES = [
    ("headed_resnet", (32, 256), (2, 6)),
    ("headed_vit", (32, 256), (2, 6)),
    ("headed_bert", (16, 128), (2, 6)),
    ("student", (24, 96), (4, 14)),
    ("headed_unet", (8, 48), (2, 8)),
]


def frozen() -> Iterator[Config]:
    """Yield three configurations of every model whose backbone runs without gradients."""
    patterns: list[tuple[int, dict[str, Any]]] = [(0, {}), (1, {}), (1, {"amp": "bf16"})]
    for place, toggles in patterns:
        for name, batches, gib in FROZEN_FAMILIES:
            model = f"bench.predict.families_frozen:{name}"
            yield Config(model, batches[place], gib=float(gib[place]), **toggles)


def bisected_blind() -> list[tuple[Config, float]]:
    """Return configurations whose largest batch is searched, and the first cap in GiB."""
    models = {family.name: family.model for family in BLIND_FAMILIES}
    adamw: dict[str, Any] = {"optimizer": "adamw", "amp": "bf16"}
    return [
        (Config(models["chunked_llama"], 1, checkpoint=1, **adamw), 6.0),
        (Config(models["alibi_clipped"], 1, amp="bf16"), 9.0),
        (Config(models["lora_frozen"], 1, **adamw), 13.0),
        (Config(models["dit_averaged"], 1, amp="bf16"), 4.0),
        (Config(models["tv_swin_v2"], 1, **adamw), 4.0),
        (Config(models["tv_deeplab"], 1, amp="fp16", optimizer="sgd"), 6.5),
        (Config(models["hf_whisper"], 1, **adamw), 6.0),
        (Config(models["anchors"], 1, optimizer="adamw", fused=True), 3.5),
    ]
