"""Models of torchvision, timm and transformers for compiled trainings, as people take them.

No rule of compiled trainings was made with them. The same form as in ``families.py``; only the
factories import the libraries. Each was declared before it was measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .families import Made, adamw
from .families_held_out import images_of, of_timm, of_torchvision, text_of

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

tv_maxvit = images_of(of_torchvision("maxvit_t"))
tv_shufflenet = images_of(of_torchvision("shufflenet_v2_x1_5"))
tv_mnasnet = images_of(of_torchvision("mnasnet1_0"))
timm_mixer = images_of(of_timm("mixer_s16_224"))
timm_beit = images_of(of_timm("beit_base_patch16_224"))
timm_nfnet = images_of(of_timm("nf_resnet50"))

hf_gemma2 = text_of(
    "Gemma2ForCausalLM", "Gemma2Config", 512, vocab_size=40000, hidden_size=768,
    intermediate_size=2304, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
    head_dim=96, sliding_window=256,
)  # fmt: skip
hf_phi3 = text_of(
    "Phi3ForCausalLM", "Phi3Config", 640, vocab_size=32064, hidden_size=768,
    intermediate_size=2048, num_hidden_layers=10, num_attention_heads=12, num_key_value_heads=12,
    pad_token_id=0,
)  # fmt: skip
hf_albert = text_of(
    "AlbertForMaskedLM", "AlbertConfig", 256, vocab_size=30000, hidden_size=768,
    intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
)  # fmt: skip
hf_bloom = text_of(
    "BloomForCausalLM", "BloomConfig", 384, vocab_size=50000, hidden_size=640, n_layer=10, n_head=10
)
hf_marian = text_of(
    "MarianMTModel", "MarianConfig", 128, vocab_size=32000, d_model=512, encoder_layers=6,
    decoder_layers=6, encoder_ffn_dim=2048, decoder_ffn_dim=2048, encoder_attention_heads=8,
    decoder_attention_heads=8, pad_token_id=0, decoder_start_token_id=0,
)  # fmt: skip


def _with(kind: str, config: str, options: dict[str, Any], inputs: Callable[..., Any]) -> Any:
    """Return a factory for a model of transformers that has its own loss."""

    def factory(batch: int, device: Any, checkpoint: bool = False) -> Made:
        import transformers

        model = getattr(transformers, kind)(getattr(transformers, config)(**options)).to(device)
        model.train()
        if checkpoint:
            model.gradient_checkpointing_enable()
        given = inputs(batch, device)
        return adamw(model, lambda: model(**given).loss)

    return factory


def _maps(batch: int, device: Any) -> dict[str, Tensor]:
    labels = torch.randint(20, (batch, 256, 256), device=device)
    return {"pixel_values": torch.randn(batch, 3, 256, 256, device=device), "labels": labels}


def _pairs(batch: int, device: Any) -> dict[str, Any]:
    words = torch.randint(1, 20000, (batch, 48), device=device)
    images = torch.randn(batch, 3, 224, 224, device=device)
    return {"input_ids": words, "pixel_values": images, "return_loss": True}


def _answers(batch: int, device: Any) -> dict[str, Tensor]:
    words = torch.randint(1, 30000, (batch, 320), device=device)
    present = (torch.arange(320, device=device) < 300).long().expand(batch, -1)
    places = torch.randint(300, (batch,), device=device)
    ends = torch.randint(300, (batch,), device=device)
    return {
        "input_ids": words, "attention_mask": present, "start_positions": places,
        "end_positions": ends,
    }  # fmt: skip


hf_segformer = _with(
    "SegformerForSemanticSegmentation", "SegformerConfig", {"num_labels": 20}, _maps
)
hf_clip = _with(
    "CLIPModel", "CLIPConfig",
    {
        "text_config": {"vocab_size": 20000, "num_hidden_layers": 6, "eos_token_id": 2},
        "vision_config": {"num_hidden_layers": 6, "patch_size": 16},
    },
    _pairs,
)  # fmt: skip
hf_electra = _with(
    "ElectraForQuestionAnswering", "ElectraConfig",
    {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}, _answers,
)  # fmt: skip


def tv_video(batch: int, device: Any) -> Made:
    """Clips of sixteen frames of 112², with convolutions in three dimensions."""
    import torchvision

    model = torchvision.models.video.r2plus1d_18(weights=None, num_classes=100).to(device)
    clips = torch.randn(batch, 3, 16, 112, 112, device=device)
    labels = torch.randint(100, (batch,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, lambda: functional.cross_entropy(model(clips), labels)
