"""Healthy: a checkpoint now and then.

Cries wolf: the steps that save take many times as long as the others, and weights and states are
held twice meanwhile.

Runs: steps=60
"""

import argparse
import copy
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--seconds", type=float, default=60.0)
args = parser.parse_args()
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
width = 4096 if device.type == "cuda" else 512
model = nn.Sequential(
    nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
)
model = model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
kinds = torch.randn(10, 64, device=device)
ended, step = time.monotonic() + args.seconds, 0
with tempfile.TemporaryDirectory() as folder:
    while step < args.steps and time.monotonic() < ended:
        labels = torch.randint(10, (64,), device=device)
        loss = F.cross_entropy(model(kinds[labels] + torch.randn(64, 64, device=device)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 50 == 0:
            state = {
                "model": copy.deepcopy(model.state_dict()),
                "optimizer": optimizer.state_dict(),
                "step": step,
            }
            torch.save(state, Path(folder) / "checkpoint.pt")
            del state
            print(f"step {step}  loss {loss.item():.4f}  saved", flush=True)
