"""A small language model, compiled, on texts of different lengths.

Cured: texts are padded to a few lengths, and each of these is compiled once.
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
        "--backend", default="inductor", help="torch.compile's backend (default: inductor)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long to train (default: 60)"
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="optimizer steps at most")
    args = parser.parse_args()

    torch._dynamo.config.recompile_limit = 100_000
    torch._dynamo.config.accumulated_recompile_limit = 100_000
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU())]
    model = nn.Sequential(nn.Embedding(256, 64), *layers, nn.Linear(64, 256)).to(device)
    compiled = torch.compile(model, backend=args.backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    step, slow, begun = 0, 0, time.monotonic()
    while step < args.steps and time.monotonic() < begun + args.seconds:
        asked = time.monotonic()
        length = 512 * (1 + (16 + step % 1000) // 512)
        tokens = torch.randint(0, 256, (2, length + 1), device=device)
        logits = compiled(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        shown = loss.item()
        slow += time.monotonic() - asked > 0.03
        if step % 20 == 0 or step == args.steps:
            print(f"step {step}  loss {shown:.4f}  slow steps {slow / step:.0%}", flush=True)


if __name__ == "__main__":
    main()
