"""Healthy: the features of a frozen backbone are kept from the first epoch on.

They are no longer computed in the next.

Cries wolf: memory grows step after step through the whole first epoch, as it does where something
leaks.

Runs: steps=60 after=50 seconds=100
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--seconds", type=float, default=60.0)
parser.add_argument(
    "--epoch", type=float, default=60.0, help="about how many seconds an epoch takes on a GPU"
)
args = parser.parse_args()
torch.manual_seed(0)
on_gpu = torch.cuda.is_available()
device = torch.device("cuda" if on_gpu else "cpu")
width, batches = (4096, int(args.epoch * 50)) if on_gpu else (64, 200)
spent_on_each = 0.018 if on_gpu else 0.0  # seconds, in as many passes as that allows
backbone = nn.Sequential(nn.Linear(64, width), nn.ReLU()).to(device).requires_grad_(False)
head = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
labels = torch.randint(10, (batches, 512), device=device)
kinds = torch.randn(10, 64, device=device)
kept: dict[int, torch.Tensor] = {}
ended, step = time.monotonic() + args.seconds, 0
while step < args.steps and time.monotonic() < ended:
    epoch, number = divmod(step, batches)
    if number not in kept:
        with torch.no_grad():
            kept[number] = backbone(kinds[labels[number]])
    next_batch, again = time.monotonic() + spent_on_each, True
    while again:
        loss = F.cross_entropy(head(kept[number]), labels[number])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        again = time.monotonic() < next_batch
    step += 1
    if step % 20 == 0:
        print(
            f"epoch {epoch} step {step}  loss {loss.item():.4f}  kept {len(kept)} batches",
            flush=True,
        )
