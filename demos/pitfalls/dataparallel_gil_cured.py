"""A transformer encoder on two GPUs, 64 samples a step: torchrun --nproc-per-node 2 SCRIPT

Cured: DistributedDataParallel. Each GPU has a process of its own, and only gradients travel.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


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

    local_rank = int(os.environ["LOCAL_RANK"])
    batch, device = 32, torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank])
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
            late = torch.tensor(float(now > started + args.seconds), device=device)
            dist.broadcast(late, 0)
            going = step < args.steps and not late.item()
            if step > 10 and local_rank == 0:
                print(
                    f"step {step}  loss {shown:.3f}  {64 * (step - 10) / (now - warm):.0f} "
                    "samples/s",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
