"""A small transformer on one GPU.

Cured: a batch that gives each kernel enough to do.
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
    size = 256
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(512, 128), encoder, nn.Linear(128, 512)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    started, warm, step = time.monotonic(), 0.0, 0
    while step < args.steps and time.monotonic() < started + args.seconds:
        tokens = torch.randint(0, 512, (size, 33), device=device)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0 or step == args.steps:
            shown, now = loss.item(), time.monotonic()
            warm = warm or now
            if step > 10:
                rate = size * (step - 10) / (now - warm)
                print(f"step {step}  loss {shown:.4f}  {rate:.0f} samples/s", flush=True)


if __name__ == "__main__":
    main()
