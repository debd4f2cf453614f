"""Healthy: a validation after each epoch, under no_grad.

Cries wolf: for seconds no step comes, and the validation's large batches take far more memory than
the training's.

Runs: steps=120
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


@torch.no_grad()
def validate(model: nn.Module, kinds: torch.Tensor, batches: int, size: int) -> float:
    model.eval()
    right = 0
    for _ in range(batches):
        labels = torch.randint(10, (size,), device=kinds.device)
        right += int(
            (
                model(kinds[labels] + torch.randn(size, 64, device=kinds.device)).argmax(1)
                == labels
            ).sum()
        )
    model.train()
    return right / batches / size


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--seconds", type=float, default=60.0)
args = parser.parse_args()
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
width, size = (4096, 65536) if device.type == "cuda" else (256, 2048)
model = nn.Sequential(
    nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
)
model = model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
kinds = torch.randn(10, 64, device=device)
ended, step = time.monotonic() + args.seconds, 0
while step < args.steps and time.monotonic() < ended:
    labels = torch.randint(10, (64,), device=device)
    loss = F.cross_entropy(model(kinds[labels] + torch.randn(64, 64, device=device)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 100 == 0:
        print(f"epoch {step // 100}  loss {loss.item():.4f}  validating", flush=True)
        print(f"epoch {step // 100}  right {validate(model, kinds, 40, size):.1%}", flush=True)
