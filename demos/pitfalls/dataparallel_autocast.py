"""A classifier on two GPUs in bf16, or so it seems.

Pitfall: autocast's type belongs to the thread that set it. DataParallel's threads take over that it
is on, not its type, and compute in fp16: what overflows there becomes inf, and small gradients
zero.
"""

import argparse
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long to train (default: 60)"
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="optimizer steps at most")
    args = parser.parse_args()
    if torch.cuda.device_count() < 2:
        print("This training needs two CUDA GPUs.", file=sys.stderr)
        sys.exit(3)

    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    kinds = 1000 * torch.randn(10, 64, device=device)
    model = nn.DataParallel(Classifier().to(device), device_ids=[0, 1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    started, step = time.monotonic(), 0
    while step < args.steps and time.monotonic() < started + args.seconds:
        labels = torch.randint(10, (256,), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(kinds[labels] + torch.randn(256, 64, device=device))
            loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0 or step == args.steps:
            print(f"step {step}  loss {loss.item():.4f}  computed in {logits.dtype}", flush=True)


if __name__ == "__main__":
    main()
