"""A convolutional net on one GPU, on pictures of one size.

Pitfall: cuDNN takes the algorithms that its heuristics name, and another may be faster for just
this shape.
"""

import argparse
import sys
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
    parser.add_argument("--steps", type=int, default=1_000_000, help="optimizer steps at most")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("This training needs a CUDA GPU, and torch finds none here.", file=sys.stderr)
        sys.exit(3)

    torch.manual_seed(0)
    device = torch.device("cuda")
    kinds = torch.randn(10, 3, 96, 96, device=device)
    layers: list[nn.Module] = []
    for channels, width, kernel in ((3, 64, 7), (64, 96, 5), (96, 160, 3), (160, 160, 3)):
        layers += [
            nn.Conv2d(channels, width, kernel, padding=kernel // 2),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 10)).to(
        device
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    started, warm, step = time.monotonic(), 0.0, 0
    while step < args.steps and time.monotonic() < started + args.seconds:
        labels = torch.randint(10, (64,), device=device)
        loss = F.cross_entropy(
            model(kinds[labels] + torch.randn(64, 3, 96, 96, device=device)), labels
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0 or step == args.steps:
            shown, now = loss.item(), time.monotonic()
            warm = warm or now
            if step > 10:
                print(
                    f"step {step}  loss {shown:.4f}  {64 * (step - 10) / (now - warm):.0f} "
                    "pictures/s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
