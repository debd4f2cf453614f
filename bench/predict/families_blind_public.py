"""Models of torchvision and transformers that nobody has predicted: see ``families_blind.py``.

From their configurations, without weights; both libraries are imported by the factories only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint_sequential

from .families import Made
from .families_blind import adamw, made

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


# ── torchvision ───────────────────────────────────────────────────────────────────────────────────


def _labelled(batch: int, pixels: int, device: Any) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, pixels, pixels, device=device), torch.randint(
        1000, (batch,), device=device
    )


def tv_efficientnet_v2(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """21 M parameters, images of 224². Checkpointed as a sequence of four segments."""
    import torchvision

    images, targets = _labelled(batch, 224, device)

    def forward(model: Any) -> Tensor:
        if checkpoint:
            x = checkpoint_sequential(model.features, 4, images, use_reentrant=False)
        else:
            x = model.features(images)
        logits = model.classifier(model.avgpool(x).flatten(1))
        return functional.cross_entropy(logits, targets, label_smoothing=0.1)

    optimizer = lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, momentum=0.9, eps=1e-3)  # noqa: E731
    return made(torchvision.models.efficientnet_v2_s(weights=None), device, forward, optimizer)


def tv_swin_v2(batch: int, device: Any) -> Made:
    """Swin V2 with 28 M parameters, for images of 256².

    It has windows with cosine attention and biases that a perceptron computes.
    """
    import torchvision

    images, targets = _labelled(batch, 256, device)
    forward = lambda model: functional.cross_entropy(model(images), targets)  # noqa: E731
    return made(torchvision.models.swin_v2_t(weights=None), device, forward)


def tv_inception(batch: int, device: Any) -> Made:
    """27 M parameters, images of 299², with the loss of the auxiliary classifier."""
    import torchvision

    images, targets = _labelled(batch, 299, device)

    def forward(model: nn.Module) -> Tensor:
        main, auxiliary = model(images)
        return functional.cross_entropy(main, targets) + 0.4 * functional.cross_entropy(
            auxiliary, targets
        )

    return made(
        torchvision.models.inception_v3(weights=None, init_weights=False), device, forward, _sgd
    )


def tv_deeplab(batch: int, device: Any) -> Made:
    """42 M parameters, images of 320², 21 classes for every pixel, with the auxiliary head."""
    import torchvision

    images = torch.randn(batch, 3, 320, 320, device=device)
    targets = torch.randint(21, (batch, 320, 320), device=device)
    targets[:, :8] = 255
    model = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=21, aux_loss=True
    )

    def forward(model: nn.Module) -> Tensor:
        said = model(images)
        main, auxiliary = (
            functional.cross_entropy(said[key], targets, ignore_index=255) for key in ("out", "aux")
        )
        return main + 0.5 * auxiliary

    return made(model, device, forward, _sgd)


def tv_simclr(batch: int, device: Any) -> Made:
    """12 M parameters: two views of every image of 160², each told from all the others."""
    import torchvision

    model = torchvision.models.resnet18(weights=None)
    model.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(inplace=True), nn.Linear(512, 128))
    images = torch.rand(batch, 3, 160, 160, device=device)
    own = torch.arange(2 * batch, device=device).roll(batch)
    same = torch.eye(2 * batch, dtype=torch.bool, device=device)

    def forward(model: nn.Module) -> Tensor:
        one = images.flip(-1) + 0.1 * torch.randn_like(images)
        two = images.mean(1, keepdim=True).expand_as(images) + 0.1 * torch.randn_like(images)
        found = functional.normalize(model(torch.cat((one, two))), dim=1)
        return functional.cross_entropy(
            (found @ found.T / 0.1).masked_fill(same, float("-inf")), own
        )

    return made(model, device, forward, _sgd)


# ── transformers ──────────────────────────────────────────────────────────────────────────────────


def _public(
    model: Any,
    device: Any,
    checkpoint: bool,
    inputs: dict[str, Tensor],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = adamw,
) -> Made:
    if checkpoint:
        model.gradient_checkpointing_enable()
    return made(model, device, lambda model: model(**inputs).loss, optimizer)


def hf_whisper(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """73 M parameters: thirty seconds of sound as 3000 frames, 96 tokens of text."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        use_cache=False,
    )
    sound = torch.randn(batch, 80, 3000, device=device)
    labels = torch.randint(10, 50000, (batch, 96), device=device)
    inputs = {"input_features": sound, "labels": labels}
    return _public(WhisperForConditionalGeneration(config), device, checkpoint, inputs)


def hf_wav2vec2(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """wav2vec 2.0 with 94 M parameters and the CTC loss.

    It hears four seconds of sound, masked in time as its configuration has it.
    """
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(layerdrop=0.0, ctc_loss_reduction="mean", vocab_size=32)
    labels = torch.randint(1, 32, (batch, 48), device=device)
    inputs = {"input_values": torch.randn(batch, 64000, device=device), "labels": labels}
    return _public(Wav2Vec2ForCTC(config), device, checkpoint, inputs)


def hf_t5_gated(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """A small T5 of 60 M parameters with relative positions and gated layers.

    384 tokens in, 96 out; Adafactor.
    """
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=512,
        d_kv=64,
        d_ff=1024,
        num_layers=8,
        num_heads=6,
        feed_forward_proj="gated-gelu",
        use_cache=False,
        decoder_start_token_id=0,
    )
    tokens = torch.randint(1, 32000, (batch, 384), device=device)
    inputs = {"input_ids": tokens, "labels": torch.randint(1, 32000, (batch, 96), device=device)}
    inputs["attention_mask"] = (torch.arange(384, device=device) < 320).long().expand(batch, -1)
    optimizer = lambda parameters: torch.optim.Adafactor(parameters, lr=1e-3)  # noqa: E731
    return _public(T5ForConditionalGeneration(config), device, checkpoint, inputs, optimizer)


def hf_deberta(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """92 M parameters, 224 tokens: attention to content and to positions apart."""
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        vocab_size=64000,
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=3072,
        type_vocab_size=0,
        relative_attention=True,
        position_buckets=128,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        num_labels=3,
    )
    tokens = torch.randint(1, 64000, (batch, 224), device=device)
    inputs = {"input_ids": tokens, "labels": torch.randint(3, (batch,), device=device)}
    return _public(DebertaV2ForSequenceClassification(config), device, checkpoint, inputs)


def hf_vit_mae(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """112 M parameters, images of 224² of which a quarter of the patches is seen."""
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    inputs = {"pixel_values": torch.randn(batch, 3, 224, 224, device=device)}
    return _public(ViTMAEForPreTraining(ViTMAEConfig()), device, checkpoint, inputs)
