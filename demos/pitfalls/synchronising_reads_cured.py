"""A classifier that keeps an account of how hard each kind of sample is.

Cured: the account stays on the GPU, and nothing is read back in a step.
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
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    layers = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(2048, 16)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    kinds = torch.randn(16, 2048, device=device)
    hard = torch.zeros(16, device=device)

    started, warm, step = time.monotonic(), 0.0, 0
    while step < args.steps and time.monotonic() < started + args.seconds:
        labels = torch.randint(16, (2048,), device=device)
        inputs = kinds[labels] + torch.randn(2048, 2048, device=device)
        losses = F.cross_entropy(model(inputs), labels, reduction="none")
        hard.index_add_(0, labels, losses.detach())
        loss = losses.mean()
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
