"""Healthy: a model of a few hundred weights, on the CPU on purpose.

Cries wolf: the machine may have GPUs, and none of them is used.

Runs: steps=200
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
torch.set_num_threads(1)
inputs = torch.randn(32, 8)
targets = inputs.sum(1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
ended, step = time.monotonic() + args.seconds, 0
while step < args.steps and time.monotonic() < ended:
    loss = F.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 100 == 0:
        print(f"step {step}  loss {loss.item():.4f}", flush=True)
