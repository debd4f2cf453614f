"""Healthy: a regression that steps once in eight micro-batches.

Cries wolf: backward() runs eight times for each step() and each zero_grad(), as if zeroing had been
forgotten.

Runs: steps=40
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

MICRO_BATCHES = 8

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--seconds", type=float, default=60.0)
args = parser.parse_args()
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
teacher = torch.randn(256, 1, device=device) / 16
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ended, step = time.monotonic() + args.seconds, 0
while step < args.steps and time.monotonic() < ended:
    for _ in range(MICRO_BATCHES):
        inputs = torch.randn(64, 256, device=device)
        loss = F.mse_loss(model(inputs), inputs @ teacher) / MICRO_BATCHES
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 20 == 0:
        print(f"step {step}  loss {loss.item() * MICRO_BATCHES:.4f}", flush=True)
