"""Model families of torchvision and transformers that predictions are judged on.

They are made from their configurations, without weights. Only the factories import the two
libraries, so the rest of the tests needs neither.

The form is that of ``families.py``. Most of torchvision has no checkpointing of its own, so its
blocks are wrapped from outside.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recompute

from .families import Made

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


# ── torchvision ───────────────────────────────────────────────────────────────────────────────────


def _again(module: nn.Module) -> None:
    inner = module.forward
    module.forward = lambda *inputs: recompute(inner, *inputs, use_reentrant=False)


def _vision(name: str, blocks: tuple[str, ...], optimizer: str = "sgd") -> Callable[..., Made]:
    """Return a factory for a model of torchvision.

    ``blocks``: the names of the classes that are the repeated part; none where the model has a
    switch of its own.
    """

    def factory(batch: int, device: Any, checkpoint: bool = False) -> Made:
        import torchvision

        options = {} if blocks else {"memory_efficient": checkpoint}
        model = getattr(torchvision.models, name)(weights=None, **options).to(device)
        if checkpoint:
            for module in list(model.modules()):
                if type(module).__name__ in blocks:
                    _again(module)
        images = torch.randn(batch, 3, 224, 224, device=device)
        targets = torch.randint(1000, (batch,), device=device)

        def forward() -> Tensor:
            return functional.cross_entropy(model(images), targets)

        if optimizer == "sgd":
            return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), forward
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4), forward

    return factory


tv_resnet50 = _vision("resnet50", ("Bottleneck",))
tv_vit_b_16 = _vision("vit_b_16", ("EncoderBlock",), "adamw")
tv_convnext_tiny = _vision("convnext_tiny", ("CNBlock",), "adamw")
tv_efficientnet_b0 = _vision("efficientnet_b0", ("MBConv",))
tv_densenet121 = _vision("densenet121", ())
tv_swin_t = _vision("swin_t", ("SwinTransformerBlock",), "adamw")


# ── transformers ──────────────────────────────────────────────────────────────────────────────────


def _made(model: Any, device: Any, checkpoint: bool, forward: Callable[[Any], Tensor]) -> Made:
    model = model.to(device)
    model.train()
    if checkpoint:
        model.gradient_checkpointing_enable()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), lambda: forward(model)


def _text(device: Any, words: int, batch: int, length: int) -> Tensor:
    return torch.randint(1, words, (batch, length), device=device)


def hf_gpt2(batch: int, device: Any, checkpoint: bool = False) -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = _text(device, 50257, batch, 512)
    model = GPT2LMHeadModel(GPT2Config())
    return _made(
        model, device, checkpoint, lambda model: model(input_ids=tokens, labels=tokens).loss
    )


def hf_bert(batch: int, device: Any, checkpoint: bool = False) -> Made:
    from transformers import BertConfig, BertForMaskedLM

    length = 256
    tokens = _text(device, 30522, batch, length)
    mask = (torch.arange(length, device=device)[None, :] < length - 16).expand(batch, length).long()
    labels = torch.where(torch.rand(tokens.shape, device=device) < 0.15, tokens, -100)
    model = BertForMaskedLM(BertConfig())
    return _made(
        model,
        device,
        checkpoint,
        lambda model: model(input_ids=tokens, attention_mask=mask, labels=labels).loss,
    )


def hf_distilbert(batch: int, device: Any, checkpoint: bool = False) -> Made:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    tokens = _text(device, 30522, batch, 256)
    labels = torch.randint(4, (batch,), device=device)
    model = DistilBertForSequenceClassification(DistilBertConfig(num_labels=4))
    return _made(
        model, device, checkpoint, lambda model: model(input_ids=tokens, labels=labels).loss
    )


def hf_t5(batch: int, device: Any, checkpoint: bool = False) -> Made:
    from transformers import T5Config, T5ForConditionalGeneration

    tokens, labels = _text(device, 32128, batch, 256), _text(device, 32128, batch, 64)
    config = T5Config(
        d_model=512, d_ff=2048, num_layers=6, num_heads=8, use_cache=False, decoder_start_token_id=0
    )
    model = T5ForConditionalGeneration(config)
    return _made(
        model, device, checkpoint, lambda model: model(input_ids=tokens, labels=labels).loss
    )


def hf_llama(batch: int, device: Any, checkpoint: bool = False) -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    tokens = _text(device, 32000, batch, 1024)
    model = LlamaForCausalLM(config)
    return _made(
        model, device, checkpoint, lambda model: model(input_ids=tokens, labels=tokens).loss
    )


def hf_vit(batch: int, device: Any, checkpoint: bool = False) -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    images = torch.randn(batch, 3, 224, 224, device=device)
    labels = torch.randint(10, (batch,), device=device)
    model = ViTForImageClassification(ViTConfig(num_labels=10))
    return _made(
        model, device, checkpoint, lambda model: model(pixel_values=images, labels=labels).loss
    )
