"""List the configurations whose real peaks are measured.

They cover models × toggles, the most informative ones first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

OWN, VISION, PUBLIC = (
    "bench.predict.families",
    "bench.predict.families_vision",
    "bench.predict.families_public",
)
HELD_OUT = "bench.predict.families_held_out"

BLOCKS = "blocks"


@dataclass(frozen=True)
class Config:
    """One run.

    The toggles are those of ``gpuscope.predict.request.Request``; ``optimizer`` other than None
    takes the place of the factory's own, over the same parameters.
    """

    model: str
    batch: int
    amp: str = "off"
    accumulate: int = 1
    checkpoint: int = 0
    optimizer: str | None = None
    foreach: bool | None = None
    fused: bool | None = None
    set_to_none: bool = True
    tf32: bool = False
    cudnn_benchmark: bool = False
    deterministic: bool = False
    compile: str = ""
    """The mode in which ``torch.compile`` compiles the forward pass.

    "" for none, and :data:`BLOCKS` for a factory that compiles its blocks.
    """
    gib: float = 8.0
    """An estimate of the peak in GiB, for dividing the device among runs."""
    stacks: bool = False
    record: bool = True
    settings: str = ""
    """``PYTORCH_CUDA_ALLOC_CONF``; it needs a process of its own."""

    @property
    def name(self) -> str:
        words = [self.model.rpartition(":")[2], f"b{self.batch}", self.amp]
        words += ["ckpt"] if self.checkpoint else []
        words += [self.optimizer or "own"]
        words += [
            name
            for name in ("foreach", "fused", "tf32", "cudnn_benchmark", "deterministic")
            if getattr(self, name)
        ]
        words += [f"compiled_{self.compile.replace('-', '_')}"] if self.compile else []
        words += [f"acc{self.accumulate}"] if self.accumulate > 1 else []
        words += [] if self.set_to_none else ["zeroed"]
        words += [] if self.record else ["unrecorded"]
        words += (
            ["".join(c if c.isalnum() else "_" for c in self.settings)] if self.settings else []
        )
        return "-".join(words)

    @property
    def compiled_whole(self) -> bool:
        return self.compile not in ("", BLOCKS)

    def toggles(self) -> dict[str, Any]:
        """Return the toggles as in a row of the table."""
        given = asdict(self)
        for key in ("gib", "stacks", "record"):
            del given[key]
        return given


# Model, two batch sizes, estimates of the GiB of both in float32 without checkpointing.
FAMILIES: list[tuple[str, int, int, float, float]] = [
    (f"{OWN}:gpt_small", 4, 16, 4.5, 11.5),
    (f"{VISION}:resnet50", 16, 64, 3, 8.5),
    (f"{OWN}:bert_base", 8, 32, 5, 13),
    (f"{VISION}:unet_group", 4, 16, 6, 20),
    (f"{VISION}:lstm_lm", 20, 80, 2.5, 5),
    (f"{OWN}:vit_b16", 16, 64, 5, 14),
    (f"{VISION}:mlp", 1024, 16384, 4, 9),
    (f"{PUBLIC}:hf_gpt2", 4, 12, 5, 11),
    (f"{PUBLIC}:tv_resnet50", 16, 64, 3, 8.5),
    (f"{PUBLIC}:hf_bert", 8, 32, 5, 13),
    (f"{OWN}:gpt_tiny", 16, 64, 1, 2),
    (f"{OWN}:gpt_medium", 2, 6, 11, 21),
    (f"{OWN}:gpt_wide", 8, 32, 9, 16),
    (f"{OWN}:gpt_reentrant", 8, 24, 4, 10),
    (f"{OWN}:llama_like", 2, 8, 9, 25),
    (f"{OWN}:encoder_torch", 16, 64, 4, 12),
    (f"{VISION}:resnet50_last", 16, 64, 3, 8.5),
    (f"{VISION}:unet_batch", 8, 32, 3, 9),
    (f"{VISION}:convnext_like", 16, 64, 4, 13),
    (f"{VISION}:gru_lm", 32, 128, 2, 4),
    (f"{VISION}:mlp_small", 128, 4096, 1, 1),
    (f"{VISION}:dlrm_like", 2048, 16384, 3, 4),
    (f"{PUBLIC}:tv_vit_b_16", 16, 64, 5, 14),
    (f"{PUBLIC}:tv_convnext_tiny", 16, 64, 4, 13),
    (f"{PUBLIC}:tv_efficientnet_b0", 16, 64, 3, 8),
    (f"{PUBLIC}:tv_densenet121", 16, 64, 4, 12),
    (f"{PUBLIC}:tv_swin_t", 16, 48, 5, 12),
    (f"{PUBLIC}:hf_distilbert", 16, 64, 4, 10),
    (f"{PUBLIC}:hf_t5", 8, 32, 4, 10),
    (f"{PUBLIC}:hf_llama", 2, 6, 9, 22),
    (f"{PUBLIC}:hf_vit", 16, 64, 5, 14),
]
FULL = 10
"""This many of the first families are run with more combinations."""
PRESETS: list[tuple[str, int, int, float, float]] = [
    ("gpt-small", 8, 16, 7, 12),
    ("mlp-large", 4096, 8192, 6, 8),
    ("conv-large", 64, 256, 4, 11),
    ("conv-small", 32, 256, 1, 2),
]
_PATTERNS: list[tuple[int, dict[str, Any]]] = [
    (1, {"amp": "bf16", "foreach": True, "optimizer": "adamw"}),
    (0, {"foreach": True, "optimizer": "adamw"}),
    (0, {"amp": "bf16", "checkpoint": 1, "foreach": True, "optimizer": "adamw"}),
    (1, {"checkpoint": 1, "fused": True, "optimizer": "adamw"}),
    (0, {"amp": "fp16", "foreach": True, "optimizer": "adamw"}),
    (1, {"optimizer": "sgd"}),
    (1, {"amp": "fp16", "checkpoint": 1, "optimizer": "sgd"}),
    (0, {"amp": "bf16", "fused": True, "optimizer": "adamw"}),
]
_MORE: list[tuple[int, dict[str, Any]]] = [
    (1, {"amp": "fp16", "fused": True, "optimizer": "adamw"}),
    (0, {"checkpoint": 1, "foreach": True, "optimizer": "adamw"}),
    (1, {"amp": "bf16", "checkpoint": 1, "optimizer": "sgd"}),
    (0, {"amp": "fp16", "checkpoint": 1, "fused": True, "optimizer": "adamw"}),
]
_STACKED = {  # pattern → families whose operators are told apart
    0: {
        "gpt_small",
        "resnet50",
        "bert_base",
        "unet_group",
        "lstm_lm",
        "vit_b16",
        "hf_bert",
        "hf_t5",
        "convnext_like",
        "tv_swin_t",
        "resnet50_last",
        "dlrm_like",
        "gru_lm",
        "encoder_torch",
        "hf_llama",
    },
    1: {
        "gpt_small",
        "resnet50",
        "bert_base",
        "unet_batch",
        "lstm_lm",
        "encoder_torch",
        "tv_efficientnet_b0",
    },
    2: {"gpt_small", "resnet50"},
    4: {"resnet50", "gpt_tiny", "mlp_small"},
}


def families() -> Iterator[Config]:
    for number, (place, toggles) in enumerate(_PATTERNS):
        for model, small, large, low, high in FAMILIES:
            stacks = model.partition(":")[2] in _STACKED.get(number, ())
            yield Config(
                model, (small, large)[place], gib=(low, high)[place], stacks=stacks, **toggles
            )
    for place, toggles in _MORE:
        for model, small, large, low, high in FAMILIES[:FULL]:
            yield Config(model, (small, large)[place], gib=(low, high)[place], **toggles)


def extras() -> Iterator[Config]:
    """Return toggles of some runs only, and very small models, which show workspaces."""
    adamw: dict[str, Any] = {"optimizer": "adamw"}
    for model, small, _large, low, _high in FAMILIES[:6]:
        yield Config(model, small, accumulate=2, amp="bf16", gib=low, **adamw)
    for model, small, _large, low, _high in FAMILIES[:4]:
        yield Config(model, small, accumulate=2, set_to_none=False, gib=low, **adamw)
        yield Config(model, small, tf32=True, gib=low, **adamw)
        yield Config(model, small, optimizer=None, gib=low)
        yield Config(model, 1, gib=low, **adamw)
        yield Config(model, 2, amp="bf16", checkpoint=1, gib=low, **adamw)
    for name, low in (("resnet50", 9.0), ("unet_group", 20.0)):
        yield Config(f"{VISION}:{name}", 16, cudnn_benchmark=True, gib=low, **adamw)
        yield Config(f"{VISION}:{name}", 16, cudnn_benchmark=True, amp="bf16", gib=low, **adamw)
        yield Config(f"{VISION}:{name}", 16, deterministic=True, gib=low, **adamw)
    yield Config(f"{OWN}:gpt_small", 4, optimizer="adamw", foreach=False, gib=5)
    yield Config(f"{VISION}:mlp", 1024, optimizer="adam", gib=4)
    for model, small, large, low, high in PRESETS:
        yield Config(model, small, gib=low, optimizer="adamw")
        yield Config(model, large, amp="bf16", gib=high, optimizer="adamw")
        if model != "mlp-large" and model != "conv-small":
            yield Config(model, small, amp="bf16", checkpoint=1, gib=low, optimizer="adamw")
            yield Config(model, large, amp="fp16", gib=high, optimizer="sgd")


def alone() -> list[Config]:
    """Return runs to make one at a time, so that the device's figures belong to them alone."""
    return [
        Config(f"{OWN}:gpt_small", 8, optimizer="adamw", gib=8),
        Config(
            f"{OWN}:gpt_small", 8, amp="bf16", checkpoint=1, optimizer="adamw", gib=8, stacks=True
        ),
        Config(f"{VISION}:resnet50", 32, amp="bf16", optimizer="sgd", gib=8),
        Config(f"{VISION}:lstm_lm", 20, optimizer="adamw", gib=4),
        Config(f"{OWN}:bert_base", 8, amp="fp16", optimizer="adamw", gib=5),
        Config(f"{VISION}:mlp_small", 128, optimizer="adamw", gib=1),
    ]


_HELD_OUT: list[tuple[str, int, int, float]] = [
    ("diffusion", 16, 56, 12),
    ("seq2seq", 16, 48, 6),
    ("speech", 12, 40, 4),
    ("mixer", 24, 80, 8),
    ("graph", 8, 40, 10),
    ("volume", 4, 12, 12),
    ("experts", 8, 24, 12),
    ("tv_vgg16_bn", 12, 40, 14),
    ("tv_mobilenet_v3_large", 24, 96, 8),
    ("tv_regnet_y_800mf", 24, 80, 8),
    ("timm_deit_small", 24, 80, 8),
    ("timm_resnext50", 12, 48, 9),
    ("timm_convnextv2_nano", 12, 48, 8),
    ("hf_opt", 6, 20, 16),
    ("hf_qwen2", 3, 10, 14),
    ("hf_neox", 6, 20, 12),
    ("hf_roberta", 6, 24, 10),
    ("hf_bart", 6, 20, 12),
    ("hf_mistral", 4, 12, 12),
]


def held_out() -> Iterator[Config]:
    """Return models that nothing was fitted to."""
    settings: list[tuple[int, dict[str, Any]]] = [
        (0, {"amp": "bf16"}),
        (1, {"amp": "bf16", "checkpoint": 1}),
        (1, {"fused": True}),
        (0, {"amp": "fp16", "optimizer": "sgd"}),
        (0, {"checkpoint": 1, "foreach": True}),
        (1, {"tf32": True}),
    ]
    for place, toggles in settings:
        for name, small, large, gib in _HELD_OUT:
            options: dict[str, Any] = {"optimizer": "adamw", **toggles}
            yield Config(f"{HELD_OUT}:{name}", (small, large)[place], gib=gib, **options)


def unrecorded(configs: list[Config]) -> list[Config]:
    """Return some of them again without history, because recording must not change a peak."""
    with_stacks = [config for config in configs if config.stacks][:4]
    without = [config for config in configs if not config.stacks][:4]
    return [replace(config, record=False, stacks=False) for config in with_stacks + without]


def table() -> list[Config]:
    configs = list(families())
    return configs + list(extras()) + unrecorded(configs)


def expandable() -> list[Config]:
    """Return other settings of the allocator, each in a process of its own."""
    chosen = [
        Config(f"{OWN}:gpt_small", 8, amp="bf16", optimizer="adamw", gib=8),
        Config(f"{VISION}:resnet50", 64, optimizer="sgd", gib=8.5),
        Config(f"{VISION}:unet_group", 4, amp="fp16", optimizer="adamw", gib=6),
    ]
    settings = ("expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8")
    return [replace(config, settings=text) for text in settings for config in chosen]


def bisected() -> list[tuple[Config, float]]:
    """Return configurations whose largest batch is searched, and the first cap in GiB."""
    return [
        (Config(f"{OWN}:gpt_small", 1, amp="bf16", optimizer="adamw"), 11.0),
        (Config(f"{OWN}:gpt_small", 1, checkpoint=1, optimizer="adamw"), 8.0),
        (Config(f"{OWN}:bert_base", 1, optimizer="adamw", fused=True), 9.0),
        (Config(f"{OWN}:vit_b16", 1, amp="fp16", optimizer="adamw"), 6.0),
        (Config(f"{VISION}:resnet50", 1, optimizer="sgd"), 4.0),
        (Config(f"{VISION}:unet_group", 1, amp="bf16", optimizer="adamw"), 12.0),
        (Config(f"{OWN}:llama_like", 1, amp="bf16", checkpoint=1, optimizer="adamw"), 10.0),
        (Config(f"{VISION}:lstm_lm", 1, optimizer="adamw"), 2.2),
        (Config(f"{PUBLIC}:tv_convnext_tiny", 1, amp="bf16", optimizer="adamw"), 4.0),
        (Config(f"{PUBLIC}:hf_bert", 1, amp="bf16", optimizer="adamw"), 8.0),
    ]


def bisected_held_out() -> list[tuple[Config, float]]:
    """The same for models that nothing was fitted to."""
    return [
        (Config(f"{HELD_OUT}:diffusion", 1, amp="bf16", optimizer="adamw"), 4.0),
        (Config(f"{HELD_OUT}:seq2seq", 1, amp="bf16", optimizer="adamw"), 3.0),
        (Config(f"{HELD_OUT}:tv_regnet_y_800mf", 1, amp="fp16", optimizer="adamw"), 2.5),
        (
            Config(f"{HELD_OUT}:timm_deit_small", 1, amp="bf16", checkpoint=1, optimizer="adamw"),
            1.2,
        ),
        (Config(f"{HELD_OUT}:hf_qwen2", 1, amp="bf16", optimizer="adamw"), 12.0),
        (Config(f"{HELD_OUT}:hf_bart", 1, optimizer="sgd"), 8.0),
        (
            Config(
                f"{HELD_OUT}:hf_opt", 1, amp="bf16", checkpoint=1, optimizer="adamw", fused=True
            ),
            9.0,
        ),
    ]
