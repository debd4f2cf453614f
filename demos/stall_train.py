"""Train with DistributedDataParallel while one rank falls asleep in its data set.

The other ranks wait for it.

torchrun --nproc-per-node 2 demos/stall_train.py --rank 1 --after 50 --seconds 60

Uses NCCL where there are GPUs, gloo on the CPU. The last rank sleeps unless ``--rank`` names
another one.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Sleepy(Dataset):
    """Random samples; the one with the number ``when`` takes ``seconds`` to load."""

    def __init__(self, length: int, when: int, seconds: float):
        self.length, self.when, self.seconds = length, when, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        if index == self.when:
            time.sleep(self.seconds)  # a file server that does not answer
        return torch.randn(64), torch.randint(10, ()).item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, help="which rank falls asleep (default: the last)")
    parser.add_argument("--after", type=int, default=50, help="after how many steps (default: 50)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--steps", type=int, default=200, help="steps in all (default: 200)")
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    sleeper = args.rank if args.rank is not None else dist.get_world_size() - 1

    batch = 8
    when = args.after * batch if dist.get_rank() == sleeper else -1
    loader = DataLoader(Sleepy(args.steps * batch, when, args.seconds), batch_size=batch)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    ).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters())
    for step, (inputs, targets) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        shown = loss.item()
        if dist.get_rank() == 0 and (step % 20 == 0 or step == args.after):
            print(f"step {step}/{args.steps}  loss {shown:.4f}", flush=True)
        time.sleep(0.02)


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
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    leave()
