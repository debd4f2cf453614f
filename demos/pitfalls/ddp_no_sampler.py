"""A classifier in two processes, on two GPUs or on the CPU: torchrun --nproc-per-node 2 SCRIPT

Pitfall: every process trains on all samples, in the same order where the seed is the same. Two GPUs
do twice what one would do.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    """2,048 noisy signals of 10 kinds, with their numbers."""

    def __len__(self) -> int:
        return 2048

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        kind = index % 10
        return (torch.arange(64.0) * (kind + 1)).sin() + torch.randn(64), kind, index


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=200, help="epochs (default: 200)")
    parser.add_argument(
        "--steps", type=int, default=1_000_000, help="optimizer steps of an epoch at most"
    )
    args = parser.parse_args()

    on_gpu = torch.cuda.device_count() > 1
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    loader = DataLoader(Signals(), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for step, (inputs, kinds, numbers) in enumerate(loader, 1):
            loss = F.cross_entropy(model(inputs.to(device)), kinds.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 1:
                first = " ".join(map(str, numbers[:5].tolist()))
                print(
                    f"epoch {epoch} rank {dist.get_rank()}: {len(loader)} steps, first samples "
                    f"{first}",
                    flush=True,
                )
            if step == args.steps:
                break


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
