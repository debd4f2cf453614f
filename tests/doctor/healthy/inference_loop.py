"""Healthy: a service that only answers, under no_grad.

Cries wolf: no optimizer and not one step, while the memory is held and the device is busy.

Runs: attach steps=60
"""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--seconds", type=float, default=60.0)
args = parser.parse_args()
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
width = 4096 if device.type == "cuda" else 256
model = nn.Sequential(
    nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
)
model = model.to(device).eval()
ended, answered = time.monotonic() + args.seconds, 0
with torch.no_grad():
    while answered < args.steps and time.monotonic() < ended:
        answers = model(torch.randn(256, 64, device=device)).argmax(1).tolist()
        answered += 1
        if answered % 20 == 0:
            print(
                f"batch {answered}  answered {256 * answered}, the last one {answers[-1]}",
                flush=True,
            )
