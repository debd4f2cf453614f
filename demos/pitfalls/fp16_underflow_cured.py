"""An autoencoder of small signals, in fp16 by autocast.

Cured: GradScaler multiplies the loss, and so every gradient, by 65,536 or what fits, and divides
again for the step.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

VOLTS = 0.01


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
    waves = torch.randn(8, 256, device=device) / 3
    model = nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 256)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type)
    started, step, first = time.monotonic(), 0, 0.0
    while step < args.steps and time.monotonic() < started + args.seconds:
        signal = torch.randn(256, 8, device=device) @ waves
        with torch.amp.autocast(device.type, dtype=torch.float16):
            loss = F.mse_loss(VOLTS * model(signal), VOLTS * signal)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        step += 1
        first = first or loss.item()
        if step % 20 == 0 or step == args.steps:
            gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            zero = (gradients == 0).float().mean().item()
            print(
                f"step {step}  loss {loss.item() / first:.3f} of the first  zero gradients "
                f"{zero:.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
