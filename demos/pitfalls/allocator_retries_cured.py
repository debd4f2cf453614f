"""A network that learns from a larger one, on a card that it shares: it may use some GiB of it.

Cured: the teacher computes on the stream of the student, whose cached memory it uses.
"""

import argparse
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

ROWS, WIDTH = 65_536, 1024
LIMIT = 5 << 30
"""Bytes that this process may use: enough for one stream, and not for what two cache."""


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
    free, total = torch.cuda.mem_get_info()
    if free < LIMIT + (1 << 30):
        print("This training needs 6 GiB, and the GPU has less than that free.", file=sys.stderr)
        sys.exit(3)

    torch.cuda.set_per_process_memory_fraction(LIMIT / total)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    wide = [nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)]
    teacher = nn.Sequential(*wide).to(device).requires_grad_(False)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    student = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=True)

    started, warm, step = time.monotonic(), 0.0, 0
    while step < args.steps and time.monotonic() < started + args.seconds:
        inputs = torch.randn(ROWS, WIDTH, device=device)
        with torch.no_grad():
            wanted = teacher(inputs)
        loss = F.mse_loss(student(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0 or step == args.steps:
            shown, now = loss.item(), time.monotonic()
            warm = warm or now
            if step > 10:
                each = 1e3 * (now - warm) / (step - 10)
                again = torch.cuda.memory_stats()["num_alloc_retries"] / step
                print(
                    f"step {step}  loss {shown:.4f}  {each:.2f} ms a step  "
                    f"{again:.1f} retries of cudaMalloc a step",
                    flush=True,
                )


if __name__ == "__main__":
    main()
