"""A classifier on one GPU, or so it seems.

Pitfall: the model is never moved to the GPU. Nothing complains, for the inputs follow the
model: it all runs on the CPU.
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
    print(f"training on {torch.cuda.get_device_name(device)}", flush=True)
    kinds = torch.randn(100, 1024)
    model = nn.Sequential(
        nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 100)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    started = time.monotonic()
    step = 0
    while step < args.steps and time.monotonic() < started + args.seconds:
        labels = torch.randint(100, (256,))
        inputs = kinds[labels] + torch.randn(256, 1024)
        where = next(model.parameters()).device
        inputs, labels = inputs.to(where), labels.to(where)
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == 1 or step % 20 == 0 or step == args.steps:
            pace = step / (time.monotonic() - started)
            used = torch.cuda.memory_allocated() / 2**20
            print(
                f"step {step}  loss {loss.item():.4f}  {pace:.1f} steps/s  GPU memory {used:.0f} "
                "MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
