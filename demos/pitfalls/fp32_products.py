"""A wide classifier on one GPU.

Pitfall: its matrix products run in float32, outside of the tensor cores.
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
    layers = [layer for _ in range(8) for layer in (nn.Linear(4096, 4096), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(4096, 16)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    kinds = torch.randn(16, 4096, device=device)

    started, warm, step = time.monotonic(), 0.0, 0
    while step < args.steps and time.monotonic() < started + args.seconds:
        labels = torch.randint(16, (8192,), device=device)
        inputs = kinds[labels] + torch.randn(8192, 4096, device=device)
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0 or step == args.steps:
            shown, now = loss.item(), time.monotonic()
            warm = warm or now
            if step > 10:
                print(
                    f"step {step}  loss {shown:.4f}  {1e3 * (now - warm) / (step - 10):.2f} ms "
                    "a step",
                    flush=True,
                )


if __name__ == "__main__":
    main()
