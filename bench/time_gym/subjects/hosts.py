"""Trainings whose host is slower than their GPU."""

from __future__ import annotations

import copy

import torch
from torch import nn

from bench.time_gym.subjects.common import (
    Training,
    adamw,
    batch_of,
    deep,
    gpt,
    main,
    named,
    rows_for,
)


def many_small_layers(training: Training) -> None:
    """Launches many short kernels one by one, or all of a step at once from a graph."""
    model = deep(training, training.pick(120, 4), training.pick(256, 16))
    more = {"fused": True, "capturable": True} if training.cuda else {}
    optimizer = adamw(training, model, **more)
    inputs = rows_for(model, training.pick(64, 4))

    def step() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not training.cured)

    if not training.cured or not training.cuda:
        for _ in training.steps():
            step()
        return
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(inputs).square().mean().backward()
        optimizer.zero_grad(set_to_none=False)
    for _ in training.steps():
        graph.replay()
        optimizer.step()


class Adapted(nn.Module):
    """A few wide layers, and a thousand short vectors that are trained beside them."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.wide = deep(training, training.pick(18, 2), training.pick(4096, 16))
        like = self.wide[0].bias
        self.short = nn.ParameterList(
            torch.full((64,), 0.01, device=like.device, dtype=like.dtype)
            for _ in range(training.pick(1000, 20))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x) * torch.stack([*self.short]).mean()


def optimizer_one_by_one(training: Training) -> None:
    """Steps AdamW weight by weight, or all in one kernel."""
    model = Adapted(training)
    more = {"foreach": False} if not training.cured else {}
    optimizer = adamw(training, model, **more)
    inputs = rows_for(model.wide, training.pick(8192, 4))
    for _ in training.steps():
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def averages_one_by_one(training: Training) -> None:
    """Keeps a running mean of each weight with kernels of its own, or of all at once."""
    model = Adapted(training)
    mean = [*copy.deepcopy(model).requires_grad_(False).parameters()]
    optimizer = adamw(training, model)
    inputs = rows_for(model.wide, training.pick(8192, 4))
    for _ in training.steps():
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            if training.cured:
                torch._foreach_lerp_(mean, [*model.parameters()], 0.01)
            else:
                for ours, weight in zip(mean, model.parameters(), strict=True):
                    ours.copy_(0.99 * ours + 0.01 * weight.detach().clone())


def cells_in_a_loop(training: Training) -> None:
    """Calls a recurrent cell for each moment, or the layer that has them all."""
    width, length = training.pick(512, 8), training.pick(200, 4)
    rows = training.pick(64, 2)
    cell: nn.Module = nn.LSTM(width, width) if training.cured else nn.LSTMCell(width, width)
    cell = cell.to(training.device)
    optimizer = adamw(training, cell)
    moments = torch.randn(length, rows, width, device=training.device)
    for _ in training.steps():
        if training.cured:
            out = cell(moments)[0]
        else:
            state = None
            kept = []
            for moment in moments:
                state = cell(moment, state)
                kept.append(state[0])
            out = torch.stack(kept)
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def optimizer_on_the_host(training: Training) -> None:
    """Steps weights that lie in host memory, and copies gradients and weights, or does neither."""
    model = gpt(training, layers=4)
    where = training.device if training.cured else torch.device("cpu")
    masters = [nn.Parameter(weight.detach().to(where, copy=True)) for weight in model.parameters()]
    more = {"fused": True} if training.cured and training.cuda else {"foreach": True}
    optimizer = torch.optim.AdamW(masters, lr=1e-4, **more)
    for _ in training.steps():
        with training.half():
            loss = model.loss(batch_of(training, model))
        loss.backward()
        for master, weight in zip(masters, model.parameters(), strict=True):
            master.grad = weight.grad.to(where)
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters, model.parameters(), strict=True):
                weight.copy_(master)
        model.zero_grad()


def launches_block(training: Training) -> None:
    """A training of middling kernels; what its environment says makes the difference.

    Its GPU has more work than the host needs to launch it, so that the cured one does not depend on
    how fast the host is in that minute.
    """
    model = deep(training, training.pick(60, 4), training.pick(2048, 16))
    optimizer = adamw(training, model)
    inputs = rows_for(model, training.pick(8192, 4))
    for _ in training.steps():
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def anomalies_are_sought(training: Training) -> None:
    """Has left the search for the first NaN on, which asks each gradient, or not."""
    torch.autograd.set_detect_anomaly(not training.cured)
    launches_block(training)


def profiler_left_on(training: Training) -> None:
    """Has left torch's profiler on, with stacks and shapes, or not."""
    if training.cured:
        launches_block(training)
        return
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if training.cuda else []
    always = torch.profiler.schedule(wait=0, warmup=1, active=8)
    with torch.profiler.profile(
        activities=kinds, record_shapes=True, with_stack=True, schedule=always
    ) as profiler:
        model = deep(training, training.pick(60, 4), training.pick(2048, 16))
        optimizer = adamw(training, model)
        inputs = rows_for(model, training.pick(4096, 4))
        for _ in training.steps():
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()


if __name__ == "__main__":
    main(
        named(
            many_small_layers,
            optimizer_one_by_one,
            averages_one_by_one,
            cells_in_a_loop,
            optimizer_on_the_host,
            launches_block,
            anomalies_are_sought,
            profiler_left_on,
        )
    )
