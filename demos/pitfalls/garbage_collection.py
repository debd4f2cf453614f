"""A classifier whose samples are described by many small dictionaries and lists.

Pitfall: each collection of garbage looks at every object that is alive, and the steps wait for it.
"""

import argparse
import gc
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

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    records = [{"id": number, "kind": [number % 10]} for number in range(300_000)]
    model = nn.Sequential(nn.Embedding(512, 64), nn.Flatten(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    step, spent, begun = 0, 0.0, time.monotonic()
    while step < args.steps and time.monotonic() < begun + args.seconds:
        chosen = [records[(step * 64 + number) % len(records)] for number in range(64)]
        tokens = torch.tensor([[record["id"] % 512] for record in chosen])
        kinds = torch.tensor([record["kind"][0] for record in chosen])
        tokens, kinds = (one.to(device, non_blocking=True) for one in (tokens, kinds))
        loss = F.cross_entropy(model(tokens), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0 or step == args.steps:
            asked = time.monotonic()
            gc.collect()
            spent += time.monotonic() - asked
            share = spent / (time.monotonic() - begun)
            print(
                f"step {step}  loss {loss.item():.4f}  collecting {share:.0%} of the time",
                flush=True,
            )


if __name__ == "__main__":
    main()
