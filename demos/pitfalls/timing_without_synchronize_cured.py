"""A training on one GPU that says how fast its forward pass is.

Cured: the GPU has done all its work when the clock is read, before and after.
"""

import argparse
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, DEPTH, BATCH = 2048, 8, 8192


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
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(BATCH, WIDTH, device=device)
    ended = time.monotonic() + args.seconds
    step = 0
    while step < args.steps and time.monotonic() < ended:
        torch.cuda.synchronize()
        start = time.perf_counter()
        outputs = model(inputs)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        loss = F.mse_loss(outputs, inputs.abs())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        shown = loss.item()
        if step % 20 == 0 or step == args.steps:
            speed = 2 * BATCH * WIDTH * WIDTH * DEPTH / seconds / 1e12
            print(
                f"step {step}  loss {shown:.4f}  forward {1e3 * seconds:.3f} ms = {speed:,.1f} "
                "TFLOP/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
