"""A classifier in two processes, on two GPUs or on the CPU: torchrun --nproc-per-node 2 SCRIPT

Pitfall: DistributedDataParallel without a process group has nobody to average gradients with.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps (default: 2000)")
    args = parser.parse_args()

    on_gpu = torch.cuda.device_count() > 1
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(local_rank)
    kinds = torch.arange(640.0, device=device).reshape(10, 64).sin()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, args.steps + 1):
        labels = torch.randint(10, (64,), device=device)
        loss = F.cross_entropy(model(kinds[labels] + torch.randn(64, 64, device=device)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if local_rank == 0 and (step % 100 == 0 or step == args.steps):
            print(f"step {step}  loss {loss.item():.4f}", flush=True)


def leave() -> None:
    """End the process without the interpreter's teardown.

    With gloo in torch 2.13 the teardown aborts every third run.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
    leave()
