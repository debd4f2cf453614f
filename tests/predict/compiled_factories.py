"""Models that are compiled: a small GPT with its loss, a network with batch norm, a graph break."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LOG = logging.getLogger(__name__)
WIDTH, WORDS, TOKENS = 128, 1000, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.parts, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.parts(self.before(x)).view(*x.shape[:2], 3, 4, WIDTH // 4)
        mixed = functional.scaled_dot_product_attention(
            *parts.permute(2, 0, 3, 1, 4), is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.after(x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.words(tokens))))
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Rows(nn.Module):
    """Layers whose inputs are normalised by their root mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU())
                for _ in range(3)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()
                )
                for a, b in ((3, 16), (16, 16), (16, 32))
            )
        )
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(images).mean((2, 3))).square().mean()


class LoggingGpt(Gpt):
    """It logs between its logits and its loss."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.words(tokens))))
        LOG.debug("the loss comes next")
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class OddWords(nn.Module):
    """A head for words whose number is odd, with its loss."""

    def __init__(self, words: int = 20_001) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(WIDTH * 8, WIDTH * 8), nn.Linear(WIDTH * 8, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(torch.relu(self.layer(x)))
        words = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return functional.cross_entropy(logits, words)


class Scaled(nn.Module):
    """It reads the largest value of a layer's output, and scales with it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        scale = x.detach().amax().item()
        return torch.relu(self.second(x / scale)).square().mean()


class CompiledBlocks(nn.Module):
    """Its blocks are compiled one by one, and recomputed in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        for block in self.blocks:
            block.compile()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x.square().mean()


class Numbered(nn.Module):
    """A layer that needs a graph of its own, because its number is a constant of the graph."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer, self.number = nn.Linear(WIDTH, WIDTH), number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) * (1 + self.number)


class Breaks(nn.Module):
    """Its number of layers depends on a value of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > -1e9:
            x = torch.relu(self.layer(x))
        return self.layer(x).mean()


def _inputs(model: nn.Module, batch: int, device: Any) -> torch.Tensor:
    if isinstance(model, Gpt):
        return torch.randint(WORDS, (batch, TOKENS), device=device)
    shape = (3, 32, 32) if isinstance(model, Images) else (WIDTH,)
    return torch.randn(batch, *shape, device=device)


def _training(model: nn.Module, batch: int, device: Any, inside: bool) -> Any:
    model = model.to(device)
    called = torch.compile(model) if inside else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, lambda: called(_inputs(model, batch, device))


def gpt(batch: int, device: Any) -> Any:
    return _training(Gpt(), batch, device, False)


def rows(batch: int, device: Any) -> Any:
    return _training(Rows(), batch, device, False)


def images(batch: int, device: Any) -> Any:
    return _training(Images(), batch, device, False)


def gpt_of_given_tokens(batch: int, device: Any) -> Any:
    """Its tokens are made once, and are so an input of the compiled loss."""
    model = Gpt().to(device)
    tokens = _inputs(model, batch, device)
    return model, torch.optim.SGD(model.parameters(), lr=0.01), lambda: model(tokens)


def broken_before_the_loss(batch: int, device: Any) -> Any:
    model = Breaks().to(device)
    rows = _inputs(model, batch, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, lambda: functional.silu(model(rows)).square().mean()


def gpt_that_logs(batch: int, device: Any) -> Any:
    return _training(LoggingGpt(), batch, device, False)


def odd_words(batch: int, device: Any) -> Any:
    model = OddWords().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, lambda: model(torch.randn(batch, WIDTH * 8, device=device))


def scaled(batch: int, device: Any) -> Any:
    return _training(Scaled(), batch, device, False)


def compiled_blocks(batch: int, device: Any) -> Any:
    model = CompiledBlocks().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, lambda: model(torch.randn(batch, TOKENS, WIDTH, device=device))


def numbered_layers(batch: int, device: Any) -> Any:
    model = nn.Sequential(*(Numbered(number) for number in range(10))).to(device)
    for layer in model:
        layer.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, lambda: model(torch.randn(batch, WIDTH, device=device)).mean()


def compiled_function(batch: int, device: Any) -> Any:
    """A function that calls the model is compiled, and asks for the device inside."""
    model = Rows().to(device)

    @torch.compile
    def loss(x: torch.Tensor) -> torch.Tensor:
        assert torch.cuda.is_available()
        assert x.is_cuda
        return model(x + torch.ones(WIDTH, device=x.device))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, lambda: loss(torch.randn(batch, WIDTH, device=device))


def compiled_around_ddp(batch: int, device: Any) -> Any:
    torch.distributed.init_process_group("nccl")
    model = nn.parallel.DistributedDataParallel(Rows().to(device))
    called = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, lambda: called(torch.randn(batch, WIDTH, device=device))


def gpt_compiled_inside(batch: int, device: Any) -> Any:
    return _training(Gpt(), batch, device, True)


def breaks(batch: int, device: Any) -> Any:
    return _training(Breaks(), batch, device, True)


class Rows1d(nn.Module):
    """A convolution over positions, whose input does not lie together."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.view(-1, 4, WIDTH).transpose(1, 2)
        return self.conv(rows).square().mean()


def positions(batch: int, device: Any) -> Any:
    return _training(Rows1d(), batch, device, False)
