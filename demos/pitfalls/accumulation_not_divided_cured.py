"""A regression whose gradients add up over eight micro-batches before each step.

Cured: each loss is divided by their number, and the gradients are those of the large batch.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

MICRO_BATCHES = 8


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
    teacher = torch.randn(64, 1, device=device) / 8
    model = nn.Linear(64, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    started, step, first = time.monotonic(), 0, 0.0
    while step < args.steps and time.monotonic() < started + args.seconds:
        optimizer.zero_grad()
        for _ in range(MICRO_BATCHES):
            inputs = torch.randn(64, 64, device=device)
            loss = F.mse_loss(model(inputs), inputs @ teacher)
            (loss / MICRO_BATCHES).backward()
        gradient = (
            torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm().item()
        )
        optimizer.step()
        step += 1
        first = first or loss.item()
        if step in (1, 10) or step % 100 == 0 or step == args.steps:
            share = loss.item() / first
            print(
                f"step {step}  loss {share:.3g} of the first  gradient {gradient:.3g}", flush=True
            )


if __name__ == "__main__":
    main()
