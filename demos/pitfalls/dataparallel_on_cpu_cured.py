"""A classifier on a machine without a GPU.

Cured: no DataParallel. torch uses all cores by itself.
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
    parser.add_argument("--steps", type=int, default=1_000_000, help="optimizer steps at most")
    args = parser.parse_args()

    torch.manual_seed(0)
    kinds = torch.randn(10, 256)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    started, step = time.monotonic(), 0
    while step < args.steps and time.monotonic() < started + args.seconds:
        labels = torch.randint(10, (64,))
        loss = F.cross_entropy(model(kinds[labels] + torch.randn(64, 256)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 100 == 0 or step == args.steps:
            pace = 64 * step / (time.monotonic() - started)
            print(f"step {step}  loss {loss.item():.4f}  {pace:.0f} samples/s", flush=True)
    print("in the checkpoint:", ", ".join(model.state_dict()))


if __name__ == "__main__":
    main()
