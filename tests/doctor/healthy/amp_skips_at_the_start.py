"""Healthy: fp16 with a GradScaler whose first scale is far too large.

Cries wolf: the first steps are left out for inf gradients, and the log says so, until the scale
fits.

Runs: steps=60
"""

import argparse
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
kinds = torch.randn(10, 64, device=device)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device.type, init_scale=2.0**24)
ended, step = time.monotonic() + args.seconds, 0
while step < args.steps and time.monotonic() < ended:
    labels = torch.randint(10, (256,), device=device)
    with torch.autocast(device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(kinds[labels] + torch.randn(256, 64, device=device)), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    step += 1
    if scaler.get_scale() < before:
        print(
            f"step {step}: gradient overflow, skipping the step, scale {scaler.get_scale():g}",
            flush=True,
        )
    elif step % 20 == 0:
        print(f"step {step}  loss {loss.item():.4f}  scale {scaler.get_scale():g}", flush=True)
