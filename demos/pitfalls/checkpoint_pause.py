"""A classifier of token sequences, whose last state is kept in a file.

Pitfall: the training thread writes a checkpoint every few steps, and nothing is computed meanwhile.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

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
    model = nn.Sequential(nn.Embedding(40_000, 128), nn.Flatten(), nn.Linear(1024, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    path = Path(tempfile.mkdtemp()) / "last.pt"

    step, spent, begun = 0, 0.0, time.monotonic()
    saved = begun
    while step < args.steps and time.monotonic() < begun + args.seconds:
        tokens = torch.randint(0, 40_000, (64, 8), device=device)
        loss = F.cross_entropy(model(tokens), tokens[:, 0] % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 5 == 0:
            asked = time.monotonic()
            torch.save({"model": model.state_dict(), "step": step}, path)
            saved = time.monotonic()
            spent += saved - asked
        if step % 20 == 0 or step == args.steps:
            share = spent / (time.monotonic() - begun)
            print(
                f"step {step}  loss {loss.item():.4f}  saving {share:.0%} of the time", flush=True
            )
    shutil.rmtree(path.parent)


if __name__ == "__main__":
    main()
