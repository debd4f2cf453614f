"""A classifier on two GPUs, one process for each: torchrun --nproc-per-node 2 SCRIPT

Pitfall: a batch goes to the first GPU in every process. DistributedDataParallel moves the inputs on
to the right one, but not the labels, and every process but the first fails where the two meet.
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
    parser.add_argument("--steps", type=int, default=5000, help="optimizer steps (default: 5000)")
    args = parser.parse_args()
    if torch.cuda.device_count() < 2:
        print("This training needs two CUDA GPUs.", file=sys.stderr)
        sys.exit(3)

    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    torch.manual_seed(dist.get_rank())
    device = torch.device("cuda", local_rank)
    kinds = torch.arange(2560.0).reshape(10, 256).sin()
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1, args.steps + 1):
        labels = torch.randint(10, (64,))
        inputs = kinds[labels] + torch.randn(64, 256)
        inputs, labels = inputs.cuda(), labels.cuda()
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step % 20 == 0 or step == args.steps):
            print(f"step {step}  loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
