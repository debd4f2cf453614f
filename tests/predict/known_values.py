"""Factories whose values are known without memory.

The values follow from what the program itself wrote down. Here is also what else programs do with
values, files, threads and ranks that decides nothing about memory.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Made = tuple[Any, Any, Callable[[], Any]]
WIDTH, TOKENS = 64, 32


def _linear(
    device: Any, loss: Callable[[nn.Module], Any], optimizer: Any = torch.optim.SGD
) -> Made:
    model = nn.Linear(WIDTH, WIDTH).to(device)
    return model, optimizer(model.parameters(), lr=0.01), lambda: loss(model)


def prints(batch: int, device: Any) -> Made:
    """A factory whose loss is printed and summed up.

    Its layers are looked through for what is not a number.
    """
    total = [0.0]

    def loss(model: nn.Module) -> Any:
        out = model(torch.randn(batch, WIDTH, device=device)).square().mean()
        total[0] += out.item() / 2
        print(f"{out:.4f} {out} {total[0]:.3f} {max(3, 2)}")
        if torch.isnan(out) or out.item() > 1e9:
            raise FloatingPointError(total)
        return out

    return _linear(device, loss)


def decides(batch: int, device: Any) -> Made:
    """By the same number, how much is computed."""

    def loss(model: nn.Module) -> Any:
        out = model(torch.randn(batch, WIDTH, device=device))
        return out.mean() if out.mean().item() / 3 < 2 else out.sum()

    return _linear(device, loss)


def masked(batch: int, device: Any) -> Made:
    """Cuts samples to the longest of them, and leaves out a mask of ones."""

    def loss(model: nn.Module) -> Any:
        lengths = torch.tensor([4 + place % 5 for place in range(batch)]).to(device)
        mask = torch.arange(TOKENS, device=device)[None] < lengths[:, None]
        x = torch.randn(batch, TOKENS, WIDTH, device=device)[:, : int(mask.sum(1).max())]
        ones = torch.ones(batch, 40_000, dtype=torch.int64, device=device)
        if not (ones == 1).all():
            x = torch.cat([x] * 8)
        out = model(x)
        return out[mask[:, : x.shape[1]]].sum()

    return _linear(device, loss)


def written(batch: int, device: Any) -> Made:
    """Writes into a part of the mask, so that it is no longer of ones."""

    def loss(model: nn.Module) -> Any:
        mask = torch.ones(batch, 40_000, dtype=torch.int64, device=device)
        mask[:, 3:] = 0
        out = model(torch.randn(batch, WIDTH, device=device))
        return out.sum() if (mask == 1).all() else out.mean()

    return _linear(device, loss)


def packed(batch: int, device: Any) -> Made:
    """Sequences of lengths that the program knows."""
    model = nn.GRU(WIDTH, WIDTH, batch_first=True).to(device)
    lengths = [TOKENS - place % 7 for place in range(batch)]

    def loss() -> Any:
        x = torch.randn(batch, TOKENS, WIDTH, device=device)
        sequence = nn.utils.rnn.pack_padded_sequence(
            x, torch.tensor(lengths), True, enforce_sorted=False
        )
        assert len(sequence.data) == sum(lengths)
        return model(sequence)[0].data.square().mean()

    return model, torch.optim.SGD(model.parameters(), lr=0.01), loss


def counts_steps(batch: int, device: Any) -> Made:
    """An optimizer that divides by what its counters say."""
    return _linear(
        device,
        lambda model: model(torch.randn(batch, WIDTH, device=device)).mean(),
        torch.optim.NAdam,
    )


def distributions(batch: int, device: Any) -> Made:
    known = torch.distributions

    def loss(model: nn.Module) -> Any:
        out = model(torch.randn(batch, WIDTH, device=device))
        beta = known.Beta(out.exp() + 1, torch.ones_like(out))
        normal = known.MultivariateNormal(out[:, :4], torch.eye(4, device=device))
        drawn = known.Multinomial(10, out.softmax(-1))
        total = drawn.log_prob(drawn.sample()).mean() + normal.log_prob(normal.rsample()).mean()
        return total + beta.log_prob(beta.rsample().clamp(0.01, 0.99)).mean()

    return _linear(device, loss)


def _sound(valid: Any) -> bool:
    return bool(valid.all())


def helped(batch: int, device: Any) -> Made:
    """Lets a function say whether its values are sound, as the distributions of torch 2.15 do."""

    def loss(model: nn.Module) -> Any:
        out = model(torch.randn(batch, WIDTH, device=device))
        if not _sound(out < 1e9):
            raise ValueError("too large")
        return out.mean()

    return _linear(device, loss)


def sparse(batch: int, device: Any) -> Made:
    """A graph's neighbours as a matrix."""
    ends = torch.stack([torch.arange(batch), torch.arange(batch).flip(0)])
    graph = torch.sparse_coo_tensor(ends, torch.ones(batch), (batch, batch)).coalesce().to(device)
    return _linear(
        device,
        lambda model: torch.sparse.mm(
            graph, model(torch.randn(batch, WIDTH, device=device))
        ).mean(),
    )


def saves(batch: int, device: Any) -> Made:
    """Its weights, to where a checkpoint is already, and takes them back."""
    path, held = Path("weights.pt"), io.BytesIO()

    def loss(model: nn.Module) -> Any:
        torch.save({"model": model.state_dict(), "step": 3}, path)
        torch.save(model.state_dict(), held)
        read = torch.load(path, map_location=device)
        assert read["step"] == 3
        assert all(tensor.is_cuda for tensor in read["model"].values())
        host = torch.load(held, map_location="cpu")
        assert not any(tensor.is_cuda for tensor in host.values())
        model.load_state_dict(host)
        return model(torch.randn(batch, WIDTH, device=device)).mean()

    return _linear(device, loss)


def threads(batch: int, device: Any) -> Made:
    """A sample is made in a thread of its own."""

    def loss(model: nn.Module) -> Any:
        made: list[Any] = []
        thread = threading.Thread(
            target=lambda: made.append(torch.randn(batch, WIDTH, device=device))
        )
        thread.start()
        thread.join()
        return model(made[0]).mean()

    return _linear(device, loss)


def one_rank(batch: int, device: Any) -> Made:
    torch.distributed.init_process_group("nccl")
    assert torch.distributed.get_world_size() == 1
    model = nn.parallel.DistributedDataParallel(nn.Linear(WIDTH, WIDTH).to(device), device_ids=[0])

    def loss() -> Any:
        with model.no_sync():
            out = model(torch.randn(batch, WIDTH, device=device)).mean()
        torch.distributed.all_reduce(out.detach())
        return out

    return model, torch.optim.SGD(model.parameters(), lr=0.01), loss


def no_rank(batch: int, device: Any) -> Made:
    return _linear(device, lambda model: model(torch.randn(batch, WIDTH, device=device)).mean())
