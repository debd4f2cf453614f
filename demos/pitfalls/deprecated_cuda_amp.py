"""A classifier under automatic mixed precision.

Pitfall: torch.cuda.amp is deprecated since torch 2.4. It warns, and without a GPU it switches mixed
precision off.
"""

import argparse
import time

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from torch.nn import functional as F


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long to train (default: 60)"
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="optimizer steps at most")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kinds = torch.randn(10, 64, device=device)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = GradScaler()
    started, step = time.monotonic(), 0
    while step < args.steps and time.monotonic() < started + args.seconds:
        labels = torch.randint(10, (64,), device=device)
        with autocast():
            logits = model(kinds[labels] + torch.randn(64, 64, device=device))
            loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        step += 1
        if step % 100 == 0 or step == args.steps:
            print(f"step {step}  loss {loss.item():.4f}  logits in {logits.dtype}", flush=True)


if __name__ == "__main__":
    main()
