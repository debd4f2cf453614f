"""Trainings to look at. ``python -m bench.look.trainings KIND OUT [--device cpu]``.

Trains until it is told on stdin to stop, a command a line: ``trace N`` has ``torch.profiler``
record everything of N steps and writes OUT.trace, ``stop N`` ends it after N steps or now. OUT then
has the moments of all steps (CLOCK_MONOTONIC) and their losses to the bit. It prints nothing.
"""

import argparse
import json
import os
import sys
import threading
import time

import torch
import torch.nn.functional as F
from torch import nn

WARM_STEPS = 30


def gpt(device, half):
    from tests.fakes.flop_models import Words

    torch.backends.cuda.matmul.allow_tf32 = False
    model = Words(causal=True, width=1024, layers=8).to(device)
    ids = torch.randint(0, 211, (8, 1024), device=device)

    def loss():
        with torch.autocast(device, torch.bfloat16, enabled=half):
            out = model(ids)
        return F.cross_entropy(out.flatten(0, 1).float(), ids.flatten())

    return model, loss, {"fused": device != "cpu"}


def resnet(device):
    import torchvision

    model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
    x = torch.randn(64, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (64,), device=device)

    def loss():
        with torch.autocast(device, torch.bfloat16):
            return F.cross_entropy(model(x), y)

    return model, loss, {}


def perceptron(device, width=1024, layers=6, batch=256):
    parts = []
    for _ in range(layers):
        parts += [nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()]
    model = nn.Sequential(*parts).to(device)
    x = torch.randn(batch, width, device=device)
    return model, lambda: (model(x) - x).square().mean(), {}


def small_layers(device):
    model, loss, _ = perceptron(device, 128, 120, 64)
    return model, loss, {"foreach": False}


def cells(device):
    cell, head = nn.LSTMCell(128, 128).to(device), nn.Linear(128, 16).to(device)
    x = torch.randn(100, 32, 128, device=device)

    def loss():
        state = None
        for part in x:
            state = cell(part, state)
        return head(state[0]).square().mean()

    return nn.ModuleList([cell, head]), loss, {}


class Rows(torch.utils.data.Dataset):
    """A data set whose rows are slow to read."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.randn(512, generator=torch.Generator().manual_seed(index))


def loader(device, seconds=0.001):
    model, _, more = perceptron(device, 512, 4)
    loading = torch.utils.data.DataLoader(
        Rows(seconds), 16, num_workers=2, pin_memory=device != "cpu"
    )
    rows = iter(loading)

    def loss():
        x = next(rows).to(device, non_blocking=True)
        return (model(x) - x).square().mean()

    return model, loss, more


def compiled(device):
    model, _, more = perceptron(device, 512, 4)
    x = torch.randn(256, 512, device=device)
    fast = torch.compile(model)
    return model, lambda: (fast(x) - x).square().mean(), more


def ddp(device):
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device != "cpu":
        torch.cuda.set_device(local)
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    model, _, more = perceptron(device, 512, 4)
    wrapped = nn.parallel.DistributedDataParallel(model)
    x = torch.randn(256, 512, device=device)
    return model, lambda: (wrapped(x) - x).square().mean(), more


KINDS = {
    "gpt-bf16": lambda device: gpt(device, True),
    "gpt-fp32": lambda device: gpt(device, False),
    "resnet": resnet,
    "small-layers": small_layers,
    "cells": cells,
    "loader-bound": lambda device: loader(device),
    "single": lambda device: perceptron(device, 512, 4),
    "compiled": compiled,
    "ddp": ddp,
    "loader": lambda device: loader(device, 0.0),
}


class Commands(threading.Thread):
    """Reads commands from stdin; ``stop_after`` 0 means never, ``trace`` 0 no trace."""

    def __init__(self):
        super().__init__(daemon=True)
        self.stop_after, self.trace = 0, 0

    def run(self):
        for line in sys.stdin:
            word, _, number = line.partition(" ")
            setattr(self, {"stop": "stop_after", "trace": "trace"}[word], int(number))
        self.stop_after = self.stop_after or 1  # nobody is there any more


def traced(step, count, out):
    """Have torch's own profiler record ``count`` steps; write what ran on the device."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with profile(activities=activities) as profiler:
        for _ in range(count):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    ran = [
        [one.name(), one.start_ns(), one.start_ns() + one.duration_ns()]
        for one in profiler.profiler.kineto_results.events()
        if one.device_type() == torch.autograd.DeviceType.CUDA
        and not (hasattr(one, "is_user_annotation") and one.is_user_annotation())
    ]
    with open(out + ".trace.new", "w") as stream:
        json.dump({"steps": count, "ran": ran}, stream)
    os.rename(out + ".trace.new", out + ".trace")


def over(steps, stop_after, device):
    """Whether to stop; ranks stop after the same step."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return 0 < stop_after <= steps
    if steps % 20:
        return False
    wanted = torch.tensor(float(stop_after) or 1e12, device=device)
    dist.all_reduce(wanted, dist.ReduceOp.MAX)
    return wanted.item() <= steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--watch", action="store_true", help="with a probe")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds slept in each step")
    parser.add_argument("--cold", action="store_true", help="the trace sets CUPTI up itself")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, loss_of, more = KINDS[args.kind](args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **more)
    if args.watch:
        import gpuscope

        if args.cold:
            from gpuscope.probe import cupti

            cupti.set_up = lambda: None
        gpuscope.watch(model=model, optimizer=optimizer)
    moments, losses = [], []
    commands = Commands()
    commands.start()

    def step():
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.pause:
            time.sleep(args.pause)
        losses.append(loss.detach())
        moments.append(time.monotonic())

    while not over(len(moments), commands.stop_after, args.device):
        step()
        if len(moments) == WARM_STEPS:
            open(args.out + ".ready", "w").close()
        if commands.trace:
            traced(step, commands.trace, args.out)
            commands.trace = 0
    if args.kind == "ddp":
        torch.distributed.destroy_process_group()
    flat = torch.stack(losses).float().cpu().tolist()
    with open(args.out + ".new", "w") as stream:
        json.dump({"moments": moments, "losses": [one.hex() for one in flat]}, stream)
    os.rename(args.out + ".new", args.out)


if __name__ == "__main__":
    main()
