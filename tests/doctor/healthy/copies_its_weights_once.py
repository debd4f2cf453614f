"""Healthy: a moving average of the weights is made after the warm-up.

There is also a schedule of the learning rate.

Cries wolf: memory rises by the size of the model in the middle of the training, and stays there.

Runs: steps=80
"""

import argparse
import copy
import time

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--seconds", type=float, default=60.0)
args = parser.parse_args()
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
width = 4096 if device.type == "cuda" else 256
kinds = torch.randn(10, 64, device=device)
model = nn.Sequential(
    nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
)
model = model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 100)
average: nn.Module | None = None
ended, step = time.monotonic() + args.seconds, 0
while step < args.steps and time.monotonic() < ended:
    labels = torch.randint(10, (64,), device=device)
    loss = F.cross_entropy(model(kinds[labels] + torch.randn(64, 64, device=device)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    step += 1
    if step == 50:
        average = copy.deepcopy(model)
    elif average is not None:
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
    if step % 20 == 0:
        print(
            f"step {step}  loss {loss.item():.4f}  lr {schedule.get_last_lr()[0]:.2g}", flush=True
        )
