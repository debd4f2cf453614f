"""A small language model that now and then prints what it would say.

Pitfall: all of its logits are copied to the host in each step, for the few that are printed.
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
    layers = [nn.Embedding(32_000, 512), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 32_000)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    started, warm, step = time.monotonic(), 0.0, 0
    while step < args.steps and time.monotonic() < started + args.seconds:
        tokens = torch.randint(0, 32_000, (4, 513), device=device)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        outputs = logits.detach().cpu()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0 or step == args.steps:
            shown, now = loss.item(), time.monotonic()
            warm = warm or now
            if step > 10:
                each = 1e3 * (now - warm) / (step - 10)
                words = outputs[0, :4].argmax(-1).tolist()
                print(f"step {step}  loss {shown:.4f}  {each:.2f} ms a step  {words}", flush=True)


if __name__ == "__main__":
    main()
