"""Healthy: a batch that was chosen to fill the card, to 96 % of its memory.

Cries wolf: next to nothing is free, and never will be; but nothing grows, and nothing has to be
tried again.

Runs: gpus=1 alone seconds=75 after=42 steps=40
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, KEPT_FREE = 8192, 0.04

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--seconds", type=float, default=60.0)
args = parser.parse_args()
torch.manual_seed(0)
device = torch.device("cuda")
layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)


def train(inputs: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(inputs), inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


train(torch.randn(64, WIDTH, device=device))
free, total = torch.cuda.mem_get_info()
room = free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated() - int(KEPT_FREE * total)
dataset = torch.empty(max(0, room - 12 * 2**30), dtype=torch.uint8, device=device)
inputs = torch.randn(4096, WIDTH, device=device)
spare: list[torch.Tensor] = []
for _ in range(2):
    train(inputs)
while torch.cuda.mem_get_info()[0] > KEPT_FREE * total:
    spare.append(torch.empty(256 << 20, dtype=torch.uint8, device=device))
    train(inputs)  # a step takes anew what such a tensor took of the allocator's cache
ended, step = time.monotonic() + args.seconds, 0
while step < args.steps and time.monotonic() < ended:
    loss = train(inputs)
    step += 1
    if step % 20 == 0:
        used = 1 - torch.cuda.mem_get_info()[0] / total
        print(f"step {step}  loss {loss.item():.4f}  memory {used:.1%}", flush=True)
