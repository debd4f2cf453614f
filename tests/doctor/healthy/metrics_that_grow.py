"""Healthy: every loss and every accuracy is kept, as a plain number, to be drawn in the end.

Cries wolf: lists are appended to in each step and never emptied.

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
losses: list[float] = []
accuracies: list[float] = []
answers: list[list[int]] = []
ended, step, total = time.monotonic() + args.seconds, 0, 0.0
while step < args.steps and time.monotonic() < ended:
    labels = torch.randint(10, (64,), device=device)
    logits = model(kinds[labels] + torch.randn(64, 64, device=device))
    loss = F.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    total += loss.item()
    losses.append(loss.item())
    with torch.no_grad():
        answers.append(logits.argmax(1).tolist())
        accuracies.append(float((logits.argmax(1) == labels).float().mean()))
    if step % 20 == 0:
        print(
            f"step {step}  loss {total / step:.4f}  accuracy {sum(accuracies[-20:]) / 20:.1%}",
            flush=True,
        )
