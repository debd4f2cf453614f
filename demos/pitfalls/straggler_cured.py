"""A tagger of sequences in two processes: torchrun --nproc-per-node 2 SCRIPT

Cured: the ranks take turns, so that in each step their batches are about equally long.
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

LENGTHS = range(16, 784, 16)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long to train (default: 60)"
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="optimizer steps at most")
    args = parser.parse_args()

    on_gpu = torch.cuda.device_count() > 1
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width = 16384 if on_gpu else 256
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = LENGTHS[rank::ranks]

    step, over, begun = 0, torch.zeros(1, device=device), time.monotonic()
    while not over:
        inputs = torch.randn(32, own[step % len(own)], 64, device=device)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), inputs[..., :10].argmax(2).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        over += step >= args.steps or time.monotonic() > begun + args.seconds
        dist.all_reduce(over)
        if rank == 0 and (step % 20 == 0 or over):
            each = 1e3 * (time.monotonic() - begun) / step
            print(f"step {step}  loss {loss.item():.4f}  {each:.2f} ms a step", flush=True)


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
