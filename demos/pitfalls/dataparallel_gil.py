"""A transformer encoder on two GPUs, 64 samples a step: python SCRIPT

Pitfall: DataParallel. One process drives both GPUs, copies the model to the second one in every
step, and its threads wait for Python's one lock and for the first GPU, which gathers the outputs.
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
    if torch.cuda.device_count() < 2:
        print("This training needs two CUDA GPUs.", file=sys.stderr)
        sys.exit(3)

    batch, device = 64, torch.device("cuda", 0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to(device)
    model = nn.DataParallel(model, device_ids=[0, 1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    started, warm, step = time.monotonic(), 0.0, 0
    going = True
    while going:
        inputs = torch.randn(batch, 64, 256, device=device)
        loss = F.mse_loss(model(inputs), inputs.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0 or step == args.steps:
            shown, now = loss.item(), time.monotonic()
            warm = warm or now
            going = step < args.steps and now < started + args.seconds
            if step > 10:
                print(
                    f"step {step}  loss {shown:.3f}  {64 * (step - 10) / (now - warm):.0f} "
                    "samples/s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
