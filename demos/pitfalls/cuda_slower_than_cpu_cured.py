"""A regression with a few hundred weights.

Cured: so small a model trains on the CPU.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long to train (default: 60)"
    )
    parser.add_argument("--steps", type=int, default=100_000_000, help="optimizer steps at most")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cpu")
    inputs = torch.randn(32, 8, device=device)
    targets = inputs.sum(1, keepdim=True).sin()
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ended, since, step = time.monotonic() + args.seconds, time.monotonic(), 0
    while step < args.steps and time.monotonic() < ended:
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 1000 == 0:
            shown, now = loss.item(), time.monotonic()
            print(
                f"step {step}  loss {shown:.4f}  {1000 / (now - since):.0f} steps/s on {device}",
                flush=True,
            )
            since = now


if __name__ == "__main__":
    main()
