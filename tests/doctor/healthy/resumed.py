"""Healthy: a training that goes on from a checkpoint, which is read to the CPU first.

Cries wolf: it begins with optimizer state, at a late step, and its memory jumps when the state is
put in place.

Runs: steps=40
"""

import argparse
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
width = 4096 if device.type == "cuda" else 256
kinds = torch.randn(10, 64, device=device)


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    layers = (
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )
    model = nn.Sequential(*layers).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    labels = torch.randint(10, (64,), device=device)
    loss = F.cross_entropy(model(kinds[labels] + torch.randn(64, 64, device=device)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


with tempfile.TemporaryDirectory() as folder:
    model, optimizer = made()
    for _ in range(5):
        train(model, optimizer)
    path = Path(folder) / "checkpoint.pt"
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 90_000}, path
    )
    model, optimizer = made()
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = step = int(state["step"])
    del state
print(f"resuming from checkpoint at step {step}", flush=True)
ended = time.monotonic() + args.seconds
while step < first + args.steps and time.monotonic() < ended:
    loss = train(model, optimizer)
    step += 1
    if step % 20 == 0:
        print(f"step {step}  loss {loss:.4f}", flush=True)
