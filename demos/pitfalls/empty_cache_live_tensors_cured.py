"""A classifier on one GPU that keeps the outputs of its evaluations to compare them in the end.

Cured: what is kept of an output is its answer, on the CPU. No reference is left, and the memory is
free again.
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
    parser.add_argument("--rounds", type=int, default=60, help="rounds at most (default: 60)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("This training needs a CUDA GPU, and torch finds none here.", file=sys.stderr)
        sys.exit(3)

    torch.manual_seed(0)
    device = torch.device("cuda")
    kinds = torch.randn(1000, 256, device=device)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1000)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held_out = min(32768, torch.cuda.mem_get_info()[0] // 100 // 4000)
    started, results = time.monotonic(), []
    for number in range(1, args.rounds + 1):
        paused = time.monotonic() + 1
        while time.monotonic() < paused:
            labels = torch.randint(1000, (256,), device=device)
            loss = F.cross_entropy(
                model(kinds[labels] + torch.randn(256, 256, device=device)), labels
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            outputs = model(kinds[torch.arange(held_out, device=device) % 1000])
        results.append(outputs.argmax(1).cpu())
        del outputs
        torch.cuda.empty_cache()
        used, cached = torch.cuda.memory_allocated() / 2**20, torch.cuda.memory_reserved() / 2**20
        print(
            f"round {number}  loss {loss.item():.4f}  allocated {used:.0f}  reserved {cached:.0f} "
            "MiB",
            flush=True,
        )
        if time.monotonic() > started + args.seconds:
            break


if __name__ == "__main__":
    main()
