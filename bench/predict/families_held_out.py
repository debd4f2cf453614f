"""Models that were not used to make the predictions.

They bring operators, shapes and libraries that the other families lack.

The form is that of ``families.py``. Those of torchvision, timm and transformers import their
library when they are called.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recompute

from .families import Made, Repeated, adamw, labelled

# ── own ───────────────────────────────────────────────────────────────────────────────────────────


class Denoiser(nn.Module):
    """A small diffusion U-Net: residual blocks with a time embedding.

    It has attention on the two lowest levels.
    """

    def __init__(self, width: int, again: bool):
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        self.again = again
        self.time = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width)
        )
        self.start = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(
            TimedBlock(into, out, 4 * width) for into, out in ((width, width), *_pairs(sizes))
        )
        self.attend = nn.ModuleList(Attend(size) for size in sizes[1:])
        self.up = nn.ModuleList(
            TimedBlock(2 * into, out, 4 * width)
            for into, out in ((sizes[2], sizes[1]), (sizes[1], sizes[0]), (sizes[0], sizes[0]))
        )
        self.end = nn.Sequential(
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1)
        )
        self.width = width

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        rates = torch.exp(
            torch.arange(self.width // 2, device=x.device)
            * (-math.log(10000.0) / (self.width // 2))
        )
        angles = when[:, None] * rates
        time = self.time(torch.cat((angles.sin(), angles.cos()), dim=1))
        x, kept = self.start(x), []
        for level, block in enumerate(self.down):
            x = recompute(block, x, time, use_reentrant=False) if self.again else block(x, time)
            if level:
                x = self.attend[level - 1](x)
            kept.append(x)
            x = functional.avg_pool2d(x, 2)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = torch.cat((x, kept.pop()), dim=1)
            x = recompute(block, x, time, use_reentrant=False) if self.again else block(x, time)
        return self.end(x)


def _pairs(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(sizes[at], sizes[at + 1]) for at in range(len(sizes) - 1)]


class TimedBlock(nn.Module):
    def __init__(self, into: int, out: int, time: int):
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, into), nn.SiLU(), nn.Conv2d(into, out, 3, padding=1)
        )
        self.shift = nn.Linear(time, out)
        self.second = nn.Sequential(
            nn.GroupNorm(8, out), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(out, out, 3, padding=1)
        )
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(x) + self.shift(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(y)


class Attend(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.into, self.out = (
            nn.GroupNorm(8, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, across = x.shape
        parts = self.into(self.norm(x)).reshape(batch, 3, 4, width // 4, height * across)
        query, key, value = (part.transpose(2, 3) for part in parts.unbind(1))
        y = functional.scaled_dot_product_attention(query, key, value)
        return x + self.out(y.transpose(2, 3).reshape(batch, width, height, across))


def diffusion(batch: int, device: Any, checkpoint: bool = False) -> Made:
    model = Denoiser(96, checkpoint).to(device)
    images = torch.randn(batch, 3, 64, 64, device=device)

    def forward() -> Tensor:
        noise = torch.randn_like(images)
        when = torch.rand(batch, device=images.device)
        mixed = images * (1 - when)[:, None, None, None] + noise * when[:, None, None, None]
        return functional.mse_loss(model(mixed, when * 1000), noise)

    return adamw(model, forward)


def seq2seq(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """torch's whole transformer with causal and padding masks."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(12000, 384, padding_idx=0)
            self.body = nn.Transformer(384, 6, 4, 4, 1536, dropout=0.1, batch_first=True)
            self.head = nn.Linear(384, 12000)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            causal = nn.Transformer.generate_square_subsequent_mask(
                target.shape[1], device=target.device
            )
            padding = source == 0
            y = self.body(
                self.words(source),
                self.words(target),
                tgt_mask=causal,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,
            )
            return self.head(y)

    model = Net().to(device)
    source = torch.randint(0, 12000, (batch, 200), device=device)
    target = torch.randint(1, 12000, (batch, 121), device=device)

    def forward() -> Tensor:
        logits = model(source, target[:, :-1])
        return functional.cross_entropy(
            logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1
        )

    return adamw(model, forward)


def speech(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """Strided convolutions, a bidirectional LSTM of three layers, the CTC loss."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Sequential(
                nn.Conv1d(80, 256, 5, 2, 2),
                nn.BatchNorm1d(256),
                nn.GELU(),
                nn.Conv1d(256, 384, 5, 2, 2),
                nn.GELU(),
            )
            self.layers = nn.LSTM(384, 320, 3, batch_first=True, bidirectional=True)
            self.head = nn.Linear(640, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layers(self.front(x).transpose(1, 2))[0])

    model = Net().to(device)
    sound = torch.randn(batch, 80, 800, device=device)
    targets = torch.randint(1, 64, (batch, 40), device=device)
    lengths = torch.full((batch,), 200), torch.full((batch,), 40)

    def forward() -> Tensor:
        spoken = model(sound).float().log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(spoken, targets, *lengths)

    return adamw(model, forward)


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.along = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.second(x))


def mixer(batch: int, device: Any, checkpoint: bool = False) -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 448, 14, 14)
            self.blocks = Repeated([MixerBlock(256, 448) for _ in range(10)], checkpoint)
            self.head = nn.Linear(448, 100)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(
                self.blocks.run(self.patches(images).flatten(2).transpose(1, 2)).amax(dim=1)
            )

    model = Net().to(device)
    images, targets = (
        torch.randn(batch, 3, 224, 224, device=device),
        torch.randint(100, (batch,), device=device),
    )
    return adamw(model, lambda: functional.cross_entropy(model(images), targets))


def graph(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """Message passing over a fixed graph: gathers along edges, sums at nodes."""
    nodes, edges = 500 * batch, 6000 * batch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Linear(100, 256)
            self.layers = nn.ModuleList(nn.Linear(512, 256) for _ in range(4))
            self.norms = nn.ModuleList(nn.BatchNorm1d(256) for _ in range(4))
            self.head = nn.Linear(256, 40)

        def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
            x = torch.relu(self.into(x))
            for layer, norm in zip(self.layers, self.norms, strict=True):
                summed = torch.zeros_like(x).index_add(0, target, x[source])
                x = torch.relu(norm(layer(torch.cat((x, summed), dim=1))))
            return self.head(x)

    model = Net().to(device)
    x, labels = torch.randn(nodes, 100, device=device), torch.randint(40, (nodes,), device=device)
    source, target = torch.randint(nodes, (2, edges), device=device)
    return adamw(model, lambda: functional.cross_entropy(model(x, source, target), labels))


def volume(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """An autoencoder of three-dimensional convolutions with instance norm and PReLU."""

    def step(into: int, out: int, stride: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv3d(into, out, 3, stride, 1), nn.InstanceNorm3d(out, affine=True), nn.PReLU(out)
        )

    up = [
        nn.Sequential(nn.ConvTranspose3d(into, into // 2, 2, 2), nn.LeakyReLU(0.1))
        for into in (128, 64, 32)
    ]
    blocks = [step(1, 16, 1), step(16, 32, 2), step(32, 64, 2), step(64, 128, 2), *up]
    model = nn.Sequential(Runner(blocks, checkpoint), nn.Conv3d(16, 1, 1)).to(device)
    x = torch.randn(batch, 1, 64, 64, 64, device=device)
    return adamw(model, lambda: functional.l1_loss(model(x), x))


class Runner(nn.Module):
    def __init__(self, blocks: list[nn.Module], again: bool):
        super().__init__()
        self.blocks = Repeated(blocks, again)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks.run(x)


def experts(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """A language model whose MLPs are mixtures of eight experts.

    Each expert is weighed for every token, and the top two are kept.
    """

    class Mixture(nn.Module):
        def __init__(self, width: int, count: int):
            super().__init__()
            self.gate = nn.Linear(width, count)
            self.first = nn.Parameter(torch.randn(count, width, 2 * width) * 0.02)
            self.second = nn.Parameter(torch.randn(count, 2 * width, width) * 0.02)
            self.norm = nn.LayerNorm(width)

        def forward(self, x: Tensor) -> Tensor:
            flat = self.norm(x).flatten(0, 1)
            best, which = self.gate(flat).softmax(-1).topk(2)
            share = torch.zeros(
                flat.shape[0], self.first.shape[0], device=x.device, dtype=best.dtype
            )
            share = share.scatter(1, which, best)
            hidden = functional.silu(torch.einsum("td,edh->eth", flat, self.first))
            mixed = torch.einsum("eth,ehd,te->td", hidden, self.second, share.to(hidden.dtype))
            return x + mixed.view_as(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(16000, 320)
            self.blocks = Repeated([Mixture(320, 8) for _ in range(6)], checkpoint)
            self.head = nn.Linear(320, 16000, bias=False)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.blocks.run(self.words(tokens)))

    model = Net().to(device)
    tokens = torch.randint(16000, (batch, 257), device=device)

    def forward() -> Tensor:
        return functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )

    return adamw(model, forward)


# ── torchvision, timm ─────────────────────────────────────────────────────────────────────────────


def images_of(build: Callable[[bool], nn.Module], pixels: int = 224) -> Callable[..., Made]:
    def factory(batch: int, device: Any, checkpoint: bool = False) -> Made:
        model = build(checkpoint).to(device)
        return labelled(model, torch.randn(batch, 3, pixels, pixels, device=device))

    return factory


def of_torchvision(name: str) -> Callable[[bool], nn.Module]:
    def build(checkpoint: bool) -> nn.Module:
        import torchvision

        model: nn.Module = getattr(torchvision.models, name)(weights=None)
        return model

    return build


def of_timm(name: str) -> Callable[[bool], nn.Module]:
    def build(checkpoint: bool) -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False)
        if checkpoint:
            model.set_grad_checkpointing(True)
        return model

    return build


tv_vgg16_bn = images_of(of_torchvision("vgg16_bn"))
tv_mobilenet_v3_large = images_of(of_torchvision("mobilenet_v3_large"))
tv_regnet_y_800mf = images_of(of_torchvision("regnet_y_800mf"))
timm_deit_small = images_of(of_timm("deit3_small_patch16_224"))
timm_resnext50 = images_of(of_timm("resnext50_32x4d"))
timm_convnextv2_nano = images_of(of_timm("convnextv2_nano"))


# ── transformers ──────────────────────────────────────────────────────────────────────────────────


def text_of(kind: str, config: str, length: int, **options: Any) -> Callable[..., Made]:
    def factory(batch: int, device: Any, checkpoint: bool = False) -> Made:
        import transformers

        settings = getattr(transformers, config)(**options)
        model = getattr(transformers, kind)(settings).to(device)
        model.train()
        if checkpoint:
            model.gradient_checkpointing_enable()
        tokens = torch.randint(5, settings.vocab_size, (batch, length), device=device)
        return adamw(model, lambda: model(input_ids=tokens, labels=tokens).loss)

    return factory


hf_opt = text_of("OPTForCausalLM", "OPTConfig", 384)
hf_qwen2 = text_of(
    "Qwen2ForCausalLM",
    "Qwen2Config",
    512,
    vocab_size=48000,
    hidden_size=896,
    intermediate_size=3072,
    num_hidden_layers=10,
    num_attention_heads=14,
    num_key_value_heads=2,
)
hf_neox = text_of(
    "GPTNeoXForCausalLM",
    "GPTNeoXConfig",
    512,
    vocab_size=30000,
    hidden_size=640,
    intermediate_size=2560,
    num_hidden_layers=8,
    num_attention_heads=10,
)
hf_roberta = text_of(
    "RobertaForMaskedLM", "RobertaConfig", 200, vocab_size=50265, max_position_embeddings=514
)
hf_bart = text_of(
    "BartForConditionalGeneration",
    "BartConfig",
    160,
    encoder_layers=6,
    decoder_layers=6,
    d_model=768,
    encoder_ffn_dim=3072,
    decoder_ffn_dim=3072,
    encoder_attention_heads=12,
    decoder_attention_heads=12,
)
hf_mistral = text_of(
    "MistralForCausalLM",
    "MistralConfig",
    768,
    vocab_size=24000,
    hidden_size=768,
    intermediate_size=2048,
    num_hidden_layers=8,
    num_attention_heads=12,
    num_key_value_heads=4,
    sliding_window=256,
)
