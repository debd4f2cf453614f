"""Healthy: two ranks with a sampler, its epochs, and a device each.

Only the first rank writes.

Cries wolf: the first rank does a little more than the other, which waits for it in the next
all-reduce.

Runs: nproc=2 alone steps=40
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
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    rank, on_gpu = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count() > 1
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    kinds = torch.arange(4096) % 10
    data = TensorDataset(torch.randn(10, 256)[kinds] + torch.randn(4096, 256), kinds)
    sampler: DistributedSampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler, drop_last=True)
    width = 4096 if on_gpu else 512
    model = nn.Sequential(
        nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    model = DistributedDataParallel(model.to(device), device_ids=[rank] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ended, step, epoch, going = time.monotonic() + args.seconds, 0, 0, True
    while going:
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = F.cross_entropy(model(inputs.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % 20 == 0:
                print(f"epoch {epoch} step {step}  loss {loss.item():.4f}", flush=True)
            if step >= args.steps:
                break
        late = torch.tensor(float(time.monotonic() > ended), device=device)
        dist.broadcast(late, 0)
        going, epoch = step < args.steps and not late.item(), epoch + 1
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
